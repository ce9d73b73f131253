//! The stores that are searched: filled with so many records whose keys can be told from their numbers, and thrown away again.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::programs::program;

use super::super::contestant::Store;
use super::super::install;
use super::super::world::World;

/// What the filler writes before the rest is made from one of them, and where the numbers of that begin.
const PATTERNS: &str = "1000";
const MADE_FROM: u64 = 1_000_000;
const MULTIPLY_IN_FILE: &str = include_str!("multiply.py");

/// The URL of a store with so many records: some that a gate's store has written, and the rest made from one of them, with
/// short bodies. Writing ten million by the store's own interface takes long, and twice the room.
pub(super) fn filled(world: &mut World, store: Store, records: u64) -> Result<String, Failure> {
    let url = world.store(store)?;
    eprintln!("xtask: making {records} records");
    let mut fill = Command::new(install::bench_binary());
    fill.args(["fill", "--store", &url, "--records", PATTERNS]);
    process::supervise(&mut fill, Some("filling"))?;
    match store {
        Store::Sqlite => {
            let mut make = Command::new(program("python3", "python3")?);
            make.args(["-c", MULTIPLY_IN_FILE, url.trim_start_matches("sqlite:")]);
            make.args([MADE_FROM.to_string(), records.to_string()]);
            process::supervise(&mut make, Some("filling"))?;
        }
        Store::Postgres => multiply(world, database(&url), records)?,
    }
    Ok(url)
}

/// Makes them in the database. Indexes are built afterwards: sorting ten million random hashes in, one at a time, would take an hour.
fn multiply(world: &World, database: &str, records: u64) -> Result<(), Failure> {
    let make = format!(
        "INSERT INTO semel.record SELECT made.* FROM generate_series(0, {records} - 1) AS n, pattern, \
         LATERAL jsonb_populate_record(pattern.whole, jsonb_build_object('fence', {MADE_FROM} + n, 'key', 'key-' || lpad(n::text, 32, '0'), \
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

/// The key of this number in a store that was filled, as long as a UUID.
pub(super) fn key(number: u64) -> String {
    format!("key-{number:032}")
}
