//! What the console costs: finding one of ten million records by its key, through the admin API of a real gate; requests while
//! lists are opened all the time; and the index of keys on PostgreSQL, beside a database without it.

mod stores;

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::os;
use semel_testbed::services::{Recipe, Server};
use serde_json::Value;

use super::contestant::{Sends, Store};
use super::load::{self, REPLAYED_KEYS, Shot};
use super::result::{Outcome, Row, Sample, Verdict};
use super::world::{Running, World, exchange};
use super::{Asked, install, processes};
use stores::{database, filled, key, postmaster, sql, thrown_away};

const SEARCH_SQLITE: &str = "search by key, SQLite, 10 million";
const SEARCH_POSTGRES: &str = "search by key, PostgreSQL, 10 million";
const FRESH_SQLITE: &str = "fresh, SQLite, 10 million";
const LISTS_SQLITE: &str = "fresh, SQLite, 10 million, lists opened all the time";
const FRESH_POSTGRES: &str = "fresh, PostgreSQL, 10 million";
const LISTS_POSTGRES: &str = "fresh, PostgreSQL, 10 million, lists opened all the time";
const INDEXED: &str = "fresh, PostgreSQL, with the index of keys";
const PLAIN: &str = "fresh, PostgreSQL, without the index of keys";

/// What must hold.
#[derive(Clone, Copy)]
enum Demand {
    /// Of a hundred searches 99 take less, in milliseconds.
    P99Below(f64),
    /// The rate is at least so many times another's.
    RateAtLeast { to: &'static str, least: f64 },
    /// Processor time of a request is at most so many times another's.
    TimeAtMost { to: &'static str, most: f64 },
    /// So are the bytes that it writes to the disk.
    BytesAtMost { to: &'static str, most: f64 },
}

const TARGETS: &[(&str, Demand)] = &[
    (SEARCH_SQLITE, Demand::P99Below(50.0)),
    (SEARCH_POSTGRES, Demand::P99Below(50.0)),
    (LISTS_SQLITE, Demand::RateAtLeast { to: FRESH_SQLITE, least: 0.9 }),
    (LISTS_POSTGRES, Demand::RateAtLeast { to: FRESH_POSTGRES, least: 0.9 }),
    (INDEXED, Demand::TimeAtMost { to: PLAIN, most: 1.05 }),
    (INDEXED, Demand::BytesAtMost { to: PLAIN, most: 1.05 }),
];

/// How much of everything.
struct Extent {
    /// Records that are searched.
    records: u64,
    /// Searches in each round.
    searches: u64,
    /// Records in each of the databases with and without the index.
    paired: u64,
    /// Fresh requests that each of them takes in a round.
    requests: u64,
}

const FULL: Extent = Extent { records: 10_000_000, searches: 500, paired: 1_000_000, requests: 30_000 };
const QUICK: Extent = Extent { records: 200_000, searches: 200, paired: 50_000, requests: 5_000 };

/// What somebody opens who looks at requests all the time.
const LISTS: [&str; 3] = ["/requests", "/v1/records?order=newest&limit=100", "/requests?state=settled"];
/// Searches go through the records in steps of this, so that none is near the one before.
const STRIDE: u64 = 7_919_317;
const KEYS_READ_SECONDS_MAX: u64 = 1_800;

/// A gate whose admin API is asked.
struct Watched {
    running: Running,
    admin: u16,
    /// How long it took until every key could be found.
    searchable_after: Duration,
}

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let extent = if asked.quick { QUICK } else { FULL };
    let mut outcome = Outcome::default();
    for (store, names) in [
        (Store::Sqlite, [SEARCH_SQLITE, FRESH_SQLITE, LISTS_SQLITE]),
        (Store::Postgres, [SEARCH_POSTGRES, FRESH_POSTGRES, LISTS_POSTGRES]),
    ] {
        let url = filled(world, store, extent.records)?;
        let watched = watch(world, store, &url)?;
        outcome.notes.push(format!(
            "{}: every key could be found {:.0} s after the start; {:.0} MB resident then.",
            names[0],
            watched.searchable_after.as_secs_f64(),
            processes::resident_mb(&processes::families(&watched.running.leaders[..1]))
        ));
        play(world, asked, &extent, &watched, (store, names), &mut outcome)?;
        drop(watched);
        // Both at once would need twice the room.
        thrown_away(world, store, &url)?;
    }
    weigh_index(world, asked, &extent, &mut outcome)?;
    if asked.quick {
        outcome.notes.push(format!("A quick run: {} records instead of ten million.", extent.records));
    }
    outcome.verdicts = TARGETS.iter().filter_map(|target| judge(&outcome, target)).collect();
    Ok(outcome)
}

/// Rounds of searches, of fresh requests, and of fresh requests while lists are opened; the last two change places.
fn play(
    world: &World,
    asked: &Asked,
    extent: &Extent,
    watched: &Watched,
    (store, names): (Store, [&str; 3]),
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut rows =
        names.map(|name| Row { name: name.to_owned(), durability: String::new(), samples: vec![] });
    rows[0].durability = "reads only".to_owned();
    rows[1..].iter_mut().for_each(|row| row.durability = durability(store).to_owned());
    let mut lists = 0;
    for round in 0..asked.rounds() {
        rows[0].samples.push(search(watched, extent, round as u64)?);
        for place in if round % 2 == 0 { [1, 2] } else { [2, 1] } {
            let seed = 5_000 + (2 * round + place) as u64;
            let (sample, opened) = match place {
                1 => (shoot(world, asked, watched, seed)?, 0),
                _ => while_lists_are_opened(watched, || shoot(world, asked, watched, seed))?,
            };
            lists += opened;
            rows[place].samples.push(sample);
        }
        for row in &rows {
            let sample = row.samples.last().cloned().unwrap_or_default();
            let p99 = sample.p99_ms.unwrap_or(0.0);
            eprintln!("xtask: round {}  {:58} {:>8.0}/s, p99 {p99:.1} ms", round + 1, row.name, sample.rate);
        }
    }
    outcome.notes.push(format!("{}: {} lists in each run.", names[2], lists / asked.rounds()));
    outcome.rows.extend(rows);
    Ok(())
}

/// Searches one key after the other, each on a connection of its own. Every one must be found.
fn search(watched: &Watched, extent: &Extent, round: u64) -> Result<Sample, Failure> {
    let mut taken = Vec::new();
    for at in 0..extent.searches {
        if let Some(signal) = os::interrupted() {
            return Err(Failure::Interrupted(signal));
        }
        let number = ((round * extent.searches + at) * STRIDE) % extent.records;
        let path = format!("/v1/records?limit=10&key={}", key(number));
        let since = Instant::now();
        let answer = ask(watched.admin, &path)?;
        taken.push(since.elapsed().as_secs_f64() * 1000.0);
        if answer["records"].as_array().map(Vec::len) != Some(1) || answer["complete"] != true {
            return Err(Failure::Failed(format!("{path}: one record was expected, and all of it: {answer}")));
        }
    }
    let rate = taken.len() as f64 / taken.iter().sum::<f64>() * 1000.0;
    taken.sort_by(f64::total_cmp);
    let at = |part: f64| taken.get((taken.len() as f64 * part) as usize).copied();
    Ok(Sample {
        rate,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        stall_ms: taken.last().copied(),
        ..Sample::default()
    })
}

/// Fresh requests for a while.
fn shoot(world: &World, asked: &Asked, watched: &Watched, seed: u64) -> Result<Sample, Failure> {
    let shot = Shot {
        sends: Sends::Fresh,
        connections: 64,
        streams: 0,
        seconds: asked.seconds(),
        seed,
        rate: None,
        keys: REPLAYED_KEYS,
        running: &watched.running,
        folder: world.folder(),
    };
    shot.fire()
}

/// Does something while somebody opens one list after the other, and says how many that were.
fn while_lists_are_opened(
    watched: &Watched,
    work: impl FnOnce() -> Result<Sample, Failure>,
) -> Result<(Sample, usize), Failure> {
    let (is_over, admin) = (AtomicBool::new(false), watched.admin);
    thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let mut opened = 0;
            while !is_over.load(Ordering::SeqCst) {
                get(admin, LISTS[opened % LISTS.len()])?;
                opened += 1;
            }
            Ok::<usize, Failure>(opened)
        });
        let worked = work();
        is_over.store(true, Ordering::SeqCst);
        let opened = opening.join().map_err(|_| "whoever opens lists broke".to_owned())??;
        Ok((worked?, opened))
    })
}

/// Fresh requests on two databases that differ by the index alone, what autovacuum does later included.
fn weigh_index(
    world: &mut World,
    asked: &Asked,
    extent: &Extent,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut pair = Vec::new();
    for name in [INDEXED, PLAIN] {
        let url = filled(world, Store::Postgres, extent.paired)?;
        if name == PLAIN {
            sql(world, database(&url), &["DROP INDEX semel.record_key"])?;
        }
        let row = Row {
            name: name.to_owned(),
            durability: durability(Store::Postgres).to_owned(),
            samples: vec![],
        };
        pair.push((watch(world, Store::Postgres, &url)?, url, row));
    }
    for round in 0..asked.rounds() {
        for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (watched, url, row) = &mut pair[at];
            let sample =
                weigh(world, &watched.running, database(url), extent.requests, 9_000 + round as u64)?;
            eprintln!(
                "xtask: round {}  {:58} {:>8.0} µs, {:.0} bytes",
                round + 1,
                row.name,
                sample.cpu_us.unwrap_or(0.0),
                sample.disk_bytes.unwrap_or(0.0)
            );
            row.samples.push(sample);
        }
    }
    outcome.rows.extend(pair.into_iter().map(|(_, _, row)| row));
    Ok(())
}

fn weigh(world: &World, running: &Running, database: &str, count: u64, seed: u64) -> Result<Sample, Failure> {
    // Both begin with nothing that an earlier run left to be written.
    sql(world, database, &["CHECKPOINT"])?;
    let before = processes::used(&processes::families(&running.leaders));
    let since = Instant::now();
    load::send(running, &["--seed", &seed.to_string(), "--connections", "64"], count)?;
    let taken = since.elapsed().as_secs_f64();
    sql(world, database, &["VACUUM semel.record", "CHECKPOINT"])?;
    let after = processes::used(&processes::families(&running.leaders));
    let each = |after: f64, before: f64| Some((after - before) / count as f64);
    Ok(Sample {
        rate: count as f64 / taken,
        cpu_us: each(after.cpu_seconds * 1e6, before.cpu_seconds * 1e6),
        disk_bytes: each(after.disk_bytes, before.disk_bytes),
        ..Sample::default()
    })
}

/// Holds the rows against one target.
fn judge(outcome: &Outcome, (of, demand): &(&str, Demand)) -> Option<Verdict> {
    let verdict = |what: String, found: String, holds: bool| {
        Some(Verdict { what: format!("{of}: {what}"), found, holds })
    };
    match *demand {
        Demand::P99Below(most) => {
            let p99 = outcome.row(of)?.median(|sample| sample.p99_ms)?;
            verdict(format!("p99 below {most:.0} ms"), format!("{p99:.1} ms"), p99 < most)
        }
        Demand::RateAtLeast { to, least } => {
            let ratio = outcome.ratio(of, to)?;
            verdict(format!("at least {least:.2} of {to}"), format!("{ratio:.2}"), ratio >= least)
        }
        Demand::TimeAtMost { to, most } => {
            let ratio = cost(outcome, of, to, |sample| sample.cpu_us)?;
            let what = format!("processor time at most {most:.2} of {to}");
            verdict(what, format!("{ratio:.2}"), ratio <= most)
        }
        Demand::BytesAtMost { to, most } => {
            let ratio = cost(outcome, of, to, |sample| sample.disk_bytes)?;
            let what = format!("bytes to the disk at most {most:.2} of {to}");
            verdict(what, format!("{ratio:.2}"), ratio <= most)
        }
    }
}

/// What one costs of another: the median of the ratios of each round.
fn cost(outcome: &Outcome, of: &str, to: &str, pick: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let (of, to) = (outcome.row(of)?, outcome.row(to)?);
    let pairs = of.samples.iter().zip(&to.samples);
    let mut ratios: Vec<f64> = pairs.filter_map(|(of, to)| Some(pick(of)? / pick(to)?)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

fn durability(store: Store) -> &'static str {
    match store {
        Store::Sqlite => "claim and answer synced (SQLite, synchronous=FULL)",
        Store::Postgres => "claim and answer synced (PostgreSQL, fsync and synchronous_commit on)",
    }
}

/// A gate with nothing set but its upstream, its store and where its admin API is. Waits until every key can be found.
fn watch(world: &mut World, store: Store, url: &str) -> Result<Watched, Failure> {
    let upstream = format!("http://127.0.0.1:{}", world.upstream()?);
    let admin = free_port()?;
    let (binary, log) = (install::semel_binary(), world.folder().join(format!("console-{admin}.log")));
    let (program, store_url) = (binary.clone(), url.to_owned());
    let command = move |port: u16| {
        let mut command = Command::new(&program);
        command.args(["serve", "gate", "--upstream", &upstream, "--store", &store_url]);
        command.args(["--admin", &format!("127.0.0.1:{admin}"), "--listen", &format!("127.0.0.1:{port}")]);
        command
    };
    let since = Instant::now();
    let mut server = Server::spawn(Recipe {
        name: "gate",
        binary,
        command: Box::new(command),
        log,
        ready_line: "semel gate is ready",
        stop_signal: libc::SIGTERM,
    })?;
    server.settle()?;
    let mut running = Running::of("gate", server, vec![]);
    let key = ["--header", "idempotency-key: {key}", "--header", "authorization: Bearer bench"];
    running.key = key.map(str::to_owned).to_vec();
    if store == Store::Postgres {
        running.leaders.push(postmaster(world, database(url))?);
    }
    while ask(admin, "/v1/records?key=nobody")?["reading"] == true {
        if since.elapsed().as_secs() > KEYS_READ_SECONDS_MAX {
            return Err(Failure::Failed("the keys were not read".to_owned()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(Watched { running, admin, searchable_after: since.elapsed() })
}

fn free_port() -> Result<u16, String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(bound.map_err(|error| format!("no port is free: {error}"))?.port())
}

/// Asks the admin API on a connection of its own.
fn get(admin: u16, path: &str) -> Result<String, Failure> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{admin}");
    let answer = exchange(admin, &head, "").map_err(|error| format!("{path}: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        _ => Err(Failure::Failed(format!("{path}: {answer}"))),
    }
}

fn ask(admin: u16, path: &str) -> Result<Value, Failure> {
    let body = get(admin, path)?;
    serde_json::from_str(&body).map_err(|error| Failure::Failed(format!("{path}: {error}: {body}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, rate: f64, ms: f64, us: f64) -> Row {
        let sample =
            Sample { rate, p99_ms: Some(ms), cpu_us: Some(us), disk_bytes: Some(us), ..Sample::default() };
        Row { name: name.to_owned(), durability: String::new(), samples: vec![sample] }
    }

    #[test]
    fn every_target_is_judged_and_each_can_fail() {
        let outcome = |lists: f64, ms: f64, us: f64| Outcome {
            rows: vec![
                row(SEARCH_SQLITE, 1.0, ms, 1.0),
                row(SEARCH_POSTGRES, 1.0, ms, 1.0),
                row(FRESH_SQLITE, 100.0, 1.0, 1.0),
                row(LISTS_SQLITE, lists, 1.0, 1.0),
                row(FRESH_POSTGRES, 100.0, 1.0, 1.0),
                row(LISTS_POSTGRES, lists, 1.0, 1.0),
                row(INDEXED, 1.0, 1.0, us),
                row(PLAIN, 1.0, 1.0, 100.0),
            ],
            ..Outcome::default()
        };
        let judged = |outcome: &Outcome| {
            TARGETS.iter().filter_map(|target| judge(outcome, target)).map(|it| it.holds).collect::<Vec<_>>()
        };
        assert_eq!(judged(&outcome(90.0, 49.9, 105.0)), [true; 6]);
        assert_eq!(judged(&outcome(89.0, 50.1, 106.0)), [false; 6]);
    }
}
