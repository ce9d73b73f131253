//! The schema and its versions. Each migration is a numbered file and runs in one transaction with its number.

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use semel_store::sqlite::OpenError;

const MIGRATIONS: [&str; 3] = [
    include_str!("../../migrations/0001_outbox.sql"),
    include_str!("../../migrations/0002_lanes.sql"),
    include_str!("../../migrations/0003_plain_checks.sql"),
];

const VERSION: &str = "schema_version";

/// A file that is not a database, or a damaged one, is left as it is.
pub(super) fn refuse_damage(connection: &Connection) -> Result<(), OpenError> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(OpenError::Corrupt(found)) }
}

/// Brings the schema to the version of this release.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let found = version(connection)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(OpenError::TooNew { found, known });
    }
    for (number, sql) in (1_i64..).zip(MIGRATIONS).filter(|(number, _)| *number > found) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        set_meta(&transaction, VERSION, number)?;
        transaction.commit()?;
    }
    Ok(())
}

/// The version of a file, 0 where there is none, and that of this release.
pub(super) fn versions(path: &std::path::Path) -> Result<(i64, i64), OpenError> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let found = match path.try_exists()? {
        true => version(&Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?)?,
        false => 0,
    };
    Ok((found, known))
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    let has_rows = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox_meta'";
    if connection.query_row(has_rows, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    Ok(meta(connection, VERSION)?.unwrap_or(1))
}

/// A number that the store keeps about itself.
pub(super) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached("SELECT value FROM outbox_meta WHERE name = ?1")?;
    statement.query_row([name], |row| row.get(0)).optional()
}

/// Keeps such a number.
pub(super) fn set_meta(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outbox_meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    connection.prepare_cached(sql)?.execute((name, value)).map(|_| ())
}
