//! The wall clock is set while nobody runs: a write that may still be applied late keeps its whole window, and nothing that
//! was accepted is forgotten early.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use semel_contract::time::Timestamp;
use semel_delivery::relay::RelayStore;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::sqlite::Sqlite;
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::store::{Intent, conformance};
use semel_store::clock::{Clock, Reading};

use crate::world::START;

const HOUR: i64 = 3_600_000;

/// Clocks of a machine that is started, and whose wall clock is set.
#[derive(Default)]
struct Machine {
    ticks: AtomicI64,
    wall_ahead: AtomicI64,
    boot: AtomicU64,
}

impl Machine {
    fn new() -> Arc<Self> {
        Arc::new(Self { boot: AtomicU64::new(1), ..Self::default() })
    }

    fn pass(&self, millis: i64) {
        self.ticks.fetch_add(millis, Ordering::SeqCst);
    }

    fn set_forward(&self, millis: i64) {
        self.wall_ahead.fetch_add(millis, Ordering::SeqCst);
    }

    fn start_anew(&self) {
        self.boot.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for Machine {
    fn read(&self) -> Reading {
        let ticks = self.ticks.load(Ordering::SeqCst);
        let wall = START + ticks + self.wall_ahead.load(Ordering::SeqCst);
        let ticks = Duration::from_millis(u64::try_from(ticks).unwrap());
        Reading { wall: Timestamp::from_millis(wall), ticks }
    }

    fn boot(&self) -> u64 {
        self.boot.load(Ordering::SeqCst)
    }
}

fn open(path: &Path, machine: &Arc<Machine>) -> RelayStore {
    RelayStore::new(Arc::new(Sqlite::open(path, Arc::clone(machine) as _).unwrap()))
}

/// Freezes a batch, which may then have been sent. Returns its lane.
async fn frozen(store: &RelayStore) -> i64 {
    let made = conformance::submission("alice", "1", &[("a", 5)]);
    let Accepted::New { lanes, .. } = store.accept(&made).await.unwrap() else { panic!("it is new") };
    let LaneClaim::Held(work) = store.claim(lanes[0], "w", 1000, 10).await.unwrap() else {
        panic!("it waits")
    };
    let now = store.now().await.unwrap();
    let batch = Intent {
        principal: "alice".to_owned(),
        lo: 0,
        hi: 1,
        before: Some(0),
        after: Some(5),
        version: None,
        key: "k".to_owned(),
        request: "bytes".to_owned(),
        tries: 1,
        first: now,
        last: now,
        evidence: "[]".to_owned(),
    };
    store.freeze(&work.hold, &batch).await.unwrap();
    lanes[0]
}

/// How long ago the batch may have gone out last.
async fn age(store: &RelayStore, lane: i64) -> i64 {
    let detail = store.detail(lane).await.unwrap().unwrap();
    store.now().await.unwrap() - detail.intent.unwrap().last
}

#[tokio::test]
async fn a_clock_that_was_set_forward_between_two_runs_makes_nothing_older() {
    let folder = tempfile::tempdir().unwrap();
    let (path, machine) = (folder.path().join("relay.db"), Machine::new());
    let store = open(&path, &machine);
    let lane = frozen(&store).await;
    machine.pass(3000);
    drop(store);
    machine.set_forward(HOUR);
    machine.pass(2000);
    let store = open(&path, &machine);
    assert_eq!(age(&store, lane).await, 5000, "as much as has passed");
    assert_eq!(
        store.clock_ahead(),
        HOUR,
        "and perhaps this as well, after which a server may have forgotten a key"
    );
    machine.pass(20_000);
    assert_eq!(age(&store, lane).await, 25_000);
}

#[tokio::test]
async fn after_a_start_of_the_machine_a_write_may_still_be_late() {
    let folder = tempfile::tempdir().unwrap();
    let (path, machine) = (folder.path().join("relay.db"), Machine::new());
    let store = open(&path, &machine);
    let lane = frozen(&store).await;
    drop(store);
    machine.set_forward(HOUR);
    machine.start_anew();
    let store = open(&path, &machine);
    assert!(store.now().await.unwrap() < START + HOUR, "nothing explains the wall clock");
    assert!(store.clock_ahead() > 0, "so nothing is swept");
    assert_eq!(age(&store, lane).await, 0, "and nobody knows how long it was");
    machine.pass(4000);
    drop(store);
    assert_eq!(age(&open(&path, &machine), lane).await, 4000, "the next start of the process does know");
}

#[tokio::test]
async fn a_request_is_not_forgotten_because_the_clock_was_set_between_two_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (path, machine) = (folder.path().join("relay.db"), Machine::new());
    let store = open(&path, &machine);
    let lane = frozen(&store).await;
    let claimed = store.claim(lane, "w", 1000, 10).await.unwrap();
    assert!(matches!(claimed, LaneClaim::Busy { .. }));
    store.start().await.unwrap();
    let LaneClaim::Held(work) = store.claim(lane, "w", 1000, 10).await.unwrap() else { panic!("it waits") };
    store.applied(&work.hold, semel_delivery::relay::reduce::Reducer::Sum, 0, "answered").await.unwrap();
    drop(store);
    machine.set_forward(400 * 24 * HOUR);
    let store = open(&path, &machine);
    store.sweep(&Retention::default()).await.unwrap();
    let again = store.accept(&conformance::submission("alice", "1", &[("a", 5)])).await.unwrap();
    assert!(matches!(again, Accepted::Known { .. }), "{again:?}");
}
