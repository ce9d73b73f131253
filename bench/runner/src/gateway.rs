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
const ONE_BY_ONE: &str = "gateway, fresh, SQLite, 64 connections by hyper";
const STREAMS: &str = "gateway, fresh, SQLite, 4 HTTP/2 connections with 16 streams";
const PASS_ONE_BY_ONE: &str = "gateway, no key, 64 connections by hyper";
const PASS_STREAMS: &str = "gateway, no key, 4 HTTP/2 connections with 16 streams";

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
    Contestant::new(ONE_BY_ONE, Serves::Gate(Store::Sqlite, 0), Sends::Fresh).by_hyper(64, 1),
    Contestant::new(STREAMS, Serves::Gate(Store::Sqlite, 0), Sends::Fresh).by_hyper(4, 16),
    Contestant::new(PASS_ONE_BY_ONE, Serves::Gate(Store::Sqlite, 0), Sends::Unkeyed).by_hyper(64, 1),
    Contestant::new(PASS_STREAMS, Serves::Gate(Store::Sqlite, 0), Sends::Unkeyed).by_hyper(4, 16),
    Contestant::new(
        "gateway, fresh, SQLite, open loop",
        Serves::Gate(Store::Sqlite, 0),
        Sends::HalfOf(FRESH),
    ),
];

const TARGETS: &[Target] = &[
    Target::at_least(PASS, PLAIN, 1.0).goal(1.1),
    Target::at_least(PASS, NGINX, 0.80).goal(0.9),
    Target::at_least(FRESH, PLAIN, 0.40).goal(0.60),
    Target::at_least(REPLAY, PLAIN, 1.6).goal(2.0),
    Target::at_least(STREAMS, ONE_BY_ONE, 0.8).goal(1.0),
    Target::at_least(PASS_STREAMS, PASS_ONE_BY_ONE, 0.8).goal(1.0),
    Target::bytes_at_most(FRESH, 5_000.0, 1_500.0),
    Target::stall_below(FRESH, 100.0),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    // A tuner asks for few figures and often.
    let contestants = if asked.quick { &CONTESTANTS[..7] } else { CONTESTANTS };
    let mut outcome = rounds::play(world, asked, contestants, TARGETS)?;
    outcome.noisy = outcome.ratio(PLAIN, NGINX).is_some_and(|ratio| ratio < rounds::QUIET_AT_LEAST);
    Ok(outcome)
}
