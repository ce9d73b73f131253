//! A sync that fails below the files of outbox and relay gets the answer that it gets below the claims: unknown, then not
//! ready, then recovered, by itself. Nothing that was acknowledged is lost, and nothing is done twice.

#[path = "../../store/tests/disk/mod.rs"]
mod disk;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, Mood};
use semel_contract::time::Timestamp;
use semel_delivery::envelope::Draft;
use semel_delivery::judge::{Ended, To, Verdict};
use semel_delivery::message::Progress;
use semel_delivery::relay::RelayStore;
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::sqlite::Sqlite;
use semel_delivery::relay::store::{
    FencedWrite as RelayWritten, Intent, StoreError as RelayError, conformance,
};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::store::{Arrived, FencedWrite, Find, Head, OutboxStore, Room, StoreError, Terms};
use semel_delivery::{HeadPolicy, Request, Status};
use semel_store::clock::SystemClock;

const ROOM: Room = Room { rows: 100_000, bytes: 1 << 30 };
const TASKS: usize = 8;
const MESSAGES: usize = 30;
const LEASE_MS: i64 = 60_000;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn draft(id: &str) -> Draft {
    Draft {
        client_message_id: id.to_owned(),
        is_callers: true,
        client_tx_id: format!("tx-{id}"),
        fingerprint: [7; 32],
        principal: "default".to_owned(),
        lane: format!("lane-{id}"),
        logical_key: None,
        operation: None,
        profile: String::new(),
        client_generated_at: at(5),
        request: Request::json("POST", "/x", "{}"),
    }
}

fn done() -> Verdict {
    Verdict {
        to: To::Done(Vec::new()),
        at: at(30),
        ended: Some(Ended { outcome: "answered", status: Some(201) }),
        error: None,
        ambiguous: false,
        deduplicated: false,
        progress: Progress::default(),
        answer: None,
        head: HeadPolicy::Skip,
    }
}

async fn accept(store: &SqliteStore, id: &str) -> Result<Arrived, StoreError> {
    store.accept(draft(id), at(10), 1, ROOM).await
}

/// Asks until there is an answer that holds.
async fn ask<T, E, F: Future<Output = Result<T, E>>>(mut asked: impl FnMut() -> F) -> T {
    for _ in 0..2000 {
        if let Ok(answer) = asked().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store did not recover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_outbox_it_is_an_unknown_result_and_then_the_truth() {
    for (mood, stays) in [(Mood::SyncFails, true), (Mood::SyncLoses, false)] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::under(folder.path());
        let path = folder.path().join("outbox.db");
        let store = SqliteStore::open(&path).unwrap();
        assert!(matches!(accept(&store, "before").await, Ok(Arrived::New(_))));
        disk.becomes(mood);
        let during = accept(&store, "during").await;
        assert!(matches!(during, Err(StoreError::Unknown(_))), "{mood:?}: {during:?}");
        ask(|| store.ready()).await;
        let find = async |id: &str| ask(|| store.find(Find::Id(id.to_owned()))).await;
        assert!(find("before").await.is_some(), "{mood:?}");
        assert_eq!(find("during").await.is_some(), stays, "{mood:?}");
        let again = accept(&store, "during").await.unwrap();
        assert_eq!(matches!(again, Arrived::Known { .. }), stays, "{mood:?}: {again:?}");
        drop(store);
        let store = SqliteStore::open(&path).unwrap();
        assert!(store.find(Find::Id("during".to_owned())).await.unwrap().is_some(), "{mood:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_says_nothing_until_it_has_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("outbox.db")).unwrap();
    assert!(matches!(accept(&store, "before").await, Ok(Arrived::New(_))));
    store.faults().hold_recovery(true);
    store.faults().lose_next_commit(true);
    assert!(matches!(accept(&store, "during").await, Err(StoreError::Unknown(_))));
    assert!(matches!(store.ready().await, Err(StoreError::Failed(_))), "it is not ready");
    assert!(matches!(store.find(Find::Id("during".to_owned())).await, Err(StoreError::Failed(_))));
    assert!(matches!(accept(&store, "after").await, Err(StoreError::Failed(_))), "it accepts nothing");
    store.faults().hold_recovery(false);
    ask(|| store.ready()).await;
    assert!(matches!(accept(&store, "during").await, Ok(Arrived::Known { .. })));
    assert!(matches!(accept(&store, "after").await, Ok(Arrived::New(_))));
}

/// One message from its arrival to its end, whatever the disk does. An attempt is made only under a claim that was
/// acknowledged. Returns the numbers of the fences.
async fn deliver(store: &SqliteStore, id: &str) -> Vec<u64> {
    ask(|| accept(store, id)).await;
    let mut fences = Vec::new();
    let lane = format!("lane-{id}");
    loop {
        let terms = Terms { now: at(20), lease_until: at(25), nonce: 1 };
        match store.claim(&lane, terms).await {
            Ok(Head::Claimed(row, _)) => {
                let fence = row.fence.expect("a claim has a fence");
                fences.push(fence.number);
                match ask(|| store.settle(row.id, fence, done())).await {
                    FencedWrite::Done(_) => return fences,
                    // An answer that was lost said so already.
                    FencedWrite::Stale => {
                        let row = ask(|| store.find(Find::Id(id.to_owned()))).await.expect("it is there");
                        assert_eq!(row.status, Status::Done, "{id}: nobody else holds it");
                        return fences;
                    }
                }
            }
            // A claim of unknown result is there: nothing was sent under it, and it is given back.
            Ok(Head::Stuck) => {
                let row = ask(|| store.find(Find::Id(id.to_owned()))).await.expect("it is there");
                if let Some(fence) = row.fence {
                    ask(|| store.put_back(row.id, fence)).await;
                }
            }
            Ok(other) => panic!("{id}: expected to claim it, found {other:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outbox_loses_nothing_and_settles_once_while_syncs_fail_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::under(folder.path());
    let path = folder.path().join("outbox.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let ids = |task: usize| (0..MESSAGES).map(move |at| format!("m-{task}-{at}"));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, disk) = (Arc::clone(&store), disk.clone());
            tokio::spawn(async move {
                let mut fences = Vec::new();
                for (at, id) in ids(task).enumerate() {
                    if task == 0 && at % 3 == 0 {
                        disk.becomes(if at % 2 == 0 { Mood::SyncFails } else { Mood::SyncLoses });
                    }
                    fences.extend(deliver(&store, &id).await);
                }
                fences
            })
        })
        .collect();
    let mut fences = Vec::new();
    for task in tasks {
        fences.extend(task.await.unwrap());
    }
    disk.becomes(Mood::Works);
    let given = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), given, "no fence is given twice");
    assert!(disk.failures() >= 8, "the disk did fail");
    drop(Arc::try_unwrap(store).unwrap());
    let store = SqliteStore::open(&path).unwrap();
    for id in (0..TASKS).flat_map(ids) {
        let row = store.find(Find::Id(id.clone())).await.unwrap().unwrap_or_else(|| panic!("{id} is gone"));
        assert_eq!(row.status, Status::Done, "{id}");
    }
}

fn relay(path: &std::path::Path) -> (Arc<Sqlite>, RelayStore) {
    let file = Arc::new(Sqlite::open(path, Arc::new(SystemClock)).unwrap());
    (Arc::clone(&file), RelayStore::new(file))
}

fn batch(lo: i64, hi: i64) -> Intent {
    Intent {
        principal: "alice".to_owned(),
        lo,
        hi,
        before: Some(0),
        after: Some(7),
        version: None,
        key: "batch".to_owned(),
        request: "bytes".to_owned(),
        tries: 1,
        first: 1,
        last: 2,
        evidence: "[]".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_relay_it_is_an_unknown_result_and_then_the_truth() {
    for (mood, stays) in [(Mood::SyncFails, true), (Mood::SyncLoses, false)] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::under(folder.path());
        let path = folder.path().join("relay.db");
        let (file, store) = relay(&path);
        store.start().await.unwrap();
        let submission = |key: &str| conformance::submission("alice", key, &[(key, 7)]);
        let Ok(Accepted::New { lanes, .. }) = store.accept(&submission("before")).await else {
            panic!("it is new")
        };
        disk.becomes(mood);
        let during = store.accept(&submission("during")).await;
        assert!(matches!(during, Err(RelayError::Unknown(_))), "{mood:?}: {during:?}");
        ask(|| store.ping()).await;
        assert!(matches!(store.accept(&submission("before")).await, Ok(Accepted::Known { .. })), "{mood:?}");
        let again = store.accept(&submission("during")).await.unwrap();
        assert_eq!(matches!(again, Accepted::Known { .. }), stays, "{mood:?}: {again:?}");

        // A batch is frozen before it is sent: one of unknown result is found, or was never there.
        let Ok(LaneClaim::Held(work)) = store.claim(lanes[0], "w", LEASE_MS, 10).await else {
            panic!("it is claimed")
        };
        disk.becomes(mood);
        let hi = work.entries.last().expect("it waits").seq;
        let frozen = store.freeze(&work.hold, &batch(work.lane.watermark, hi)).await;
        assert!(matches!(frozen, Err(RelayError::Unknown(_))), "{mood:?}: {frozen:?}");
        ask(|| store.ping()).await;
        let detail = ask(|| store.detail(lanes[0])).await.expect("the lane is there");
        assert_eq!(detail.intent.is_some(), stays, "{mood:?}");
        if !stays {
            assert_eq!(
                store.freeze(&work.hold, &batch(work.lane.watermark, hi)).await,
                Ok(RelayWritten::Done)
            );
        }
        let settled = store.applied(&work.hold, Reducer::Sum, 0, "answered").await.unwrap();
        assert_eq!(settled.written, RelayWritten::Done, "the hold is still its own");
        drop((store, file));
        let (_file, store) = relay(&path);
        assert!(matches!(store.accept(&submission("during")).await, Ok(Accepted::Known { .. })), "{mood:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_says_nothing_until_it_has_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (file, store) = relay(&folder.path().join("relay.db"));
    store.start().await.unwrap();
    let submission = |key: &str| conformance::submission("alice", key, &[(key, 7)]);
    file.faults().hold_recovery(true);
    file.faults().lose_next_commit(true);
    assert!(matches!(store.accept(&submission("during")).await, Err(RelayError::Unknown(_))));
    assert!(matches!(store.ping().await, Err(RelayError::Failed(_))), "it is not ready");
    assert!(matches!(store.accept(&submission("after")).await, Err(RelayError::Failed(_))));
    file.faults().hold_recovery(false);
    ask(|| store.ping()).await;
    assert!(matches!(store.accept(&submission("during")).await, Ok(Accepted::Known { .. })));
    assert!(matches!(store.accept(&submission("after")).await, Ok(Accepted::New { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_without_room_is_not_ready_and_then_ready_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::under(folder.path());
    let outbox = SqliteStore::open(&folder.path().join("outbox.db")).unwrap();
    let (_file, relay) = relay(&folder.path().join("relay.db"));
    let submission = conformance::submission("alice", "key", &[("lane", 7)]);
    disk.becomes(Mood::Full);
    assert!(matches!(accept(&outbox, "m").await, Err(StoreError::DiskFull(_))));
    assert!(matches!(relay.accept(&submission).await, Err(RelayError::Failed(_))));
    assert!(matches!(outbox.ready().await, Err(StoreError::DiskFull(_))));
    assert!(matches!(relay.ping().await, Err(RelayError::Failed(_))));
    disk.becomes(Mood::Works);
    // Nothing has to be written for it.
    ask(|| outbox.ready()).await;
    ask(|| relay.ping()).await;
    assert!(matches!(accept(&outbox, "m").await, Ok(Arrived::New(_))));
    assert!(matches!(relay.accept(&submission).await, Ok(Accepted::New { .. })));
}
