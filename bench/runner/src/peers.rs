//! The gateway beside others that promise something of the kind.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::Outcome;
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const SQLITE: &str = "gateway, fresh, SQLite";
const POSTGRES: &str = "gateway, fresh, PostgreSQL";
const AXUM: &str = "axum-idempotent, fresh, PostgreSQL";
const PROXY: &str = "idempotent-proxy-server, fresh, Redis";

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(SQLITE, Serves::Gate(Store::Sqlite, 0), Sends::Fresh),
    Contestant::new(POSTGRES, Serves::Gate(Store::Postgres, 0), Sends::Fresh),
    Contestant::new(AXUM, Serves::AxumIdempotent, Sends::Fresh),
    Contestant::new(PROXY, Serves::IdempotentProxy, Sends::Fresh),
    Contestant::new("Restate, fresh", Serves::Restate, Sends::Fresh),
    Contestant::new("gateway, replay, PostgreSQL", Serves::Gate(Store::Postgres, 0), Sends::Replays),
    Contestant::new("axum-idempotent, replay, PostgreSQL", Serves::AxumIdempotent, Sends::Replays),
    Contestant::new("idempotent-proxy-server, replay, Redis", Serves::IdempotentProxy, Sends::Replays),
];

const TARGETS: &[Target] = &[
    Target::at_least(SQLITE, PROXY, 2.0).goal(3.0),
    Target::at_least(POSTGRES, PROXY, 1.0).goal(1.5),
    Target::at_least(POSTGRES, AXUM, 2.5).goal(4.0),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let contestants = if asked.quick { &CONTESTANTS[..5] } else { CONTESTANTS };
    let mut outcome = rounds::play(world, asked, contestants, TARGETS)?;
    outcome
        .notes
        .push("axum-idempotent runs its handler in process; the gateways forward to a service.".to_owned());
    Ok(outcome)
}
