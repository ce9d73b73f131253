//! The broker on SQLite, in memory and in a file.

mod suite;

use std::sync::Arc;

use semel_broker::{Broker, Parts, Published, database};
use semel_delivery::relay::store::sql::Database;
use semel_store::clock::SystemClock;

async fn memory() -> Arc<dyn Database> {
    Arc::new(database::memory(Arc::new(SystemClock)).unwrap())
}

on_every_database!(memory);

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_what_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.db");
    let open = || Arc::new(database::open_file(&path, Arc::new(SystemClock)).unwrap()) as Arc<dyn Database>;
    assert_eq!(database::version(&path).unwrap().0, 0);
    let first = {
        let world = World::new(open(), Settings::default()).await;
        accepting::fifty_parallel_first_sends_are_one_message(world).await;
        let parts = Parts::new(open());
        let broker = Broker::open(parts, Settings::default()).await.unwrap();
        let caller = suite::kit::caller("alice");
        match broker.publish(&caller, suite::kit::draft("alice", "one", "x")).await {
            Published::Duplicate(receipt) => receipt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first.client_message_id, "one");
    let version = database::version(&path).unwrap();
    assert_eq!(version.0, version.1);
}

#[tokio::test]
async fn a_retention_below_seven_days_does_not_open() {
    let settings =
        Settings { dedupe_retention: std::time::Duration::from_secs(6 * 86_400), ..Settings::default() };
    let error = Broker::open(Parts::new(memory().await), settings).await.unwrap_err();
    assert!(error.to_string().contains("at least 7 days"), "{error}");
}
