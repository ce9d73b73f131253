//! The stores that are searched: filled with so many records whose keys can be told from their numbers, and thrown away again.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;

use super::super::contestant::Store;
use super::super::install;
use super::super::world::World;

/// What the filler's keys follow from.
const FILLED_SEED: u64 = 424_242;
/// What the filler writes before the rest is made from it in the database, and where the numbers of that begin.
const PATTERNS: &str = "1000";
const MADE_FROM: u64 = 1_000_000;

/// The URL of a store with so many records.
pub(super) fn filled(world: &mut World, store: Store, records: u64) -> Result<String, Failure> {
    let url = world.store(store)?;
    let first = match store {
        Store::Sqlite => records.to_string(),
        Store::Postgres => PATTERNS.to_owned(),
    };
    eprintln!("xtask: filling {records} records");
    let mut fill = Command::new(install::bench_binary());
    fill.args(["fill", "--store", &url, "--records", &first, "--seed", &FILLED_SEED.to_string()]);
    process::supervise(&mut fill, Some("filling"))?;
    if store == Store::Postgres {
        multiply(world, database(&url), records)?;
    }
    Ok(url)
}

/// Makes so many records in the database from one that a gate's store has written, with short bodies. Indexes are built afterwards:
/// sorting ten million random hashes in, one at a time, would take an hour.
fn multiply(world: &World, database: &str, records: u64) -> Result<(), Failure> {
    let make = format!(
        "INSERT INTO semel.record SELECT made.* FROM generate_series(0, {records} - 1) AS n, pattern, \
         LATERAL jsonb_populate_record(pattern.whole, jsonb_build_object('fence', {MADE_FROM} + n, 'key', 'key-' || n, \
         'hash', '\\x' || md5('hash' || n), 'rotation', '\\x' || md5('rotation' || n), 'body', '\\x7b7d')) AS made"
    );
    sql(
        world,
        database,
        &[
            "CREATE TEMP TABLE pattern AS SELECT whole FROM semel.record AS whole LIMIT 1",
            "CREATE TEMP TABLE built AS SELECT indexdef, indexname FROM pg_indexes WHERE schemaname = 'semel' \
             AND tablename = 'record' AND indexname <> 'record_pkey'",
            "DO $$ DECLARE name text; BEGIN FOR name IN SELECT indexname FROM built LOOP \
             EXECUTE format('DROP INDEX semel.%I', name); END LOOP; END $$",
            &make,
            "SET maintenance_work_mem = '256MB'",
            "DO $$ DECLARE def text; BEGIN FOR def IN SELECT indexdef FROM built LOOP EXECUTE def; END LOOP; END $$",
            &format!("SELECT setval('semel.fence', {MADE_FROM} + {records} + 1000000)"),
            "VACUUM ANALYZE semel.record",
            "CHECKPOINT",
        ],
    )
    .map(drop)
}

/// The store is needed no more.
pub(super) fn thrown_away(world: &World, store: Store, url: &str) -> Result<(), Failure> {
    match store {
        Store::Sqlite => {
            let path = PathBuf::from(url.trim_start_matches("sqlite:"));
            fs::remove_file(&path).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
        }
        Store::Postgres => {
            sql(world, "postgres", &[&format!("DROP DATABASE {} WITH (FORCE)", database(url))]).map(drop)
        }
    }
}

/// Runs statements one after the other in one session, each in a transaction of its own.
pub(super) fn sql(world: &World, database: &str, statements: &[&str]) -> Result<String, Failure> {
    let mut psql = world.psql(database)?;
    psql.args(["-At", "-v", "ON_ERROR_STOP=1"]);
    statements.iter().for_each(|statement| {
        psql.args(["-c", statement]);
    });
    Ok(process::read(&mut psql)?)
}

/// The process whose children serve a database.
pub(super) fn postmaster(world: &World, database: &str) -> Result<u32, Failure> {
    let folder = sql(world, database, &["SHOW data_directory"])?;
    let file = PathBuf::from(folder.trim()).join("postmaster.pid");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let first = text.lines().next().and_then(|line| line.trim().parse().ok());
    first.ok_or_else(|| Failure::Failed(format!("{} has no number", file.display())))
}

pub(super) fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

/// The key of this number in a filled store: those that the filler makes on SQLite follow from its seed.
pub(super) fn key(store: Store, number: u64) -> String {
    match store {
        Store::Sqlite => {
            let (high, low) = (mix(FILLED_SEED, number), mix(FILLED_SEED ^ 0x5bd1_e995, number));
            let (high, low) = ((high & !0xf000) | 0x4000, (low & !(3 << 62)) | (2 << 62));
            let hex = format!("{high:016x}{low:016x}");
            format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
        }
        Store::Postgres => format!("key-{number}"),
    }
}

/// Two rounds of splitmix64, as in the filler.
fn mix(seed: u64, number: u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    (0..2).fold(number.wrapping_add(seed.wrapping_mul(STEP)).wrapping_mul(STEP), |z, _| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_filler() {
        assert_eq!(key(Store::Sqlite, 0).len(), 36);
        assert_ne!(key(Store::Sqlite, 0), key(Store::Sqlite, 1));
        assert_eq!(&key(Store::Sqlite, 5)[14..15], "4");
    }
}
