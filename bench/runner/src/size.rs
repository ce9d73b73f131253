//! Does it slow down as records pile up? The embedded store empty, with a million and with ten million records: rate,
//! memory, and how long a start takes.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::{Outcome, Verdict};
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const MILLION: u64 = 1_000_000;
const EMPTY: &str = "fresh, SQLite, empty";
const ONE: &str = "fresh, SQLite, 1 million";
const TEN: &str = "fresh, SQLite, 10 million";
const READY_SECONDS_MAX: f64 = 5.0;
const BYTES_PER_KEY_MAX: f64 = 64.0;

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(EMPTY, Serves::Gate(Store::Sqlite, 0), Sends::Fresh),
    Contestant::new(ONE, Serves::Gate(Store::Sqlite, MILLION), Sends::Fresh),
    Contestant::new("replay, SQLite, 1 million", Serves::Gate(Store::Sqlite, MILLION), Sends::Replays),
    Contestant::new(TEN, Serves::Gate(Store::Sqlite, 10 * MILLION), Sends::Fresh),
    Contestant::new("fresh, PostgreSQL, empty", Serves::Gate(Store::Postgres, 0), Sends::Fresh),
    Contestant::new("fresh, PostgreSQL, 1 million", Serves::Gate(Store::Postgres, MILLION), Sends::Fresh),
];

const TARGETS: &[Target] = &[
    Target::at_least(TEN, EMPTY, 0.85).goal(0.95),
    Target::stall_below(TEN, 100.0),
    Target::megabytes_below(ONE, 150.0),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    // Without ten million records, and without PostgreSQL, where it must be quick.
    let contestants = if asked.quick { &CONTESTANTS[..3] } else { CONTESTANTS };
    let mut outcome = rounds::play(world, asked, contestants, TARGETS)?;
    let started: Vec<Verdict> = outcome
        .ready
        .iter()
        .filter(|(name, _)| name == ONE || name == TEN)
        .map(|(name, after)| Verdict {
            what: format!("{name}: ready within {READY_SECONDS_MAX:.0} s of its start"),
            found: format!("{:.1} s", after.as_secs_f64()),
            holds: after.as_secs_f64() < READY_SECONDS_MAX,
        })
        .collect();
    outcome.verdicts.extend(started);
    let resident: Vec<(&str, f64)> = [EMPTY, ONE, TEN]
        .into_iter()
        .filter_map(|name| Some((name, outcome.row(name)?.median(|sample| sample.resident_mb)?)))
        .collect();
    for (name, megabytes) in &resident {
        outcome.notes.push(format!("{name}: {megabytes:.0} MB resident after its runs"));
    }
    if let [_, (_, one), (_, ten)] = resident[..] {
        let bytes = (ten - one) * 1024.0 * 1024.0 / (9 * MILLION) as f64;
        outcome.verdicts.push(Verdict {
            what: format!("memory beyond a million records: at most {BYTES_PER_KEY_MAX:.0} bytes a key"),
            found: format!("{bytes:.0} bytes"),
            holds: bytes <= BYTES_PER_KEY_MAX,
        });
    }
    Ok(outcome)
}
