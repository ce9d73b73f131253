//! The store on SQLite passes the suite, and keeps what it adds to the suite: one owner of the file, batches whose
//! members do not harm each other, handlers' closures, and the truth after a fault.

use std::future::{Future, ready};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_contract::decide::{Claim, Standing};
use semel_contract::key::{Format, Key};
use semel_contract::profile::{Lifetime, presets};
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::conformance::{AdminFixture, Fixture, TestClock};
use semel_store::sqlite::{SqliteStore, TransactOutcome};
use semel_store::{
    About, AdminStore, Answer, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement,
    StoreError,
};

#[path = "sqlite/batches.rs"]
mod batches;
#[path = "sqlite/closures.rs"]
mod closures;
#[path = "sqlite/faults.rs"]
mod faults;
#[path = "sqlite/files.rs"]
mod files;
#[path = "sqlite/keys.rs"]
mod keys;
#[path = "sqlite/recent.rs"]
mod recent;
mod upgrades;

const LEASE: Duration = Duration::from_secs(30);

/// A store in a directory of its own.
struct Sqlite {
    clock: Arc<TestClock>,
    store: Arc<SqliteStore>,
    directory: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = Arc::new(TestClock::default());
        let store = SqliteStore::open_with_clock(directory.path().join("semel.db"), Arc::clone(&clock) as _);
        Self { clock, store: Arc::new(store.expect("a new file can be opened")), directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("semel.db")
    }

    /// Closes the store and opens its file again.
    fn reopened(self) -> Self {
        let Self { clock, store, directory } = self;
        drop(Arc::try_unwrap(store).expect("nobody else uses the store"));
        let store = SqliteStore::open_with_clock(directory.path().join("semel.db"), Arc::clone(&clock) as _);
        Self { clock, store: Arc::new(store.expect("the file can be opened again")), directory }
    }
}

async fn sqlite() -> Sqlite {
    Sqlite::new()
}

impl Fixture for Sqlite {
    fn store(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.store) as _
    }

    fn advance<'a>(&'a self, by: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.clock.advance(by);
        Box::pin(ready(()))
    }

    fn set_wall_off<'a>(&'a self, millis: i64) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        self.clock.set_wall_off(millis);
        Box::pin(ready(true))
    }
}

impl AdminFixture for Sqlite {
    fn admin(&self) -> Arc<dyn AdminStore> {
        Arc::clone(&self.store) as _
    }
}

semel_store::conformance_tests!(sqlite());
semel_store::admin_conformance_tests!(sqlite());

fn id(key: &str) -> Id {
    let scope = Scope::of(None, Some("alice"), Some("create-order"));
    Id { scope, key: Key::parse(&Format::Printable255, key).expect("a printable key") }
}

fn claim_request(id: &Id, guarantee: Guarantee) -> ClaimRequest {
    static NONCE: AtomicU64 = AtomicU64::new(1);
    ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: NONCE.fetch_add(1, Ordering::SeqCst),
        lease: LEASE,
        late: LEASE,
        guarantee,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        terms: None,
        about: About { principal: "alice".to_owned(), ..About::default() }.into(),
    }
}

fn lifetime() -> Lifetime {
    presets::ietf().lifetime
}

fn answer(body: &str) -> Answer {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Answer { status: 201, headers: [].into(), body, outcome_unknown: false }
}

fn settled(body: &str) -> Settlement {
    Settlement::Settle(answer(body))
}

async fn won(store: &SqliteStore, id: &Id, guarantee: Guarantee) -> Fence {
    match store.claim(claim_request(id, guarantee)).await.expect("the store answers") {
        ClaimOutcome::Won { fence, .. } => fence,
        other => panic!("expected to win, found {other:?}"),
    }
}

async fn settle(store: &SqliteStore, id: &Id, fence: Fence, settlement: Settlement) -> FencedWrite {
    store.settle(id, fence, settlement, &lifetime()).await.expect("the store answers")
}

async fn standing(store: &SqliteStore, id: &Id) -> Standing {
    let (entry, now) = store.look_up(id).await.expect("the store answers");
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

/// Runs statements in a closure of a claim of their own, as an application would.
async fn run_sql(store: &SqliteStore, sql: &'static [&'static str]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = id(&format!("sql-{}", NEXT.fetch_add(1, Ordering::SeqCst)));
    let fence = won(store, &id, Guarantee::Atomic).await;
    let outcome = store.transact(&id, fence, &lifetime(), move |work| {
        for statement in sql {
            work.execute(statement, [])?;
        }
        Ok(((), settled("")))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Done(()))), "{sql:?}");
}

/// One number that a query gives, read in a closure that takes its writes back.
async fn number(store: &SqliteStore, sql: &'static str) -> i64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = id(&format!("number-{}", NEXT.fetch_add(1, Ordering::SeqCst)));
    let fence = won(store, &id, Guarantee::Atomic).await;
    let outcome = store.transact(&id, fence, &lifetime(), move |work| {
        Ok((work.query_row(sql, [], |row| row.get(0))?, Settlement::Release))
    });
    match outcome.await {
        Ok(TransactOutcome::Done(number)) => number,
        other => panic!("expected a number, found {other:?}"),
    }
}

/// Keeps the writer busy, so that what is asked for meanwhile becomes one batch.
struct Busy {
    go_on: std::sync::mpsc::Sender<()>,
    done: tokio::task::JoinHandle<()>,
}

impl Busy {
    async fn begin(store: &Arc<SqliteStore>, key: &str) -> Self {
        let id = id(key);
        let fence = won(store, &id, Guarantee::Atomic).await;
        let (go_on, wait) = std::sync::mpsc::channel();
        let (wait, began) = (std::sync::Mutex::new(wait), Arc::new(tokio::sync::Notify::new()));
        let (store, begins) = (Arc::clone(store), Arc::clone(&began));
        let done = tokio::spawn(async move {
            let transact = store.transact(&id, fence, &lifetime(), move |_| {
                begins.notify_one();
                let patience = Duration::from_secs(4);
                wait.lock().expect("nobody panics").recv_timeout(patience).expect("the test goes on");
                // Nothing is written for it, so that it neither counts as a commit nor needs room.
                Ok(((), Settlement::Release))
            });
            assert!(matches!(transact.await, Ok(TransactOutcome::Done(()))));
        });
        began.notified().await;
        Self { go_on, done }
    }

    async fn end(self) {
        self.go_on.send(()).expect("the writer waits");
        self.done.await.expect("the writer goes on");
    }
}

fn is_unknown<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unknown(_)))
}
