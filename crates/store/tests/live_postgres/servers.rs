//! Servers of their own, for what one test may not do to the server of the others: to run without `fsync`, to die.

use std::time::{Duration, Instant};

use semel_store::postgres::{ConnectError, Options, PostgresStore};
use semel_store::{ClaimStore, FencedWrite};

use crate::fixture::{answer, claim_request, entry, id, lifetime, settled, won};
use crate::server::{Server, spawn};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_fsync_is_refused() {
    let server = Server::start(&["fsync=off"]).await;
    let error =
        PostgresStore::connect(&server.url(), Options::default()).await.map(drop).expect_err("refused");
    assert_eq!(error, ConnectError::NotDurable { setting: "fsync", value: "off".to_owned() });
    assert!(error.to_string().contains("set fsync=on in postgresql.conf"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_and_returns_has_what_was_acknowledged() {
    let mut server = Server::start(&["fsync=on"]).await;
    let store = PostgresStore::connect(&server.url(), Options::default()).await.expect("the store opens");
    let (done, open) = (id("done"), id("open"));
    let fence = won(&store, claim_request(&done)).await;
    assert_eq!(store.settle(&done, fence, settled("kept"), &lifetime()).await, Ok(FencedWrite::Done));
    let held = won(&store, claim_request(&open)).await;
    server.kill();
    assert!(store.ready().await.is_err(), "it says that it is not ready");
    server.child = spawn(server.folder.path(), server.port, &["fsync=on"]);
    server.wait().await;
    let started = Instant::now();
    while store.ready().await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "it does not recover by itself");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = entry(&store, &done).await;
    assert_eq!((found.record.fence, found.answer), (fence, Some(answer("kept"))));
    assert_eq!(store.settle(&open, held, settled("late"), &lifetime()).await, Ok(FencedWrite::Done));
    let next = won(&store, claim_request(&id("next"))).await;
    assert!(next.number > held.number, "numbers are not given again after a crash");
}
