//! A database of a test's own on the server of the tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn server() -> String {
    std::env::var("SEMEL_TEST_POSTGRES").expect("SEMEL_TEST_POSTGRES is set: run `cargo xtask test`")
}

pub(crate) fn on_server(sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
    });
}

/// A database that is dropped with this.
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Base {
    pub(crate) fn create() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("semel_serve_relay_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        on_server(&format!("CREATE DATABASE {name} TEMPLATE template0"));
        let server = server();
        let (place, settings) =
            server.split_once('?').map_or((server.as_str(), ""), |(place, rest)| (place, rest));
        let (scheme, rest) = place.split_once("://").unwrap();
        let authority = rest.split('/').next().unwrap();
        let settings = if settings.is_empty() { String::new() } else { format!("?{settings}") };
        Self { url: format!("{scheme}://{authority}/{name}{settings}"), name }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        on_server(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

pub(crate) fn until(what: &str, within: u64, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(within), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
