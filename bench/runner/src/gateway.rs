//! The gateway at 64 connections beside what has no idempotency at all.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::Outcome;
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const NGINX: &str = "nginx";
const PLAIN: &str = "plain hyper proxy";
const PASS: &str = "gateway, no key";
const FRESH: &str = "gateway, fresh, SQLite";
const REPLAY: &str = "gateway, replay, SQLite";

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(NGINX, Serves::Nginx, Sends::Unkeyed),
    Contestant::new(PLAIN, Serves::PlainProxy, Sends::Unkeyed),
    Contestant::new(PASS, Serves::Gate(Store::Sqlite, 0), Sends::Unkeyed),
    Contestant::new(FRESH, Serves::Gate(Store::Sqlite, 0), Sends::Fresh),
    Contestant::new(REPLAY, Serves::Gate(Store::Sqlite, 0), Sends::Replays),
    Contestant::new("gateway, storm, SQLite", Serves::Gate(Store::Sqlite, 0), Sends::Storm),
    Contestant::new("gateway, fresh, PostgreSQL", Serves::Gate(Store::Postgres, 0), Sends::Fresh),
    Contestant::new("gateway, replay, PostgreSQL", Serves::Gate(Store::Postgres, 0), Sends::Replays),
    Contestant::new("two gateways, fresh, one PostgreSQL", Serves::TwoGates, Sends::Fresh),
    Contestant::new(
        "gateway, fresh, SQLite, open loop",
        Serves::Gate(Store::Sqlite, 0),
        Sends::HalfOf(FRESH),
    ),
];

const TARGETS: &[Target] = &[
    Target::at_least(PASS, PLAIN, 0.90),
    Target::at_least(FRESH, PASS, 0.50).goal(0.65),
    Target::at_least(REPLAY, PASS, 1.6),
    Target::stall_below(FRESH, 100.0),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    // A tuner asks for few figures and often.
    let contestants = if asked.quick { &CONTESTANTS[..7] } else { CONTESTANTS };
    let mut outcome = rounds::play(world, asked, contestants)?;
    outcome.judge(TARGETS);
    outcome.noisy = outcome.ratio(PLAIN, NGINX).is_some_and(|ratio| ratio < rounds::QUIET_AT_LEAST);
    Ok(outcome)
}
