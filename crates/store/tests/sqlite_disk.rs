//! A disk that fails under SQLite: syncs of the log that fail, with or without what was to be synced, and writes that
//! find no room. What the store says then must be true, and what it has acknowledged must stay.

mod disk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::sqlite::SqliteStore;
use semel_store::{Answer, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement, StoreError};

use disk::{Disk, Mood};

fn id(key: &str) -> Id {
    let scope = Scope::of(None, Some("alice"), Some("create-order"));
    Id { scope, key: Key::parse(&Format::Printable255, key).expect("a printable key") }
}

fn claim_request(id: &Id) -> ClaimRequest {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: NONCE.fetch_add(1, Ordering::SeqCst),
        lease: Duration::from_secs(300),
        late: Duration::from_secs(300),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: Arc::default(),
    }
}

fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

fn settled(body: &str) -> Settlement {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Settlement::Settle(Answer { status: 200, headers: [].into(), body, outcome_unknown: false })
}

async fn recovered(store: &SqliteStore) {
    for _ in 0..500 {
        if store.ready().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store did not recover");
}

/// Claims until the store knows whether it did.
async fn claim(store: &SqliteStore, id: &Id) -> Fence {
    let requested = claim_request(id);
    loop {
        match store.claim(requested.clone()).await {
            Ok(ClaimOutcome::Won { fence, .. }) => return fence,
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => recovered(store).await,
            other => panic!("expected to win or not to know, found {other:?}"),
        }
    }
}

/// Settles until the store knows whether it did.
async fn settle(store: &SqliteStore, id: &Id, fence: Fence) {
    loop {
        match store.settle(id, fence, settled(id.key.as_str()), &lifetime()).await {
            Ok(written) => return assert_eq!(written, FencedWrite::Done, "nobody else holds it"),
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => recovered(store).await,
            Err(error) => panic!("expected not to know, found {error}"),
        }
    }
}

async fn standing(store: &SqliteStore, id: &Id) -> Standing {
    let (entry, now) = store.look_up(id).await.expect("the store answers");
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(test)
}

#[test]
fn a_failed_sync_is_an_unknown_result_and_then_the_truth() {
    run(async {
        for (mood, stays) in [(Mood::SyncFails, Standing::Claimed), (Mood::SyncLoses, Standing::Absent)] {
            let directory = tempfile::tempdir().expect("a directory");
            let disk = Disk::under(directory.path());
            let path = directory.path().join("semel.db");
            let store = SqliteStore::open(&path).expect("a new file");
            let (before, during) = (id("before"), id("during"));
            let fence = claim(&store, &before).await;
            settle(&store, &before, fence).await;
            disk.becomes(mood);
            let requested = claim_request(&during);
            let claimed = store.claim(requested.clone()).await;
            assert!(matches!(claimed, Err(StoreError::Unknown(_))), "{mood:?}: {claimed:?}");
            recovered(&store).await;
            assert_eq!(standing(&store, &before).await, Standing::Settled, "{mood:?}");
            assert_eq!(standing(&store, &during).await, stays, "{mood:?}");
            let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(requested).await else { panic!("it wins") };
            settle(&store, &during, fence).await;
            drop(store);
            let store = SqliteStore::open(&path).expect("the file again");
            assert_eq!(standing(&store, &during).await, Standing::Settled, "{mood:?}");
        }
    });
}

#[test]
fn a_log_without_room_refuses_and_loses_nothing() {
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = Disk::under(directory.path());
        let path = directory.path().join("semel.db");
        let store = SqliteStore::open(&path).expect("a new file");
        let (before, during) = (id("before"), id("during"));
        let fence = claim(&store, &before).await;
        disk.becomes(Mood::Full);
        let claimed = store.claim(claim_request(&during)).await;
        assert!(matches!(claimed, Err(StoreError::Full(_))), "{claimed:?}");
        let written = store.settle(&before, fence, settled("before"), &lifetime()).await;
        assert!(matches!(written, Err(StoreError::Full(_))), "{written:?}");
        assert_eq!(standing(&store, &during).await, Standing::Absent);
        assert_eq!(standing(&store, &before).await, Standing::Claimed);
        let ready = store.ready().await;
        assert!(matches!(ready, Err(StoreError::Full(_))), "it cannot serve: {ready:?}");
        disk.becomes(Mood::Works);
        // Nobody has to write for it.
        recovered(&store).await;
        settle(&store, &before, fence).await;
        drop(store);
        let store = SqliteStore::open(&path).expect("the file again");
        assert_eq!(standing(&store, &before).await, Standing::Settled);
        assert_eq!(standing(&store, &during).await, Standing::Absent);
    });
}

#[test]
fn nothing_acknowledged_is_lost_while_syncs_fail_again_and_again() {
    const TASKS: usize = 16;
    const REQUESTS: usize = 60;
    run(async {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = Disk::under(directory.path());
        let path = directory.path().join("semel.db");
        let store = Arc::new(SqliteStore::open(&path).expect("a new file"));
        let keys = |task: usize| (0..REQUESTS).map(move |at| id(&format!("key-{task}-{at}")));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, disk) = (Arc::clone(&store), disk.clone());
                tokio::spawn(async move {
                    for (at, id) in keys(task).enumerate() {
                        if task == 0 && at % 5 == 0 {
                            disk.becomes(if at % 2 == 0 { Mood::SyncFails } else { Mood::SyncLoses });
                        }
                        let fence = claim(&store, &id).await;
                        settle(&store, &id, fence).await;
                        assert_eq!(standing_when_ready(&store, &id).await, Standing::Settled);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        disk.becomes(Mood::Works);
        drop(store);
        let store = SqliteStore::open(&path).expect("the file again");
        for id in (0..TASKS).flat_map(keys) {
            assert_eq!(standing(&store, &id).await, Standing::Settled, "{}", id.key);
        }
        assert!(disk.failures() >= 10, "the disk did fail");
    });
}

async fn standing_when_ready(store: &SqliteStore, id: &Id) -> Standing {
    loop {
        recovered(store).await;
        match store.look_up(id).await {
            Ok((entry, now)) => return Standing::of(entry.as_ref().map(|entry| &entry.record), now),
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("expected an answer, found {error}"),
        }
    }
}
