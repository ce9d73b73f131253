//! The suite on SQLite, in memory and in a file.

use std::sync::Arc;

use semel_delivery::relay::RelayStore;
use semel_delivery::relay::store::conformance;
use semel_delivery::relay::store::sqlite::Sqlite;

use crate::world::Manual;

#[tokio::test]
async fn sqlite_in_memory_passes() {
    conformance::run(async || {
        RelayStore::new(Arc::new(Sqlite::memory(Arc::new(Manual::default())).unwrap()))
    })
    .await;
}

#[tokio::test]
async fn sqlite_in_a_file_passes() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conformance::run(async || {
        count.set(count.get() + 1);
        let path = folder.path().join(format!("{}.db", count.get()));
        RelayStore::new(Arc::new(Sqlite::open(&path, Arc::new(Manual::default())).unwrap()))
    })
    .await;
}

#[tokio::test]
async fn a_file_has_one_owner_and_keeps_what_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.db");
    let open = || Sqlite::open(&path, Arc::new(Manual::default()));
    let store = RelayStore::new(Arc::new(open().unwrap()));
    assert!(open().is_err(), "it is locked");
    store.accept(&conformance::submission("alice", "1", &[("a", 5)])).await.unwrap();
    drop(store);
    let store = RelayStore::new(Arc::new(open().unwrap()));
    assert_eq!(store.counts().await.unwrap().pending, 1);
}
