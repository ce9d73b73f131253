//! The broker on PostgreSQL, with two brokers on one database where that matters.

mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_broker::database;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sql::{Asked, Database, Heard, Listening, Row, Transaction, Value};
use semel_store::postgres::Migrations;
use suite::kit::{accepted, caller, draft};
use suite::web::Web;
use tokio_postgres::NoTls;

/// A database of one test, which goes with it.
struct Base {
    inner: Postgres,
    server: String,
    name: String,
}

impl Database for Base {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        self.inner.begin()
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        self.inner.read(sql, args)
    }

    fn now(&self) -> Asked<'_, i64> {
        self.inner.now()
    }

    fn is_owned(&self) -> bool {
        self.inner.is_owned()
    }

    fn say<'a>(&'a self, channel: &'static str, text: &'a str) -> Asked<'a, ()> {
        self.inner.say(channel, text)
    }

    fn listen(&self, channel: &'static str, heard: Heard) -> Listening<'_> {
        self.inner.listen(channel, heard)
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.unwrap();
            });
        });
        // A test that fails says why by itself.
        let _ = dropping.join();
    }
}

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
    let inner = database::connect(&url, 8, Migrations::Apply, NoTls).await.unwrap();
    assert_eq!(database::migration_plan(&url, NoTls).await.unwrap(), (2, vec![]));
    Arc::new(Base { inner, server, name })
}

on_every_database!(postgres);

/// Brokers that share a database wake each other's readers, and do not leave it to the next look.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_at_another_broker_wakes_a_reader() {
    let world = world(Settings { poll: Duration::from_secs(3600), ..Settings::default() }).await;
    let (reads, writes) = (world.another().await, world.another().await);
    let _running = [reads.start(), writes.start()];
    let web = Web::new(&World { broker: reads, ..world });
    let mut events = web.stream("/v1/meshes/m/topics/t/events", Some("bob"), None).await.unwrap();
    // Where the channel is not open at the first of them, that one is found when it is.
    for id in ["a", "b", "c"] {
        accepted(writes.publish(&caller("alice"), draft("alice", id, id)).await);
        assert_eq!(events.next().await.unwrap().data["client_message_id"], id);
    }
}
