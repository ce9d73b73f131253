//! The broker on PostgreSQL, with two brokers on one database where that matters.

mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_broker::database;
use semel_delivery::relay::store::sql::Database;
use semel_store::postgres::Migrations;
use tokio_postgres::NoTls;

/// A database for each test, on the server that the environment names.
async fn postgres() -> Arc<dyn Database> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let server =
        std::env::var("SEMEL_TEST_POSTGRES").expect("SEMEL_TEST_POSTGRES is set: run `cargo xtask test`");
    let name = format!("semel_broker_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
    let (rest, query) =
        server.split_once('?').map_or((server.as_str(), String::new()), |(a, b)| (a, format!("?{b}")));
    let at = rest.rfind('/').filter(|at| *at > "postgres://x".len()).unwrap_or(rest.len());
    let url = format!("{}/{name}{query}", &rest[..at]);
    let plan = database::migration_plan(&url, NoTls).await.unwrap();
    assert_eq!(plan, (0, vec![1, 2]));
    let db = database::connect(&url, 8, Migrations::Apply, NoTls).await.unwrap();
    assert_eq!(database::migration_plan(&url, NoTls).await.unwrap(), (2, vec![]));
    Arc::new(db)
}

on_every_database!(postgres);
