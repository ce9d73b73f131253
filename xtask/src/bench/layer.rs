//! The layer in process: the handler's row, the record and the answer in one commit, beside the same handler without any
//! storage.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::Outcome;
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use crate::failure::Failure;

const BARE: &str = "handler without storage";
const SQLITE: &str = "layer, atomic, SQLite";

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(BARE, Serves::Service(None), Sends::Fresh),
    Contestant::new(SQLITE, Serves::Service(Some(Store::Sqlite)), Sends::Fresh),
    Contestant::new("layer, replay, SQLite", Serves::Service(Some(Store::Sqlite)), Sends::Replays),
    Contestant::new("layer, atomic, PostgreSQL", Serves::Service(Some(Store::Postgres)), Sends::Fresh),
];

const TARGETS: &[Target] = &[Target::at_least(SQLITE, BARE, 0.25).goal(0.4)];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let mut outcome = rounds::play(world, asked, CONTESTANTS)?;
    outcome.judge(TARGETS);
    Ok(outcome)
}
