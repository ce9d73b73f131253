//! The relay: accepting, and draining lanes of fifty entries with one call each, beside queues that make a call for every
//! job; also while a transaction of somebody else stays open.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::{os, process, programs};
use serde_json::Value;

use super::contestant::{Contestant, Sends, Serves, Store};
use super::install;
use super::load;
use super::result::{Outcome, Row, Sample, Verdict};
use super::table::thousands;
use super::world::{self, Running, World};
use super::{Asked, rounds};

const GRAPHILE: &str = "graphile-worker drain, local queue and batches";
const BULLMQ: &str = "BullMQ drain, Redis";
const POSTGRES: &str = "relay drain, PostgreSQL, 50 a lane";
const HELD: &str = "relay drain, PostgreSQL, a transaction held open";
const SQLITE: &str = "relay drain, SQLite, 50 a lane";
const IN_A_LANE: u64 = 50;
const DRAIN_SECONDS_MAX: u64 = 90;

/// What is drained: so many entries, which wait so long for company that all of them are accepted before the first call.
#[derive(Clone, Copy)]
struct Amount {
    entries: u64,
    debounce: &'static str,
    /// The same.
    waits: Duration,
}

const FULL: &[Amount] = &[
    Amount { entries: 20_000, debounce: "12s", waits: Duration::from_secs(12) },
    Amount { entries: 60_000, debounce: "25s", waits: Duration::from_secs(25) },
];
const QUICK: &[Amount] = &[Amount { entries: 5_000, debounce: "8s", waits: Duration::from_secs(8) }];

const ACCEPT: &[Contestant] = &[
    Contestant::new("relay accept, SQLite", Serves::Relay(Store::Sqlite), Sends::Fresh),
    Contestant::new("relay accept, PostgreSQL", Serves::Relay(Store::Postgres), Sends::Fresh),
];

pub(super) fn accept(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    rounds::play(world, asked, ACCEPT, &[])
}

pub(super) fn drain(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    for amount in if asked.quick { QUICK } else { FULL } {
        drain_amount(world, asked, *amount, &mut outcome)?;
    }
    let queues = ["graphile-worker", "bullmq"].map(|name| install::version(name, Path::new(name)));
    outcome.notes.push(format!("Versions: {}.", queues.into_iter().flatten().collect::<Vec<_>>().join(", ")));
    outcome.notes.push(
        "The queues' jobs do nothing; the relay's writes are HTTP calls to a service. From the first call to the last."
            .to_owned(),
    );
    Ok(outcome)
}

fn drain_amount(
    world: &mut World,
    asked: &Asked,
    amount: Amount,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let entries = amount.entries;
    let label = |name: &str| format!("{name}, {} entries", thousands(entries as f64));
    let mut calls = 0.0;
    for round in 0..asked.rounds().min(3) {
        for kind in [GRAPHILE, BULLMQ, POSTGRES, HELD, SQLITE] {
            let name = &label(kind);
            if outcome.absent.iter().any(|(absent, _)| absent == name) {
                continue;
            }
            let drained = match kind {
                GRAPHILE => {
                    graphile(world, amount).map(|rate| (rate, "job and its completion synced (PostgreSQL)"))
                }
                BULLMQ => bullmq(world, amount).map(|rate| (rate, "not durable: Redis without a log")),
                _ => relay(world, kind, amount).map(|(rate, made)| {
                    calls = made;
                    (rate, "intent, watermark and a row for every original synced")
                }),
            };
            match drained {
                Ok((rate, durability)) => {
                    eprintln!("xtask: round {}  {name:50} {rate:>8.0}/s", round + 1);
                    add(outcome, name, durability, rate);
                }
                Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
                Err(failure) => {
                    eprintln!("xtask: {name} cannot take part: {failure}");
                    outcome.absent.push((name.to_owned(), failure.to_string()));
                }
            }
        }
    }
    if let Some(ratio) = outcome.ratio(&label(POSTGRES), &label(GRAPHILE)) {
        outcome.verdicts.push(Verdict {
            what: format!("{}: at least 1.00 (goal 1.50) of {GRAPHILE}", label(POSTGRES)),
            found: format!("{ratio:.2}"),
            holds: ratio >= 1.0,
        });
    }
    if calls > 0.0 {
        let fewer = entries as f64 / calls;
        outcome.verdicts.push(Verdict {
            what: "relay: at least 20 times fewer calls with 50 entries a lane".to_owned(),
            found: format!("{fewer:.0} times ({calls:.0} calls for {entries} entries)"),
            holds: fewer >= 20.0,
        });
    }
    Ok(())
}

fn add(outcome: &mut Outcome, name: &str, durability: &str, rate: f64) {
    let sample = Sample { rate, ..Sample::default() };
    match outcome.rows.iter_mut().find(|row| row.name == name) {
        Some(row) => row.samples.push(sample),
        None => {
            let (name, durability) = (name.to_owned(), durability.to_owned());
            outcome.rows.push(Row { name, durability, samples: vec![sample] });
        }
    }
}

fn graphile(world: &mut World, amount: Amount) -> Result<f64, Failure> {
    let peers = install::node_peers()?;
    let url = world.new_database()?;
    node(&peers.join("graphile.mjs"), &url, amount)
}

fn bullmq(world: &mut World, amount: Amount) -> Result<f64, Failure> {
    let peers = install::node_peers()?;
    let redis = world.redis()?.to_string();
    node(&peers.join("bullmq.mjs"), &redis, amount)
}

fn node(script: &std::path::Path, server: &str, amount: Amount) -> Result<f64, Failure> {
    let mut command = Command::new(programs::program("node", "nodejs")?);
    command
        .arg(script)
        .args([server, &amount.entries.to_string()])
        .env("NODE_ENV", "production")
        .env("NO_LOG_SUCCESS", "1");
    os::die_with_parent(&mut command, libc::SIGKILL);
    let text = process::read(&mut command)?;
    let said = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let rate = said.and_then(|said| said["drain"].as_f64());
    rate.ok_or_else(|| Failure::Failed(format!("{} said {text:?}", script.display())))
}

/// Has one relay accept entries, waits until all of them are due, and times another that finds them, from its first call
/// to its last. Returns entries a second, and calls.
fn relay(world: &mut World, name: &str, amount: Amount) -> Result<(f64, f64), Failure> {
    let store = if name == SQLITE { Store::Sqlite } else { Store::Postgres };
    let (upstream, url) = (world.upstream()?, world.store(store)?);
    let _held = (name == HELD).then(|| hold(world, &url)).transpose()?;
    let before = world::effects(upstream).unwrap_or(0);
    let lanes = amount.entries / IN_A_LANE;
    let server = world.relay_daemon(upstream, &url, amount.debounce)?;
    let accepting = Running::of(name, server, world::relay_request());
    load::send(&accepting, &["--lanes", &lanes.to_string(), "--connections", "256"], amount.entries)?;
    drop(accepting);
    let accepted = world::effects(upstream).unwrap_or(0) - before;
    if accepted > 0 {
        return Err(Failure::Failed(format!("{accepted} calls were made before everything was accepted")));
    }
    let due = Instant::now() + amount.waits;
    while Instant::now() < due {
        interrupted()?;
        thread::sleep(Duration::from_millis(100));
    }
    // It may make its first call before it is known to be ready.
    let first = first_call(upstream, before);
    let server = world.relay_daemon(upstream, &url, amount.debounce)?;
    let running = Running::of(name, server, world::relay_request());
    let never = || Failure::Failed("no call was made".to_owned());
    let first = first.join().ok().flatten().ok_or_else(never)?;
    loop {
        let calls = world::effects(upstream).unwrap_or(0) - before;
        if calls >= lanes && is_empty(&running)? {
            let took = first.elapsed().as_secs_f64();
            return Ok((amount.entries as f64 / took.max(1e-9), calls as f64));
        }
        interrupted()?;
        if first.elapsed() > Duration::from_secs(DRAIN_SECONDS_MAX) {
            return Err(Failure::Failed(format!("{calls} of {lanes} lanes after a minute and a half")));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// When the first call after so many is seen.
fn first_call(upstream: u16, before: u64) -> JoinHandle<Option<Instant>> {
    let since = Instant::now();
    thread::spawn(move || {
        while since.elapsed() < Duration::from_secs(DRAIN_SECONDS_MAX) && os::interrupted().is_none() {
            if world::effects(upstream).unwrap_or(before) > before {
                return Some(Instant::now());
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    })
}

fn interrupted() -> Result<(), Failure> {
    os::interrupted().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
}

/// Whether nothing waits any more: the last settlement is on disk.
fn is_empty(running: &Running) -> Result<bool, Failure> {
    let head = "GET /v1/relay/pending HTTP/1.1\r\nhost: 127.0.0.1\r\nx-user: alice";
    let answer = world::must(running.ports[0], head, "")?;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let told: Value = serde_json::from_str(body).map_err(|error| format!("{body:?}: {error}"))?;
    Ok(told["pending"].as_u64() == Some(0))
}

/// A transaction of somebody else on the same database. Dropping this ends it.
struct Held(Child);

fn hold(world: &World, url: &str) -> Result<Held, Failure> {
    let database = url.rsplit('/').next().unwrap_or_default();
    let mut psql = world.psql(database)?;
    psql.args(["-c", "BEGIN", "-c", "SELECT txid_current()", "-c", "SELECT pg_sleep(600)"]);
    psql.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    os::die_with_parent(&mut psql, libc::SIGKILL);
    let child = psql.spawn().map_err(|error| format!("cannot start psql: {error}"))?;
    thread::sleep(Duration::from_millis(300));
    Ok(Held(child))
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
