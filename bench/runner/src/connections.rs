//! The same at 1 and at 256 connections: what a lone client waits for, and what a crowd gets.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::Instant;

use super::contestant::{Contestant, Sends, Serves, Store};
use super::result::{Outcome, Verdict};
use super::targets::Target;
use super::world::World;
use super::{Asked, rounds};
use semel_testbed::failure::Failure;

const PASS: Serves = Serves::Gate(Store::Sqlite, 0);
const POSTGRES: Serves = Serves::Gate(Store::Postgres, 0);

const PLAIN_ALONE: &str = "plain hyper proxy, 1";
const FRESH_ALONE: &str = "gateway, fresh, SQLite, 1";
const PLAIN_CROWD: &str = "plain hyper proxy, 256";
const FRESH_CROWD: &str = "gateway, fresh, SQLite, 256";

const CONTESTANTS: &[Contestant] = &[
    Contestant::new(PLAIN_ALONE, Serves::PlainProxy, Sends::Unkeyed).over(1),
    Contestant::new("gateway, no key, 1", PASS, Sends::Unkeyed).over(1),
    Contestant::new(FRESH_ALONE, PASS, Sends::Fresh).over(1),
    Contestant::new("gateway, replay, SQLite, 1", PASS, Sends::Replays).over(1),
    Contestant::new("gateway, fresh, PostgreSQL, 1", POSTGRES, Sends::Fresh).over(1),
    Contestant::new(PLAIN_CROWD, Serves::PlainProxy, Sends::Unkeyed).over(256),
    Contestant::new("gateway, no key, 256", PASS, Sends::Unkeyed).over(256),
    Contestant::new(FRESH_CROWD, PASS, Sends::Fresh).over(256),
    Contestant::new("gateway, replay, SQLite, 256", PASS, Sends::Replays).over(256),
    Contestant::new("gateway, fresh, PostgreSQL, 256", POSTGRES, Sends::Fresh).over(256),
];

const TARGETS: &[Target] = &[Target::at_least(FRESH_CROWD, PLAIN_CROWD, 0.50).goal(0.70)];

/// Beyond two syncs of the disk and what the plain proxy takes, in microseconds.
const ALONE_US_MAX: f64 = 100.0;

pub(super) fn run(world: &mut World, asked: &Asked) -> Result<Outcome, Failure> {
    let mut outcome = rounds::play(world, asked, CONTESTANTS, TARGETS)?;
    let sync = sync_us(world.folder()).map_err(|error| format!("cannot sync: {error}"))?;
    let p50_us = |name: &str| Some(1000.0 * outcome.row(name)?.median(|sample| sample.p50_ms)?);
    if let (Some(plain), Some(fresh)) = (p50_us(PLAIN_ALONE), p50_us(FRESH_ALONE)) {
        let beyond = fresh - plain - 2.0 * sync;
        outcome.verdicts.push(Verdict {
            what: format!(
                "{FRESH_ALONE}: at most {ALONE_US_MAX:.0} µs beyond two syncs and the plain proxy (p50)"
            ),
            found: format!("{beyond:.0} µs ({fresh:.0} - {plain:.0} - 2 × {sync:.0})"),
            holds: beyond <= ALONE_US_MAX,
        });
    }
    Ok(outcome)
}

/// What one sync takes here of a page that is written over, as a log that is used again is: the median of many, in
/// microseconds.
fn sync_us(folder: &Path) -> std::io::Result<f64> {
    const PAGES: usize = 2_000;
    const PAGE: usize = 4096;
    let path = folder.join("synced");
    let mut file = File::create(&path)?;
    file.write_all(&vec![0; PAGES * PAGE])?;
    file.sync_all()?;
    file.rewind()?;
    let mut taken = Vec::with_capacity(PAGES);
    for _ in 0..PAGES {
        file.write_all(&[7; PAGE])?;
        let since = Instant::now();
        file.sync_data()?;
        taken.push(since.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(path)?;
    taken.sort_by(f64::total_cmp);
    Ok(taken[PAGES / 2])
}
