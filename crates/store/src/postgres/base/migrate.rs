//! Brings the schema up to date: numbered files, each applied in a transaction of its own under one lock, and recorded
//! with its checksum. Refuses a schema that it does not understand. Nothing here touches rows.

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::{ConnectError, Migrations, error_chain};

/// One file.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; they follow one another from 1.
    pub number: i32,
    /// Its name.
    pub name: &'static str,
    /// What it does, as SQL.
    pub sql: &'static str,
    /// The newest migration known to the oldest release that still works once this one is applied. Release N-1 keeps
    /// working on the schema of N, so this is at most the number of the release before.
    pub works_for: i32,
}

/// A schema that is kept up to date by numbered migrations.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Its name.
    pub name: &'static str,
    /// The lock under which its migrations are applied.
    pub lock: i64,
    /// Its migrations, in order.
    pub migrations: &'static [Migration],
}

/// How long a migration waits for a table before it gives way to those who use it.
const LOCK_TIMEOUT_MILLIS: u32 = 5000;

/// The table of a schema's migrations. The relay's of earlier releases has no names.
fn table(schema: &Schema) -> String {
    let name = schema.name;
    format!(
        "CREATE SCHEMA IF NOT EXISTS {name};
        CREATE TABLE IF NOT EXISTS {name}.migration (
            number     integer PRIMARY KEY,
            name       text NOT NULL DEFAULT '',
            checksum   text NOT NULL,
            works_for  integer NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
        );
        ALTER TABLE {name}.migration ADD COLUMN IF NOT EXISTS name text NOT NULL DEFAULT '';"
    )
}

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
pub async fn plan(schema: &Schema, client: &Client) -> Result<Plan, ConnectError> {
    let applied = applied(schema, client).await?;
    check(schema, &applied)?;
    let is_missing = |migration: &&Migration| !applied.iter().any(|row| row.number == migration.number);
    let step =
        |migration: &Migration| Step { number: migration.number, name: migration.name, sql: migration.sql };
    Ok(Plan {
        found: applied.iter().map(|row| row.number).max().unwrap_or(0),
        known: newest(schema),
        missing: schema.migrations.iter().filter(is_missing).map(step).collect(),
    })
}

/// Checks the schema, and applies what is missing where that is allowed. Applied before is left alone.
pub(super) async fn migrate(
    schema: &Schema,
    client: &mut Client,
    allowed: Migrations,
) -> Result<(), ConnectError> {
    let Plan { found, known, missing } = plan(schema, client).await?;
    if missing.is_empty() {
        return Ok(());
    }
    match allowed {
        Migrations::Refuse => Err(ConnectError::SchemaOlder { schema: schema.name, found, known }),
        Migrations::Apply => apply_missing(schema, client).await,
    }
}

fn newest(schema: &Schema) -> i32 {
    schema.migrations.iter().map(|migration| migration.number).max().unwrap_or(0)
}

fn check(schema: &Schema, applied: &[Applied]) -> Result<(), ConnectError> {
    let known = newest(schema);
    for row in applied {
        match schema.migrations.iter().find(|migration| migration.number == row.number) {
            Some(migration) if checksum(migration.sql) != row.checksum => {
                return Err(ConnectError::SchemaChanged {
                    schema: schema.name,
                    number: migration.number,
                    name: migration.name.to_owned(),
                });
            }
            Some(_) => {}
            None if row.works_for > known => {
                return Err(ConnectError::SchemaNewer { schema: schema.name, found: row.number, known });
            }
            None => {}
        }
    }
    Ok(())
}

fn checksum(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn applied(
    schema: &Schema,
    client: &impl tokio_postgres::GenericClient,
) -> Result<Vec<Applied>, ConnectError> {
    let unreadable = |error: tokio_postgres::Error| ConnectError::Unreachable(error_chain(&error));
    let there = client
        .query_one(
            "SELECT pg_catalog.to_regclass($1::text) IS NOT NULL",
            &[&format!("{}.migration", schema.name)],
        )
        .await
        .map_err(unreadable)?;
    if !there.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let rows = client
        .query(
            &format!("SELECT number, checksum, works_for FROM {}.migration ORDER BY number", schema.name),
            &[],
        )
        .await
        .map_err(unreadable)?;
    Ok(rows
        .iter()
        .map(|row| Applied { number: row.get(0), checksum: row.get(1), works_for: row.get(2) })
        .collect())
}

async fn apply_missing(schema: &Schema, client: &mut Client) -> Result<(), ConnectError> {
    in_transaction(schema, client, None).await?;
    for migration in schema.migrations {
        in_transaction(schema, client, Some(migration)).await?;
    }
    Ok(())
}

/// Applies one migration unless somebody else just did, or without one makes the table of migrations. The lock is held to
/// the end of the transaction.
async fn in_transaction(
    schema: &Schema,
    client: &mut Client,
    migration: Option<&Migration>,
) -> Result<(), ConnectError> {
    let number = migration.map_or(0, |migration| migration.number);
    let failed = |error: tokio_postgres::Error| ConnectError::MigrationFailed {
        schema: schema.name,
        number,
        why: error_chain(&error),
    };
    let transaction = client.transaction().await.map_err(failed)?;
    // Whoever migrates at the same time is waited for; the tables' users are not kept waiting.
    let lock = format!(
        "SET LOCAL statement_timeout = 0;
         SET LOCAL lock_timeout = 0;
         SELECT pg_advisory_xact_lock({});
         SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLIS}",
        schema.lock
    );
    transaction.batch_execute(&lock).await.map_err(failed)?;
    let Some(migration) = migration else {
        transaction.batch_execute(&table(schema)).await.map_err(failed)?;
        return transaction.commit().await.map_err(failed);
    };
    let before = applied(schema, &transaction).await?;
    check(schema, &before)?;
    if before.iter().any(|row| row.number == number) {
        return Ok(());
    }
    transaction.batch_execute(migration.sql).await.map_err(failed)?;
    let record = format!(
        "INSERT INTO {}.migration (number, name, checksum, works_for) VALUES ($1, $2, $3, $4)",
        schema.name
    );
    transaction
        .execute(&record, &[&number, &migration.name, &checksum(migration.sql), &migration.works_for])
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_schema_is_refused_unless_it_works_for_this_release() {
        const FILE: Migration = Migration { number: 1, name: "one", sql: "SELECT 1", works_for: 1 };
        let schema = Schema { name: "any", lock: 0, migrations: &[FILE] };
        let newer = |works_for| [Applied { number: 2, checksum: "of another release".to_owned(), works_for }];
        assert_eq!(check(&schema, &newer(1)), Ok(()));
        assert!(matches!(check(&schema, &newer(2)), Err(ConnectError::SchemaNewer { schema: "any", .. })));
    }
}
