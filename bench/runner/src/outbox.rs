//! The outbox: accepting beside a map in memory, and draining with and without a million messages that wait.

use std::thread;
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::os;

use super::contestant::{Contestant, Sends, Serves};
use super::load;
use super::result::{Outcome, Row, Sample, Verdict};
use super::targets::Target;
use super::world::{self, World};
use super::{Asked, rounds};

const MEMORY: &str = "accept into memory";
const ORDERED: &str = "outbox accept, ordered ids";
const RANDOM: &str = "outbox accept, random ids";
const DRAIN: &str = "outbox drain";
const DRAIN_BEHIND: &str = "outbox drain, 1 million waiting";
/// Messages that are drained, the lanes they are in, and those that wait meanwhile.
const DRAINED: u64 = 5_000;
const LANES: u64 = 64;
const WAITING: u64 = 1_000_000;
const DRAIN_SECONDS_MAX: u64 = 120;

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(MEMORY, Serves::AcceptInMemory, Sends::Ordered),
    Contestant::new(ORDERED, Serves::Outbox, Sends::Ordered),
    Contestant::new(RANDOM, Serves::Outbox, Sends::Fresh),
];

const TARGETS: &[Target] =
    &[Target::at_least(ORDERED, MEMORY, 0.55).goal(0.65), Target::at_least(RANDOM, MEMORY, 0.35)];

pub(super) fn accept(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    rounds::play(world, asked, CONTESTANTS, TARGETS)
}

pub(super) fn drain(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let waiting = if asked.quick { WAITING / 10 } else { WAITING };
    let mut outboxes = Vec::new();
    for (name, backlog) in [(DRAIN, 0), (DRAIN_BEHIND, waiting)] {
        let contestant = Contestant::new(name, Serves::Outbox, Sends::Ordered);
        let running = world.start(&contestant)?;
        if backlog > 0 {
            // The first lane is paused from the start.
            load::send(
                &running,
                &["--lanes", "1", "--ids", "ordered", "--seed", "5", "--connections", "256"],
                backlog,
            )?;
        }
        let row =
            Row { name: name.to_owned(), durability: contestant.durability().to_owned(), samples: vec![] };
        outboxes.push((running, row));
    }
    let upstream = world.upstream()?;
    for round in 0..asked.rounds().min(3) {
        for (running, row) in &mut outboxes {
            let seed = (100 + round).to_string();
            for lane in 1..=LANES {
                lane_call(running.ports[0], lane, "pause")?;
            }
            // `{lane}` counts from zero, which is the lane that stays paused: these are written with another first digit.
            let lanes = LANES.to_string();
            load::send_to_lanes(running, &["--lanes", &lanes, "--ids", "ordered", "--seed", &seed], DRAINED)?;
            let before = world::effects(upstream).unwrap_or(0);
            let since = Instant::now();
            for lane in 1..=LANES {
                lane_call(running.ports[0], lane, "resume")?;
            }
            while world::effects(upstream).unwrap_or(0) < before + DRAINED {
                if let Some(signal) = os::interrupted() {
                    return Err(Failure::Interrupted(signal));
                }
                if since.elapsed() > Duration::from_secs(DRAIN_SECONDS_MAX) {
                    let sent = world::effects(upstream).unwrap_or(0) - before;
                    return Err(Failure::Failed(format!(
                        "{}: {sent} of {DRAINED} after two minutes",
                        row.name
                    )));
                }
                thread::sleep(Duration::from_millis(5));
            }
            let rate = DRAINED as f64 / since.elapsed().as_secs_f64();
            eprintln!("xtask: round {}  {:38} {rate:>8.0}/s", round + 1, row.name);
            row.samples.push(Sample { rate, ..Sample::default() });
        }
    }
    let mut outcome =
        Outcome { rows: outboxes.into_iter().map(|(_, row)| row).collect(), ..Outcome::default() };
    if let Some(ratio) = outcome.ratio(DRAIN_BEHIND, DRAIN) {
        outcome.verdicts.push(Verdict {
            what: format!("{DRAIN}: not slower with {waiting} messages waiting (at least 0.90)"),
            found: format!("{ratio:.2}"),
            holds: ratio >= 0.90,
        });
    }
    outcome.notes.push(format!(
        "{DRAINED} messages in {LANES} lanes, delivered by HTTP to a service that answers at once."
    ));
    Ok(outcome)
}

fn lane_call(port: u16, lane: u64, call: &str) -> Result<(), Failure> {
    let token = world::TOKEN;
    let head = format!(
        "POST /v1/lanes/d{:07}/{call} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\ncontent-type: application/json",
        lane - 1
    );
    world::must(port, &head, "{}").map(drop)
}
