//! The layer in process: the handler's row, the record and the answer in one commit, beside the same handler without any
//! storage and, on PostgreSQL, beside the same handler and transaction without semel.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::Outcome;
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const BARE: &str = "handler without storage";
const SQLITE: &str = "layer, atomic, SQLite";
const ALONE: &str = "handler and transaction without semel, PostgreSQL";
const POSTGRES: &str = "layer, atomic, PostgreSQL";
const REPLAY: &str = "layer, replay, PostgreSQL";

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(BARE, Serves::Service(None), Sends::Fresh),
    Contestant::new(SQLITE, Serves::Service(Some(Store::Sqlite)), Sends::Fresh),
    Contestant::new("layer, replay, SQLite", Serves::Service(Some(Store::Sqlite)), Sends::Replays),
    Contestant::new(ALONE, Serves::ServiceAlone, Sends::Unkeyed),
    Contestant::new(POSTGRES, Serves::Service(Some(Store::Postgres)), Sends::Fresh),
    Contestant::new(REPLAY, Serves::Service(Some(Store::Postgres)), Sends::Replays),
];

const TARGETS: &[Target] = &[
    Target::at_least(SQLITE, BARE, 0.25).goal(0.4),
    Target::at_least(POSTGRES, ALONE, 0.45).goal(0.55),
    Target::at_least(REPLAY, POSTGRES, 3.0),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    rounds::play(world, asked, CONTESTANTS, TARGETS)
}
