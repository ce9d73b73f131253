//! The schema of the claim store, and the settings of a store.

use std::time::Duration;

use super::base::{Migration, Migrations, Schema, Session};

/// The schema `semel`. Its lock is "semel" in ASCII.
pub(super) const SCHEMA: Schema = Schema { name: "semel", lock: 0x73_65_6d_65_6c, migrations: MIGRATIONS };

const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, name: "records", sql: include_str!("migrations/0001_records.sql"), works_for: 1 },
    Migration { number: 2, name: "settle", sql: include_str!("migrations/0002_settle.sql"), works_for: 1 },
    Migration { number: 3, name: "roles", sql: include_str!("migrations/0003_roles.sql"), works_for: 1 },
    Migration { number: 4, name: "budgets", sql: include_str!("migrations/0004_budgets.sql"), works_for: 3 },
    Migration {
        number: 5,
        name: "operating",
        sql: include_str!("migrations/0005_operating.sql"),
        works_for: 3,
    },
    Migration {
        number: 6,
        name: "settle_in_time",
        sql: include_str!("migrations/0006_settle.sql"),
        works_for: 5,
    },
    Migration { number: 7, name: "lean", sql: include_str!("migrations/0007_lean.sql"), works_for: 6 },
    Migration { number: 8, name: "opened", sql: include_str!("migrations/0008_opened.sql"), works_for: 7 },
    Migration { number: 9, name: "clock", sql: include_str!("migrations/0009_clock.sql"), works_for: 8 },
    Migration { number: 10, name: "forms", sql: include_str!("migrations/0010_forms.sql"), works_for: 8 },
    Migration { number: 11, name: "once", sql: include_str!("migrations/0011_once.sql"), works_for: 8 },
    Migration {
        number: 12,
        name: "once_new",
        sql: include_str!("migrations/0012_once_new.sql"),
        works_for: 8,
    },
    Migration { number: 13, name: "forget", sql: include_str!("migrations/0013_forget.sql"), works_for: 8 },
    Migration { number: 14, name: "key", sql: include_str!("migrations/0014_key.sql"), works_for: 8 },
    Migration { number: 15, name: "former", sql: include_str!("migrations/0015_former.sql"), works_for: 8 },
    Migration { number: 16, name: "watched", sql: include_str!("migrations/0016_watched.sql"), works_for: 8 },
    Migration {
        number: 17,
        name: "once_checked",
        sql: include_str!("migrations/0017_once_checked.sql"),
        works_for: 8,
    },
];

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections for requests. Besides them a store holds two for renewals and notifications, and one that listens.
    pub connections: usize,
    /// How long a statement may run.
    pub statement_timeout: Duration,
    /// How long a statement waits for a row that another transaction is writing.
    pub lock_timeout: Duration,
    /// What to do about a schema that is not there or is older.
    pub migrations: Migrations,
}

impl Options {
    /// What the store's connections are pinned to.
    pub(super) fn session(&self) -> Session {
        Session {
            statement_timeout: self.statement_timeout,
            lock_timeout: self.lock_timeout,
            search_path: "pg_catalog",
            plans_off: &["enable_material"],
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 8,
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(2),
            migrations: Migrations::Apply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_one_another_and_the_release_before_keeps_working() {
        for (place, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.number, place);
            assert!(migration.works_for <= migration.number);
        }
    }
}
