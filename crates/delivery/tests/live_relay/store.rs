//! The store on PostgreSQL: the suite, and what only a server with many sessions shows.

use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::Claimed;
use semel_delivery::relay::store::conformance::{self, submission};
use semel_delivery::relay::store::postgres::Postgres;

use crate::base::{Base, client};

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes() {
    let bases = std::sync::Mutex::new(Vec::new());
    conformance::run(async || {
        let base = Base::create().await;
        let store = base.store().await;
        bases.lock().unwrap().push(base);
        store
    })
    .await;
    let bases = bases.into_inner().unwrap();
    for base in bases {
        base.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replicas_open_one_database_at_once() {
    let base = Base::create().await;
    let all: Vec<_> = (0..4)
        .map(|_| {
            let url = base.url.clone();
            tokio::spawn(async move { Postgres::connect(&url, 2).await.map(drop) })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    base.drop().await;
}

/// The first takes its number and is slow; the second waits for it instead of overtaking it.
#[tokio::test(flavor = "multi_thread")]
async fn two_transactions_that_would_commit_out_of_order_lose_nothing() {
    let base = Base::create().await;
    let store = base.store().await;
    let first = store.accept(&submission("alice", "0", &[("a", 1)])).await.unwrap();
    assert!(matches!(first, Accepted::New { .. }));
    // A slow committer holds the lane's row and has taken number 2.
    let mut slow = client(&base.url).await;
    slow.batch_execute("SET search_path = semel_relay").await.unwrap();
    let slow = slow.transaction().await.unwrap();
    let lane: i64 = slow.query_one("SELECT id FROM relay_lane FOR UPDATE", &[]).await.unwrap().get(0);
    slow.batch_execute(
        "INSERT INTO relay_item (lane, seq, request, pos, principal, value, created_ms)
            SELECT id, 2, 99, 0, 'slow', 10, 0 FROM relay_lane",
    )
    .await
    .unwrap();
    let (accepting, syncing) = (store.clone(), store.clone());
    let second = tokio::spawn(async move { accepting.accept(&submission("bob", "1", &[("a", 100)])).await });
    let sync = tokio::spawn(async move { syncing.claim(lane, "me", 30_000, 100).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!second.is_finished() && !sync.is_finished(), "both wait for the lane");
    slow.commit().await.unwrap();
    second.await.unwrap().unwrap();
    let Claimed::Held(work) = sync.await.unwrap().unwrap() else { panic!("nobody else claims") };
    let values: Vec<(i64, i64)> = work.entries.iter().map(|entry| (entry.seq, entry.value)).collect();
    let order = [(1, 1), (2, 10), (3, 100)];
    assert!(values.len() >= 2 && values == order[..values.len()], "{values:?}");
    base.drop().await;
}

/// PostgreSQL has no text with a zero byte in it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_refused_takes_nobody_along() {
    let base = Base::create().await;
    let store = base.store().await;
    let all: Vec<_> = (0..30)
        .map(|number| {
            submission("alice", &format!("{number}{}", if number == 17 { "\0" } else { "" }), &[("a", 1)])
        })
        .collect();
    let told = futures_util::future::join_all(all.iter().map(|one| store.accept(one))).await;
    for (number, told) in told.into_iter().enumerate() {
        let is_as_expected = match number {
            17 => matches!(told, Err(StoreError::Failed(_))),
            _ => matches!(told, Ok(Accepted::New { .. })),
        };
        assert!(is_as_expected, "{number}");
    }
    assert_eq!(store.counts().await.unwrap().pending, 29);
    base.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_trail_cannot_be_emptied() {
    let base = Base::create().await;
    base.store().await;
    let someone = client(&base.url).await;
    let error = someone.batch_execute("TRUNCATE semel_relay.relay_audit").await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("append-only"), "{error}");
    base.drop().await;
}
