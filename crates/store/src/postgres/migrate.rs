//! Brings the schema up to date: numbered files, each applied in a transaction of its own under one lock, and recorded
//! with its checksum. Refuses a schema that it does not understand. Nothing here touches rows.

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::connect::{ConnectError, Migrations};
use super::link::in_full;

/// One file.
struct Migration {
    number: i32,
    name: &'static str,
    sql: &'static str,
    /// The newest migration known to the oldest release that still works once this one is applied. Release N-1 keeps
    /// working on the schema of N, so this is at most the number of the release before.
    works_for: i32,
}

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
    Migration { number: 10, name: "forms", sql: include_str!("migrations/0010_forms.sql"), works_for: 9 },
];

/// The lock under which migrations are applied: "semel" in ASCII.
const LOCK: i64 = 0x73_65_6d_65_6c;
/// How long a migration waits for a table before it gives way to those who use it.
const LOCK_TIMEOUT_MILLIS: u32 = 5000;

const TABLE: &str = "
    CREATE SCHEMA IF NOT EXISTS semel;
    CREATE TABLE IF NOT EXISTS semel.migration (
        number     integer PRIMARY KEY,
        name       text NOT NULL,
        checksum   text NOT NULL,
        works_for  integer NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );";

/// What is recorded of one migration.
struct Applied {
    number: i32,
    checksum: String,
    works_for: i32,
}

/// One migration, as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number.
    pub number: i32,
    /// Its name.
    pub name: &'static str,
    /// What it does, as SQL.
    pub sql: &'static str,
}

/// What there is to migrate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The newest migration that is applied; 0 where there is none.
    pub found: i32,
    /// The newest that this release knows.
    pub known: i32,
    /// What is missing, in order.
    pub missing: Vec<Step>,
}

/// What would be applied. Changes nothing.
pub(super) async fn plan(client: &Client) -> Result<Plan, ConnectError> {
    let applied = applied(client).await?;
    check(&applied)?;
    let is_missing = |migration: &&Migration| !applied.iter().any(|row| row.number == migration.number);
    let step =
        |migration: &Migration| Step { number: migration.number, name: migration.name, sql: migration.sql };
    Ok(Plan {
        found: applied.iter().map(|row| row.number).max().unwrap_or(0),
        known: newest(),
        missing: MIGRATIONS.iter().filter(is_missing).map(step).collect(),
    })
}

/// Checks the schema, and applies what is missing where that is allowed. Applied before is left alone.
pub(super) async fn migrate(client: &mut Client, allowed: Migrations) -> Result<(), ConnectError> {
    let known = newest();
    let applied = applied(client).await?;
    check(&applied)?;
    let found = applied.iter().map(|row| row.number).max().unwrap_or(0);
    if MIGRATIONS.iter().all(|migration| applied.iter().any(|row| row.number == migration.number)) {
        return Ok(());
    }
    match allowed {
        Migrations::Refuse => Err(ConnectError::SchemaOlder { found, known }),
        Migrations::Apply => apply_missing(client).await,
    }
}

fn newest() -> i32 {
    MIGRATIONS.iter().map(|migration| migration.number).max().unwrap_or(0)
}

fn check(applied: &[Applied]) -> Result<(), ConnectError> {
    for row in applied {
        match MIGRATIONS.iter().find(|migration| migration.number == row.number) {
            Some(migration) if checksum(migration.sql) != row.checksum => {
                return Err(ConnectError::SchemaChanged {
                    number: migration.number,
                    name: migration.name.to_owned(),
                });
            }
            Some(_) => {}
            None if row.works_for > newest() => {
                return Err(ConnectError::SchemaNewer { found: row.number, known: newest() });
            }
            None => {}
        }
    }
    Ok(())
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn applied(client: &impl tokio_postgres::GenericClient) -> Result<Vec<Applied>, ConnectError> {
    let unreadable = |error: tokio_postgres::Error| ConnectError::Unreachable(in_full(&error));
    let there = client
        .query_one("SELECT pg_catalog.to_regclass('semel.migration') IS NOT NULL", &[])
        .await
        .map_err(unreadable)?;
    if !there.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let rows = client
        .query("SELECT number, checksum, works_for FROM semel.migration ORDER BY number", &[])
        .await
        .map_err(unreadable)?;
    Ok(rows
        .iter()
        .map(|row| Applied { number: row.get(0), checksum: row.get(1), works_for: row.get(2) })
        .collect())
}

async fn apply_missing(client: &mut Client) -> Result<(), ConnectError> {
    in_transaction(client, 0, TABLE, None).await?;
    for migration in MIGRATIONS {
        in_transaction(client, migration.number, migration.sql, Some(migration)).await?;
    }
    Ok(())
}

/// Applies one migration unless somebody else just did. The lock is held to the end of the transaction.
async fn in_transaction(
    client: &mut Client,
    number: i32,
    sql: &str,
    record: Option<&Migration>,
) -> Result<(), ConnectError> {
    let failed =
        |error: tokio_postgres::Error| ConnectError::MigrationFailed { number, why: in_full(&error) };
    let transaction = client.transaction().await.map_err(failed)?;
    // Whoever migrates at the same time is waited for; the tables' users are not kept waiting.
    let lock = format!(
        "SET LOCAL statement_timeout = 0;
         SET LOCAL lock_timeout = 0;
         SELECT pg_advisory_xact_lock({LOCK});
         SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLIS}"
    );
    transaction.batch_execute(&lock).await.map_err(failed)?;
    let Some(migration) = record else {
        transaction.batch_execute(sql).await.map_err(failed)?;
        return transaction.commit().await.map_err(failed);
    };
    let before = applied(&transaction).await?;
    check(&before)?;
    if before.iter().any(|row| row.number == number) {
        return Ok(());
    }
    transaction.batch_execute(sql).await.map_err(failed)?;
    transaction
        .execute(
            "INSERT INTO semel.migration (number, name, checksum, works_for) VALUES ($1, $2, $3, $4)",
            &[&number, &migration.name, &checksum(sql), &migration.works_for],
        )
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)
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

    #[test]
    fn a_newer_schema_is_refused_unless_it_works_for_this_release() {
        let newer = |works_for| {
            [Applied { number: newest() + 1, checksum: "of another release".to_owned(), works_for }]
        };
        assert_eq!(check(&newer(newest())), Ok(()));
        assert!(matches!(check(&newer(newest() + 1)), Err(ConnectError::SchemaNewer { .. })));
    }
}
