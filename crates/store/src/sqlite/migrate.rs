//! The schema and its versions. Each migration is a numbered file and runs in a transaction with its number, so that a
//! crash leaves either the old schema or the new one.

use rusqlite::Connection;

use super::error::OpenError;

/// "seml": says that this store uses the header fields of the file.
const APPLICATION_ID: i64 = 0x7365_6d6c;

/// Every migration, the first one leading to version 1.
const MIGRATIONS: &[&str] =
    &[include_str!("migrations/0001_records.sql"), include_str!("migrations/0002_operating.sql")];

/// The newest schema version that this release knows.
pub(super) const VERSION_KNOWN: i64 = MIGRATIONS.len() as i64;

/// The schema of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version that the file has; 0 where it has none, or is not there.
    pub found: i64,
    /// The newest version that this release knows.
    pub known: i64,
}

/// Which schema a file has. Changes nothing, and does not ask who owns the file.
pub fn version(path: &std::path::Path) -> Result<Version, OpenError> {
    let found = match path.try_exists()? {
        true => check(&super::connect::for_reading(path)?)?,
        false => 0,
    };
    Ok(Version { found, known: VERSION_KNOWN })
}

/// Refuses a file that is somebody else's or of a later release; otherwise says which schema it has.
pub(super) fn check(connection: &Connection) -> Result<i64, OpenError> {
    let application_id = number(connection, "application_id")?;
    let user_version = number(connection, "user_version")?;
    // An application's own file may carry the records too, as long as it leaves both header fields to the store.
    if application_id != APPLICATION_ID && (application_id != 0 || user_version != 0) {
        return Err(OpenError::Foreign { application_id, user_version });
    }
    if user_version > VERSION_KNOWN {
        return Err(OpenError::TooNew { found: user_version, known: VERSION_KNOWN });
    }
    Ok(user_version)
}

/// Brings the schema to the version of this release.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let found = check(connection)?;
    for (version, sql) in (1..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        apply(connection, version, sql)?;
    }
    Ok(())
}

fn apply(connection: &mut Connection, version: i64, sql: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(sql)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}
