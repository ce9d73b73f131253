//! Where a broker keeps what it keeps: one SQLite file, or the schema `semel_broker` of a PostgreSQL server. Owns the
//! migrations. The engine under a file and the base under PostgreSQL are the store's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel_delivery::relay::store::postgres::{Postgres, Tables};
use semel_delivery::relay::store::sql::StoreError;
use semel_delivery::relay::store::sqlite::{OpenError, Sqlite};
use semel_store::clock::Clock;
use semel_store::postgres::Migrations;
use semel_store::postgres::base::{Migration, Schema, Session};
use semel_store::sqlite::engine::{self, Migration as FileMigration, Schema as FileSchema, TimeRows};
use tokio_postgres::Socket;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

/// The broker's tables in a file.
static FILE: FileSchema = FileSchema {
    table: "broker_meta",
    version: "schema",
    migrations: &[
        FileMigration {
            name: "broker",
            sql: concat!(
                "CREATE TABLE IF NOT EXISTS broker_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;",
                include_str!("../migrations/sqlite_0001_broker.sql")
            ),
            works_for: 1,
        },
        FileMigration {
            name: "upkeep",
            sql: include_str!("../migrations/sqlite_0002_upkeep.sql"),
            works_for: 1,
        },
        FileMigration {
            name: "operators",
            sql: include_str!("../migrations/sqlite_0003_operators.sql"),
            works_for: 1,
        },
        FileMigration {
            name: "counts",
            sql: include_str!("../migrations/sqlite_0004_counts.sql"),
            works_for: 1,
        },
        FileMigration {
            name: "reading",
            sql: include_str!("../migrations/sqlite_0005_reading.sql"),
            works_for: 1,
        },
    ],
    time: Some(TimeRows { high_water: "high_water", ticks: "ticks", boot: "boot", jump: "jump" }),
};

/// The broker's tables on a server. The lock of its migrations is "broker" in ASCII.
const TABLES: Tables = Tables {
    schema: Schema {
        name: "semel_broker",
        lock: 0x62_72_6f_6b_65_72,
        migrations: &[
            Migration {
                number: 1,
                name: "broker",
                sql: include_str!("../migrations/postgres_0001_broker.sql"),
                works_for: 1,
            },
            Migration {
                number: 2,
                name: "rights",
                sql: include_str!("../migrations/postgres_roles.sql"),
                works_for: 1,
            },
            Migration {
                number: 3,
                name: "upkeep",
                sql: include_str!("../migrations/postgres_0003_upkeep.sql"),
                works_for: 1,
            },
            Migration {
                number: 4,
                name: "operators",
                sql: include_str!("../migrations/postgres_0004_operators.sql"),
                works_for: 1,
            },
            Migration {
                number: 5,
                name: "counts",
                sql: include_str!("../migrations/postgres_0005_counts.sql"),
                works_for: 1,
            },
            Migration {
                number: 6,
                name: "reading",
                sql: include_str!("../migrations/postgres_0006_reading.sql"),
                works_for: 1,
            },
        ],
    },
    session: Session {
        statement_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        search_path: "semel_broker, pg_catalog",
        plans_off: &["enable_bitmapscan"],
    },
    application_name: "semel broker",
};

/// Opens a file, or creates it. This process owns it until the database is dropped.
///
/// # Errors
/// Another process has it, a later release wrote it, or it cannot be read.
pub fn open_file(path: &Path, clock: Arc<dyn Clock>) -> Result<Sqlite, OpenError> {
    Sqlite::open_schema(path, clock, &FILE, |_| Ok(()))
}

/// A database in memory. Nothing of it outlives it.
///
/// # Errors
/// The SQLite library refuses.
pub fn memory(clock: Arc<dyn Clock>) -> Result<Sqlite, OpenError> {
    Sqlite::memory_schema(clock, &FILE, |_| Ok(()))
}

/// What a start finds after a crash that left this image behind.
///
/// # Errors
/// It is no image of a database.
#[cfg(feature = "conformance")]
pub fn of_image(image: &[u8], clock: Arc<dyn Clock>) -> Result<Sqlite, OpenError> {
    Sqlite::of_image_schema(image, clock, &FILE, |_| Ok(()))
}

/// The newest migration of a file, 0 where there is none, and the newest that this release knows. Changes nothing.
///
/// # Errors
/// It cannot be read.
pub fn version(path: &Path) -> Result<(i64, i64), OpenError> {
    let version = engine::version(path, &FILE)?;
    Ok((version.found, version.known))
}

/// Connects to a server, and brings the schema up to date where it may.
///
/// # Errors
/// The server cannot be reached, may forget what it confirmed, or has a schema that this release does not know.
pub async fn connect<T>(
    url: &str,
    connections: usize,
    migrations: Migrations,
    tls: T,
) -> Result<Postgres, StoreError>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Postgres::connect_tables(url, connections, migrations, tls, &TABLES).await
}

/// The newest migration that is applied, and the numbers of those that are missing. Changes nothing.
///
/// # Errors
/// The server cannot be reached, or the schema is one that this release does not know.
pub async fn migration_plan<T>(url: &str, tls: T) -> Result<(i32, Vec<i32>), StoreError>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    Postgres::migration_plan_of(url, tls, &TABLES).await
}
