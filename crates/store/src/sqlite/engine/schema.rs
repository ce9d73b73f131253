//! The schema of a store and its versions. Each migration is a numbered file and runs in a transaction with its number, so
//! that a crash leaves either the old schema or the new one. The number is kept among the store's own rows: the header
//! fields of the file belong to the application.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::error::OpenError;

/// One step from a version to the next.
#[derive(Debug)]
pub struct Migration {
    /// What it is about.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
    /// The oldest version whose release still works once this one is applied.
    pub works_for: i64,
}

/// The schema of one store.
#[derive(Debug)]
pub struct Schema {
    /// The table of the numbers that the store keeps about itself. The first migration creates it.
    pub table: &'static str,
    /// The number that tells the version.
    pub version: &'static str,
    /// Every migration, the first one leading to version 1.
    pub migrations: &'static [Migration],
    /// The numbers that tell the time, where the store's own clock gives it.
    pub time: Option<TimeRows>,
}

/// The names of the numbers that tell the time.
#[derive(Clone, Copy, Debug)]
pub struct TimeRows {
    /// The latest time that was given.
    pub high_water: &'static str,
    /// The ticking clock at that moment, in milliseconds.
    pub ticks: &'static str,
    /// The run of the machine that it counts.
    pub boot: &'static str,
    /// By how much the wall clock was ahead then, unbelieved.
    pub jump: &'static str,
}

/// The oldest version whose release still works with a file.
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

impl Schema {
    /// The newest version that this release knows.
    pub fn known(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX)
    }

    /// What is missing after this version.
    pub(super) fn after(&self, found: i64) -> Version {
        let all = (1..).zip(self.migrations).map(|(number, migration)| (number, migration.name));
        let missing = all.filter(|(number, _)| *number > found).collect();
        Version { found, known: self.known(), missing }
    }

    /// Refuses a file of a later release that this one does not understand; otherwise says which schema it has.
    pub(super) fn check(&self, connection: &Connection) -> Result<i64, OpenError> {
        let has_rows = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        if connection.query_row(has_rows, [self.table], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(0);
        }
        // The first version did not say so.
        let version = self.number(connection, self.version)?.unwrap_or(1);
        let works_for = self.number(connection, WORKS_FOR)?.unwrap_or(version);
        let known = self.known();
        if version > known && works_for > known {
            return Err(OpenError::TooNew { found: version, known });
        }
        Ok(version)
    }

    /// Brings the schema to the version of this release.
    ///
    /// # Errors
    /// A later release wrote it, or a statement fails.
    pub fn migrate(&self, connection: &mut Connection) -> Result<(), OpenError> {
        let found = self.check(connection)?;
        if found >= self.known() {
            return Ok(());
        }
        // A migration may change the words of a constraint, which this setting is there to prevent.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
        for (version, migration) in (1..).zip(self.migrations).filter(|(version, _)| *version > found) {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(migration.sql)?;
            self.set_number(&transaction, self.version, version)?;
            self.set_number(&transaction, WORKS_FOR, migration.works_for)?;
            transaction.commit()?;
        }
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        Ok(())
    }

    /// A number that outlives the process, where it was written.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn number(&self, connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
        let sql = format!("SELECT value FROM {} WHERE name = ?1", self.table);
        connection.prepare_cached(&sql)?.query_row([name], |row| row.get(0)).optional()
    }

    /// Writes a number that outlives the process.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_number(&self, connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
        let table = self.table;
        let sql = format!(
            "INSERT INTO {table} (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        );
        connection.prepare_cached(&sql)?.execute((name, value)).map(drop)
    }
}
