//! The broker: publishing durably with dedupe, beside our own outbox accepting, NATS JetStream and Redis Streams; and how long it takes
//! until a live reader has a message. Every contestant is sent the same by the same program, `semel-bench publish`.

use std::process::Command;
use std::thread;
use std::time::Duration;

use semel_testbed::failure::Failure;
use semel_testbed::{os, process};
use serde_json::Value;

use super::contestant::{Store, Takes};
use super::result::{Outcome, Row, Sample, Verdict};
use super::targets::Target;
use super::world::{Publishing, World};
use super::{Asked, install, processes};

/// One line of the table.
struct Contestant {
    name: &'static str,
    takes: Takes,
    /// Live readers of the first topic.
    readers: usize,
    durability: &'static str,
}

const OUTBOX: &str = "outbox accept, ordered ids";
const ONE: &str = "broker, SQLite, 1 subscriber";
const TEN: &str = "broker, SQLite, 10 subscribers";
const HUNDRED: &str = "broker, SQLite, 100 subscribers";
const LIVE: &str = "broker, SQLite, 100 subscribers, 10 live readers";
const TOPICS: &str = "broker, SQLite, 100 topics, 1 subscriber each";
const TOPICS_HUNDRED: &str = "broker, SQLite, 100 topics, 100 subscribers each";
const POSTGRES: &str = "broker, PostgreSQL, 1 subscriber";
const JETSTREAM: &str = "NATS JetStream, 1 subscriber";
const STREAMS: &str = "Redis Streams, 1 subscriber";

const fn broker(
    name: &'static str,
    store: Store,
    subscribers: usize,
    topics: usize,
    readers: usize,
) -> Contestant {
    let durability = match store {
        Store::Sqlite => "id, message and history synced (SQLite, synchronous=FULL)",
        Store::Postgres => "id, message and history synced (PostgreSQL, fsync and synchronous_commit on)",
    };
    Contestant { name, takes: Takes::Broker { store, subscribers, topics }, readers, durability }
}

const CONTESTANTS: &[Contestant] = &[
    Contestant {
        name: OUTBOX,
        takes: Takes::Outbox,
        readers: 0,
        durability: "message synced (SQLite, synchronous=FULL)",
    },
    broker(ONE, Store::Sqlite, 1, 1, 1),
    broker(TEN, Store::Sqlite, 10, 1, 1),
    broker(HUNDRED, Store::Sqlite, 100, 1, 1),
    broker(LIVE, Store::Sqlite, 100, 1, 10),
    broker(TOPICS, Store::Sqlite, 1, 100, 1),
    broker("broker, SQLite, 100 topics, 10 subscribers each", Store::Sqlite, 10, 100, 1),
    broker(TOPICS_HUNDRED, Store::Sqlite, 100, 100, 1),
    broker(POSTGRES, Store::Postgres, 1, 1, 1),
    Contestant {
        name: JETSTREAM,
        takes: Takes::Jetstream,
        readers: 1,
        durability: "message synced (`sync_interval: always`), ids known for two minutes",
    },
    Contestant {
        name: STREAMS,
        takes: Takes::Streams,
        readers: 1,
        durability: "entry synced (`appendfsync always`), no ids",
    },
];

const TARGETS: &[Target] = &[
    Target::at_least(ONE, OUTBOX, 0.5),
    Target::at_least(ONE, JETSTREAM, 1.5),
    // A hundred cost at most 1.3 of one.
    Target::at_least(HUNDRED, ONE, 0.77),
    Target::at_least(TOPICS_HUNDRED, TOPICS, 0.77),
];

/// Messages a second of one publisher, for the time from a commit until an idle reader has it; and how many read.
const IDLE_RATE: &str = "50";
const IDLE_READERS: &str = "10";
const IDLE_MS_MAX: f64 = 20.0;

/// Ids that are remembered while publishing is measured, and what a publish may then cost of one without.
const MANY_IDS: u64 = 10_000_000;
const MANY_COST_MAX: f64 = 1.25;
const EMPTY: &str = "broker, SQLite, no ids before";
const MANY: &str = "broker, SQLite, 10 million ids";
const EMPTY_RANDOM: &str = "broker, SQLite, random ids, none before";
const MANY_RANDOM: &str = "broker, SQLite, random ids, 10 million";
const REMEMBERING: [(&str, u64, &str); 4] = [
    (EMPTY, 0, "ordered"),
    (MANY, MANY_IDS, "ordered"),
    (EMPTY_RANDOM, 0, "random"),
    (MANY_RANDOM, MANY_IDS, "random"),
];

/// A crowd of idle readers: so many, of so many members; and what it may cost.
const CROWD: &str = "broker, SQLite, 10,000 idle readers";
const CROWD_READERS: &str = "10000";
const CROWD_MEMBERS: usize = 100;
const CROWD_MEGABYTES_MAX: f64 = 400.0;
const CROWD_MS_MAX: f64 = 2000.0;

/// What one run found.
struct Found {
    sample: Sample,
    live: [Option<f64>; 2],
    /// From the answer to its publisher until a live reader has a message, the slowest of a hundred.
    after: Option<f64>,
}

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    let mut running = Vec::new();
    for contestant in CONTESTANTS {
        match world.publishing(contestant.takes) {
            Ok(started) => running.push((contestant, started, Vec::new())),
            Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
            Err(failure) => {
                eprintln!("xtask: {} cannot take part: {failure}", contestant.name);
                outcome.absent.push((contestant.name.to_owned(), failure.to_string()));
            }
        }
    }
    let row = |name: &str, durability: &str| Row {
        name: name.to_owned(),
        durability: durability.to_owned(),
        samples: vec![],
    };
    outcome.rows = running.iter().map(|(one, ..)| row(one.name, one.durability)).collect();
    for round in 0..asked.rounds() {
        for (place, (contestant, started, live)) in running.iter_mut().enumerate() {
            let readers = contestant.readers.to_string();
            let found = shoot(started, asked, round, &["--readers", &readers])?;
            eprintln!("xtask: round {}  {:50} {:>8.0}/s", round + 1, contestant.name, found.sample.rate);
            outcome.rows[place].samples.push(found.sample);
            live.push(found.live);
        }
    }
    outcome.judge(TARGETS);
    for (contestant, _, live) in running.iter().filter(|(one, ..)| one.readers > 0) {
        let [p50, p99] = [0, 1].map(|at| middle(live.iter().filter_map(|live| live[at]).collect()));
        if let (Some(p50), Some(p99)) = (p50, p99) {
            outcome.notes.push(format!(
                "{}: from the publish to a live reader p50 {p50:.1} ms, p99 {p99:.1} ms, at full load.",
                contestant.name
            ));
        }
    }
    if let Some((_, started, _)) = running.iter().find(|(one, ..)| one.name == ONE) {
        idle(started, asked, &mut outcome)?;
    }
    outcome.notes.push(
        "64 publishers, each with one message of 200 bytes at a time. Subscribers who do not read live cost a row each."
            .to_owned(),
    );
    Ok(outcome)
}

/// What a publish costs where ids are remembered, beside one where none are.
pub(super) fn remember(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    let mut running = Vec::new();
    for (name, ids, order) in REMEMBERING {
        running.push(world.publishing(Takes::Remembering { ids, order })?);
        let durability = "id, message and history synced (SQLite, synchronous=FULL)".to_owned();
        outcome.rows.push(Row { name: name.to_owned(), durability, samples: vec![] });
    }
    for round in 0..asked.rounds() {
        for (place, started) in running.iter().enumerate() {
            let found = shoot(started, asked, round, &["--readers", "0"])?;
            eprintln!("xtask: round {}  {:50} {:>8.0}/s", round + 1, REMEMBERING[place].0, found.sample.rate);
            outcome.rows[place].samples.push(found.sample);
        }
    }
    for (many, empty, is_promised) in [(MANY, EMPTY, true), (MANY_RANDOM, EMPTY_RANDOM, false)] {
        let Some(cost) = cost_ratio(&outcome, many, empty) else { continue };
        let what = format!("{many}: processor time of a publish at most {MANY_COST_MAX} of {empty}");
        match is_promised {
            true => outcome.verdicts.push(Verdict {
                what,
                found: format!("{cost:.2}"),
                holds: cost <= MANY_COST_MAX,
            }),
            false => {
                outcome.notes.push(format!("{many}: processor time of a publish is {cost:.2} of {empty}."))
            }
        }
    }
    Ok(outcome)
}

/// The processor time of one to another: the median of the ratios of each round.
fn cost_ratio(outcome: &Outcome, of: &str, to: &str) -> Option<f64> {
    let (of, to) = (outcome.row(of)?, outcome.row(to)?);
    let pairs = of.samples.iter().zip(&to.samples);
    middle(pairs.filter_map(|(of, to)| Some(of.cpu_us? / to.cpu_us?)).collect())
}

/// 10,000 streams on one broker, and one message a second.
pub(super) fn crowd(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let takes = Takes::Broker { store: Store::Sqlite, subscribers: CROWD_MEMBERS, topics: 1 };
    let started = world.publishing(takes)?;
    let pids = processes::families(&started.leaders);
    let mut command = Command::new(install::bench_binary());
    command.args(["publish", "--target", &format!("127.0.0.1:{}", started.port)]).args(&started.args);
    command.args(["--publishers", "1", "--rate", "1", "--readers", CROWD_READERS, "--warmup", "0"]);
    command.args([
        "--members",
        &CROWD_MEMBERS.to_string(),
        "--seconds",
        &(2.0 * asked.seconds()).to_string(),
    ]);
    os::die_with_parent(&mut command, libc::SIGKILL);
    let running = thread::spawn(move || process::read(&mut command));
    let mut resident: f64 = 0.0;
    while !running.is_finished() {
        resident = resident.max(processes::resident_mb(&pids));
        thread::sleep(Duration::from_millis(50));
    }
    let text = running.join().map_err(|_| "the program that reads broke".to_owned())??;
    let said: Value = serde_json::from_str(text.trim()).map_err(|error| format!("{text:?}: {error}"))?;
    let number = |name: &str| said[name].as_f64().unwrap_or(f64::MAX);
    let (published, received, last) = (number("published"), number("received"), number("live_max_ms"));
    let readers = CROWD_READERS.parse::<f64>().unwrap_or(0.0);
    let mut outcome = Outcome::default();
    outcome.verdicts.push(Verdict {
        what: format!("{CROWD}: resident below {CROWD_MEGABYTES_MAX:.0} MB"),
        found: format!("{resident:.0} MB"),
        holds: resident < CROWD_MEGABYTES_MAX,
    });
    outcome.verdicts.push(Verdict {
        what: format!("{CROWD}: a publish reaches all within {CROWD_MS_MAX:.0} ms"),
        found: format!("{last:.0} ms, {received:.0} of {:.0}", published * readers),
        holds: last < CROWD_MS_MAX && (received - published * readers).abs() < 0.5,
    });
    outcome.notes.push(format!(
        "{CROWD_MEMBERS} members, each with {:.0} streams; {published:.0} messages, one a second.",
        readers / CROWD_MEMBERS as f64
    ));
    Ok(outcome)
}

/// One publisher now and then, and readers that wait.
fn idle(started: &Publishing, asked: &Asked, outcome: &mut Outcome) -> Result<(), Failure> {
    let wish = ["--publishers", "1", "--rate", IDLE_RATE, "--readers", IDLE_READERS];
    let mut found = Vec::new();
    for round in 0..asked.rounds() {
        found.extend(shoot(started, asked, 500 + round, &wish)?.after);
    }
    if let Some(p99) = middle(found) {
        outcome.verdicts.push(Verdict {
            what: format!(
                "{ONE}: p99 from the commit to {IDLE_READERS} idle readers below {IDLE_MS_MAX:.0} ms"
            ),
            found: format!("{p99:.1} ms"),
            holds: p99 < IDLE_MS_MAX,
        });
    }
    Ok(())
}

fn shoot(started: &Publishing, asked: &Asked, round: usize, wish: &[&str]) -> Result<Found, Failure> {
    if let Some(signal) = os::interrupted() {
        return Err(Failure::Interrupted(signal));
    }
    let pids = processes::families(&started.leaders);
    let before = processes::used(&pids);
    let mut command = Command::new(install::bench_binary());
    command
        .args(["publish", "--target", &format!("127.0.0.1:{}", started.port)])
        .args(&started.args)
        .args(wish);
    command.args(["--seconds", &asked.seconds().to_string(), "--seed", &(1000 + round).to_string()]);
    os::die_with_parent(&mut command, libc::SIGKILL);
    let text = process::read(&mut command)?;
    let said: Value = serde_json::from_str(text.trim()).map_err(|error| format!("{text:?}: {error}"))?;
    let pids = processes::families(&started.leaders);
    let after = processes::used(&pids);
    let number = |name: &str| said[name].as_f64();
    // Those of the time of warming up are sent, too, and not told.
    let share = asked.seconds() / (asked.seconds() + 0.5);
    let sent = number("sent").unwrap_or(0.0).max(1.0) / share;
    let sample = Sample {
        rate: number("rate").unwrap_or(0.0),
        p50_ms: number("p50_ms"),
        p99_ms: number("p99_ms"),
        cpu_us: Some((after.cpu_seconds - before.cpu_seconds) * 1e6 / sent),
        disk_bytes: Some((after.disk_bytes - before.disk_bytes) / sent),
        resident_mb: Some(processes::resident_mb(&pids)),
        ..Sample::default()
    };
    let live = [number("live_p50_ms"), number("live_p99_ms")];
    Ok(Found { sample, live, after: number("after_p99_ms") })
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
