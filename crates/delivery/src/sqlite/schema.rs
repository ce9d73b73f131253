//! The schema of the outbox.

use rusqlite::Connection;
use semel_store::sqlite::engine::{Migration, Schema};

/// The outbox's schema.
pub(super) static SCHEMA: Schema = Schema {
    table: "outbox_meta",
    version: "schema_version",
    migrations: &[
        Migration { name: "outbox", sql: include_str!("../../migrations/0001_outbox.sql"), works_for: 1 },
        Migration { name: "lanes", sql: include_str!("../../migrations/0002_lanes.sql"), works_for: 2 },
        Migration {
            name: "plain_checks",
            sql: include_str!("../../migrations/0003_plain_checks.sql"),
            works_for: 3,
        },
        Migration { name: "inbox", sql: include_str!("../../migrations/0004_inbox.sql"), works_for: 3 },
        // A release that does not know the table would send what is parked.
        Migration {
            name: "signed_out",
            sql: include_str!("../../migrations/0005_signed_out.sql"),
            works_for: 5,
        },
        Migration { name: "audit", sql: include_str!("../../migrations/0006_audit.sql"), works_for: 5 },
    ],
    // Every call brings the time.
    time: None,
};

/// A number that the store keeps about itself.
pub(super) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    SCHEMA.number(connection, name)
}

/// Keeps such a number.
pub(super) fn set_meta(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    SCHEMA.set_number(connection, name, value)
}
