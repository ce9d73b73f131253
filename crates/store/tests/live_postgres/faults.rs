//! Connections that break at the worst moment. Whatever breaks: what was acknowledged is there, nothing happens twice,
//! and what is not known is said.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel_contract::decide::Claim;
use semel_contract::record::{Fence, State};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement, StoreError};

use crate::fixture::{Database, answer, claim_request, entry, id, lifetime, settled, won};
use crate::proxy::{Loses, Proxy};

async fn through(database: &Database, proxy: &Proxy, connections: usize) -> Arc<PostgresStore> {
    let options = Options { connections, ..Options::default() };
    let store = PostgresStore::connect(&database.url_at(proxy.port), options).await.expect("the store opens");
    // Statements are prepared and connections made, so that a cut meets the statement that is meant.
    for _ in 0..4 {
        let id = id("warm");
        let fence = won(&store, claim_request(&id)).await;
        store.settle(&id, fence, settled("x"), &lifetime()).await.expect("the store answers");
    }
    Arc::new(store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_request_or_reply_is_resolved_and_nothing_happens_twice() {
    let database = Database::create().await;
    let proxy = Proxy::start(database.address()).await;
    let (store, direct) = (through(&database, &proxy, 2).await, database.store(1).await);
    for round in 0..12 {
        let loses = if round % 2 == 0 { Loses::Reply } else { Loses::Request };
        let id = id("cut");
        proxy.cut(id.key.as_str().as_bytes(), loses);
        let fence = won(&store, claim_request(&id)).await;
        assert_eq!(entry(&direct, &id).await.record.fence, fence, "{loses:?} of a claim");
        proxy.cut(&id.hash(), loses);
        let settlement = if round % 4 < 2 { settled("kept") } else { Settlement::Release };
        let written = store.settle(&id, fence, settlement.clone(), &lifetime()).await;
        assert_eq!(written, Ok(FencedWrite::Done), "{loses:?} of a settlement");
        let found = direct.look_up(&id).await.expect("the store answers").0;
        match settlement.state() {
            State::Settled => assert_eq!(found.expect("it is kept").answer, Some(answer("kept"))),
            _ => assert!(found.is_none(), "it is released"),
        }
    }
    assert_eq!(proxy.cuts(), 24, "every cut met its statement");
}

/// The orphaned session is still at work when the claim is made again: only a locking write waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphaned_session_that_still_commits_is_waited_for() {
    let database = Database::create().await;
    let proxy = Proxy::start(database.address()).await;
    let store = through(&database, &proxy, 2).await;
    database.slow_down().await;
    let id = id("slow");
    proxy.cut(id.key.as_str().as_bytes(), Loses::Reply);
    let fence = won(&store, claim_request(&id)).await;
    proxy.cut(&id.hash(), Loses::Reply);
    assert_eq!(store.settle(&id, fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Done));
    assert_eq!(proxy.cuts(), 2);
    let found = entry(&store, &id).await;
    assert_eq!((found.record.fence, found.answer), (fence, Some(answer("x"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacing_claim_whose_commit_is_lost_is_resolved() {
    let database = Database::create().await;
    let proxy = Proxy::start(database.address()).await;
    let store = through(&database, &proxy, 2).await;
    for loses in [Loses::Reply, Loses::Request] {
        let id = id("rerun");
        let first = won(&store, claim_request(&id)).await;
        assert_eq!(store.settle(&id, first, Settlement::Unknown, &lifetime()).await, Ok(FencedWrite::Done));
        proxy.cut(b"COMMIT", loses);
        let rerun = ClaimRequest { how: Claim::Rerun, replaces: Some(first), ..claim_request(&id) };
        let second = won(&store, rerun).await;
        assert_eq!(entry(&store, &id).await.record.fence, second, "{loses:?}");
    }
    assert_eq!(proxy.cuts(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_found_out_in_time_is_unknown_and_the_same_call_tells_later() {
    let database = Database::create().await;
    let proxy = Proxy::start(database.address()).await;
    let (store, direct) = (through(&database, &proxy, 1).await, database.store(1).await);
    let id = id("unknown");
    let requested = claim_request(&id);
    // The one connection is cut, and no other leads to the server any more.
    proxy.cut(id.key.as_str().as_bytes(), Loses::Reply);
    proxy.close(true);
    let started = Instant::now();
    let claimed = store.claim(requested.clone()).await;
    assert!(matches!(claimed, Err(StoreError::Unknown(_))), "{claimed:?}");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let claimed = store.claim(claim_request(&id)).await;
    assert!(matches!(claimed, Err(StoreError::Unavailable(_))), "this one was never sent: {claimed:?}");
    proxy.close(false);
    let found = entry(&direct, &id).await;
    assert_eq!(won(&store, requested).await, found.record.fence, "it had won");
    assert_eq!(store.settle(&id, found.record.fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Done));
}

/// One client of the storm: claims its key, and settles it if it won. An unknown outcome is asked for again.
async fn stormed(store: &PostgresStore, id: &Id, wins: &AtomicU32) -> Option<Fence> {
    let requested = claim_request(id);
    let fence = loop {
        match store.claim(requested.clone()).await {
            Ok(ClaimOutcome::Won { fence, .. }) => break fence,
            Ok(
                ClaimOutcome::Known { .. }
                | ClaimOutcome::Changed
                | ClaimOutcome::CredentialChanged
                | ClaimOutcome::Entered,
            ) => {
                return None;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    wins.fetch_add(1, Ordering::SeqCst);
    let body = format!("{fence}");
    loop {
        match store.settle(id, fence, settled(&body), &lifetime()).await {
            Ok(FencedWrite::Done) => return Some(fence),
            Ok(FencedWrite::Superseded) => panic!("{fence} was superseded, yet its lease is long"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_ended_in_a_storm_lose_nothing_and_double_nothing() {
    let database = Database::create().await;
    let stores = [database.store(4).await, database.store(4).await];
    let stop = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn({
        let (client, stop) = (database.client().await, Arc::clone(&stop));
        async move {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'semel' AND random() < 0.4";
            let mut killed = 0;
            while !stop.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(25)).await;
                let row = client.query_one(sql, &[]).await.expect("sessions can be ended");
                killed += row.get::<_, i64>(0);
            }
            killed
        }
    });
    let started = Instant::now();
    let mut acknowledged = BTreeMap::new();
    let mut keys = 0;
    while started.elapsed() < Duration::from_secs(3) {
        let round: Vec<_> = (0..32)
            .map(|_| {
                let (id, wins) = (id("storm"), Arc::new(AtomicU32::new(0)));
                let clients: Vec<_> = stores
                    .iter()
                    .map(|store| {
                        let (store, id, wins) = (Arc::clone(store), id.clone(), Arc::clone(&wins));
                        tokio::spawn(async move { stormed(&store, &id, &wins).await })
                    })
                    .collect();
                (id, wins, clients)
            })
            .collect();
        for (id, wins, clients) in round {
            keys += 1;
            for client in clients {
                if let Some(fence) = client.await.expect("no client panics") {
                    acknowledged.insert(id.clone(), fence);
                }
            }
            assert_eq!(wins.load(Ordering::SeqCst), 1, "{id:?} is won once");
        }
    }
    stop.store(true, Ordering::SeqCst);
    let killed = killer.await.expect("no panic");
    println!("{keys} keys, {} settlements acknowledged, {killed} sessions ended", acknowledged.len());
    assert!(killed > 20, "it was a storm: {killed}");
    assert_eq!(acknowledged.len(), keys);
    let fresh = database.store(2).await;
    for (id, fence) in acknowledged {
        let found = entry(&fresh, &id).await;
        assert_eq!((found.record.fence, found.answer), (fence, Some(answer(&fence.to_string()))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_recovers_by_itself_when_all_its_sessions_were_ended() {
    let database = Database::create().await;
    let store = database.store(4).await;
    let id = id("before");
    let fence = won(&store, claim_request(&id)).await;
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'semel'";
    database.client().await.execute(sql, &[]).await.expect("sessions can be ended");
    assert_eq!(store.settle(&id, fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Done));
    assert_eq!(store.ready().await, Ok(()));
    let fence = won(&store, claim_request(&crate::fixture::id("after"))).await;
    assert!(fence.number > 0);
}
