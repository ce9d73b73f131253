//! The database as one replica sees it: slow, away, full, or unsure whether it has committed. A transaction of a replica
//! that dies is rolled back.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use semel_delivery::relay::store::sql::{Asked, Database, Row, StoreError, Transaction, Value};
use semel_delivery::relay::store::sqlite::Sqlite;
use tokio::time::sleep;

use crate::life::Life;
use crate::mishap::Mishap;
use crate::relay::plan::Home;
use crate::relay::works::Works;
use crate::stage::lock;

/// A transaction while it is open.
type Slot = Mutex<Option<Box<dyn Transaction>>>;
/// The same, where its replica's death can find it.
type Open = Arc<Slot>;

/// A replica's connections.
#[derive(Default)]
pub(super) struct Connections(Mutex<Vec<Weak<Slot>>>);

impl Connections {
    fn keep(&self, open: &Open) {
        let mut all = lock(&self.0);
        all.retain(|open| open.strong_count() > 0);
        all.push(Arc::downgrade(open));
    }

    /// The replica is gone, and with it everything that it had not committed.
    fn break_off(&self) {
        for open in lock(&self.0).drain(..).filter_map(|open| open.upgrade()) {
            drop(lock(&open).take());
        }
    }
}

/// A replica's way to the database.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) works: Arc<Works>,
    pub(super) life: Arc<Life>,
    pub(super) base: Arc<Sqlite>,
    pub(super) connections: Arc<Connections>,
}

impl Way {
    /// The replica crashes.
    pub(super) fn crash(&self, why: &str) {
        self.works.note(None, format!("{} {why}", self.life.name));
        self.life.kill();
        self.connections.break_off();
    }

    fn may_crash(&self) {
        if self.works.strikes(Mishap::CrashAtWrite) {
            self.crash("crashes at a commit");
        }
    }

    async fn slow(&self) {
        if self.works.strikes(Mishap::DiskSlow) {
            let time: Duration = self.works.rng(|rng| rng.millis(20, 3000));
            sleep(time).await;
        }
        self.life.awake().await;
    }

    async fn begun(&self) -> Result<Box<dyn Transaction>, StoreError> {
        self.life.awake().await;
        if self.works.is_store_away() {
            return Err(StoreError::Failed("it cannot be reached".to_owned()));
        }
        if self.works.is_broken() {
            return Err(StoreError::Failed("a sync has failed".to_owned()));
        }
        let inner = self.base.begin().await?;
        if self.life.is_dead() {
            drop(inner);
            return std::future::pending().await;
        }
        let open: Open = Arc::new(Mutex::new(Some(inner)));
        self.connections.keep(&open);
        self.slow().await;
        Ok(Box::new(Step { way: self.clone(), open }))
    }

    /// Whether a commit that nobody heard of was done.
    async fn uncertain(&self, inner: Box<dyn Transaction>) -> Result<(), StoreError> {
        let is_done = self.works.rng(|rng| rng.chance(500));
        self.works.note(None, format!("{} does not hear of its commit, done: {is_done}", self.life.name));
        if is_done {
            inner.commit().await?;
        }
        Err(StoreError::Unknown("nobody heard of it".to_owned()))
    }

    async fn commit(&self, open: &Open) -> Result<(), StoreError> {
        self.life.awake().await;
        self.slow().await;
        self.may_crash();
        self.life.awake().await;
        let gone = || StoreError::Failed("the connection is gone".to_owned());
        let inner = lock(open).take().ok_or_else(gone)?;
        if self.works.strikes(Mishap::DiskFull) {
            drop(inner);
            return Err(StoreError::Failed("the disk is full".to_owned()));
        }
        match self.works.plan.home {
            Home::File if self.works.strikes(Mishap::SyncFails) => {
                self.works.break_file();
                return self.uncertain(inner).await;
            }
            Home::Shared(_)
                if self.works.strikes(Mishap::SyncFails) || self.works.strikes(Mishap::CommitUnknown) =>
            {
                return self.uncertain(inner).await;
            }
            Home::Shared(_) if self.works.strikes(Mishap::CommitLate) => {
                let after = self.works.rng(|rng| rng.millis(1, 8000));
                self.works
                    .note(None, format!("{} does not hear of its commit, which comes later", self.life.name));
                tokio::spawn(async move {
                    sleep(after).await;
                    // Whether it succeeds is for whoever asks next to find.
                    let _ = inner.commit().await;
                });
                return Err(StoreError::Unknown("nobody heard of it".to_owned()));
            }
            Home::File | Home::Shared(_) => inner.commit().await?,
        }
        self.may_crash();
        self.slow().await;
        Ok(())
    }
}

/// One transaction of a replica.
struct Step {
    way: Way,
    open: Open,
}

impl Transaction for Step {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            self.way.life.awake().await;
            let gone = || StoreError::Failed("the connection is gone".to_owned());
            let mut inner = lock(&self.open).take().ok_or_else(gone)?;
            let rows = inner.run(sql, args).await;
            *lock(&self.open) = Some(inner);
            rows
        })
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        Box::pin(async move { self.way.commit(&self.open).await })
    }
}

impl Database for Way {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(self.begun())
    }

    fn now(&self) -> Asked<'_, i64> {
        Box::pin(async move {
            self.life.awake().await;
            self.base.now().await
        })
    }

    fn is_owned(&self) -> bool {
        self.works.plan.home == Home::File
    }

    fn clock_ahead(&self) -> i64 {
        self.base.clock_ahead()
    }
}
