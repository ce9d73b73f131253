//! A database for each test, on the server that the environment names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_delivery::relay::RelayStore;
use semel_delivery::relay::store::postgres::Postgres;
use tokio_postgres::{Client, NoTls};

/// A database of its own.
pub(crate) struct Base {
    pub(crate) url: String,
    name: String,
}

fn server() -> String {
    std::env::var("SEMEL_TEST_POSTGRES").expect("SEMEL_TEST_POSTGRES is set: run `cargo xtask test`")
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Base {
    pub(crate) async fn create() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("semel_relay_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        client(&server())
            .await
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .unwrap();
        let server = server();
        let (rest, query) =
            server.split_once('?').map_or((server.as_str(), String::new()), |(a, b)| (a, format!("?{b}")));
        let at = rest.rfind('/').filter(|at| *at > "postgres://x".len()).unwrap_or(rest.len());
        Self { url: format!("{}/{name}{query}", &rest[..at]), name }
    }

    pub(crate) async fn store(&self) -> RelayStore {
        RelayStore::new(Arc::new(Postgres::connect(&self.url, 8).await.unwrap()))
    }

    /// The user, the address of the server and the name of the database.
    pub(crate) fn parts(&self) -> (String, (String, u16), String) {
        let config: tokio_postgres::Config = self.url.parse().unwrap();
        let host = match config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.clone(),
            Some(tokio_postgres::config::Host::Unix(_)) | None => "127.0.0.1".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        (config.get_user().unwrap_or("postgres").to_owned(), (host, port), self.name.clone())
    }

    pub(crate) async fn drop(self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        client(&server()).await.batch_execute(&sql).await.unwrap();
    }
}
