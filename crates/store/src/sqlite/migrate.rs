//! The schema and its versions. Each migration is a numbered file and runs in a transaction with its number, so that a
//! crash leaves either the old schema or the new one. The number is kept among the store's own rows: the header fields
//! of the file belong to the application.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension};

use super::error::OpenError;

/// One file.
struct Migration {
    name: &'static str,
    sql: &'static str,
    /// The oldest version whose release still works once this one is applied: at most the one before.
    works_for: i64,
}

/// Every migration, the first one leading to version 1.
const MIGRATIONS: &[Migration] = &[
    Migration { name: "records", sql: include_str!("migrations/0001_records.sql"), works_for: 1 },
    Migration { name: "operating", sql: include_str!("migrations/0002_operating.sql"), works_for: 1 },
    Migration { name: "audit", sql: include_str!("migrations/0003_audit.sql"), works_for: 2 },
    Migration { name: "places", sql: include_str!("migrations/0004_places.sql"), works_for: 3 },
    Migration { name: "forms", sql: include_str!("migrations/0005_forms.sql"), works_for: 4 },
];

/// The newest schema version that this release knows.
pub(super) const VERSION_KNOWN: i64 = MIGRATIONS.len() as i64;

/// The version in the file, and the oldest whose release still works with it.
const VERSION: &str = "schema_version";
const WORKS_FOR: &str = "schema_works_for";

/// The schema of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The version that the file has; 0 where it has none, or is not there.
    pub found: i64,
    /// The newest version that this release knows.
    pub known: i64,
    /// What is missing in between, by number and name.
    pub missing: Vec<(i64, &'static str)>,
}

/// Which schema a file has. Changes nothing, and does not ask who owns the file.
pub fn version(path: &std::path::Path) -> Result<Version, OpenError> {
    let found = match path.try_exists()? {
        true => check(&super::connect::for_reading(path)?)?,
        false => 0,
    };
    let all = (1..).zip(MIGRATIONS).map(|(number, migration)| (number, migration.name));
    let missing = all.filter(|(number, _)| *number > found).collect();
    Ok(Version { found, known: VERSION_KNOWN, missing })
}

/// Refuses a file of a later release that this one does not understand; otherwise says which schema it has.
pub(super) fn check(connection: &Connection) -> Result<i64, OpenError> {
    let has_rows = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'semel_meta'";
    if connection.query_row(has_rows, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    // The first version did not say so.
    let version = number(connection, VERSION)?.unwrap_or(1);
    let works_for = number(connection, WORKS_FOR)?.unwrap_or(version);
    if version > VERSION_KNOWN && works_for > VERSION_KNOWN {
        return Err(OpenError::TooNew { found: version, known: VERSION_KNOWN });
    }
    Ok(version)
}

/// Brings the schema to the version of this release.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let found = check(connection)?;
    if found >= VERSION_KNOWN {
        return Ok(());
    }
    // A migration may change the words of a constraint, which this setting is there to prevent.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
    for (version, migration) in (1..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        apply(connection, version, migration)?;
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    Ok(())
}

fn apply(connection: &mut Connection, version: i64, migration: &Migration) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(migration.sql)?;
    for (name, value) in [(VERSION, version), (WORKS_FOR, migration.works_for)] {
        let sql = "INSERT INTO semel_meta (name, value) VALUES (?1, ?2)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        transaction.execute(sql, (name, value))?;
    }
    transaction.commit()
}

fn number(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT value FROM semel_meta WHERE name = ?1";
    connection.query_row(sql, [name], |row| row.get(0)).optional()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_before_keeps_working() {
        for (version, migration) in (1..).zip(MIGRATIONS) {
            assert!(migration.works_for <= version && migration.works_for >= 1.max(version - 1), "{version}");
        }
    }
}
