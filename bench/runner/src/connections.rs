//! The same at 1 and at 256 connections: what a lone client waits for, and what a crowd gets.

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::Outcome;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const PASS: Serves = Serves::Gate(Store::Sqlite, 0);
const POSTGRES: Serves = Serves::Gate(Store::Postgres, 0);

const CONTESTANTS: &[Contestant] = &[
    Contestant::new("plain hyper proxy, 1", Serves::PlainProxy, Sends::Unkeyed).over(1),
    Contestant::new("gateway, no key, 1", PASS, Sends::Unkeyed).over(1),
    Contestant::new("gateway, fresh, SQLite, 1", PASS, Sends::Fresh).over(1),
    Contestant::new("gateway, replay, SQLite, 1", PASS, Sends::Replays).over(1),
    Contestant::new("gateway, fresh, PostgreSQL, 1", POSTGRES, Sends::Fresh).over(1),
    Contestant::new("plain hyper proxy, 256", Serves::PlainProxy, Sends::Unkeyed).over(256),
    Contestant::new("gateway, no key, 256", PASS, Sends::Unkeyed).over(256),
    Contestant::new("gateway, fresh, SQLite, 256", PASS, Sends::Fresh).over(256),
    Contestant::new("gateway, replay, SQLite, 256", PASS, Sends::Replays).over(256),
    Contestant::new("gateway, fresh, PostgreSQL, 256", POSTGRES, Sends::Fresh).over(256),
];

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    rounds::play(world, asked, CONTESTANTS)
}
