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

// S2-109
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

#[tokio::test]
async fn a_file_of_a_later_release_is_opened_if_this_one_can_work_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.db");
    let open = || Sqlite::open(&path, Arc::new(Manual::default())).map(drop);
    open().unwrap();
    let later = |works_for: i64| {
        let file = semel_store::sqlite::rusqlite::Connection::open(&path).unwrap();
        let set = |name: &str, value: i64| {
            file.execute("UPDATE relay_meta SET value = ?2 WHERE name = ?1", (name, value)).unwrap();
        };
        set("schema", 9);
        set("schema_works_for", works_for);
    };
    later(1);
    open().unwrap();
    later(9);
    assert!(open().unwrap_err().to_string().contains("later release"));
}

#[tokio::test]
async fn a_file_of_version_1_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.db");
    std::fs::write(&path, include_bytes!("../fixtures/relay-1.db")).unwrap();
    let open = || RelayStore::new(Arc::new(Sqlite::open(&path, Arc::new(Manual::default())).unwrap()));
    let store = open();
    store.start().await.unwrap();
    conformance::upgraded(&store).await;
    drop(store);
    conformance::submitted(&open()).await;
}
