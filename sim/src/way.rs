//! The database as one replica of the relay or of the broker sees it: slow, away, full, or unsure whether it has committed. A
//! transaction of a replica that dies is rolled back.

use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use semel_delivery::relay::store::sql::{
    Asked, Database, Heard, Listening, Row, StoreError, Transaction, Value,
};
use semel_delivery::relay::store::sqlite::Sqlite;
use tokio::time::sleep;

use crate::delivery_faults::DeliveryFault;
use crate::life::Life;
use crate::stage::{Stage, lock};

/// What the ways of a run lead through.
pub(crate) trait Ground: Deref<Target = Stage> + Send + Sync + 'static {
    /// Whether a fault happens now.
    fn strikes(&self, fault: DeliveryFault) -> bool;

    /// Whether several replicas share the database. Otherwise it is one process's file.
    fn is_shared(&self) -> bool;

    /// A sync failed: only a new start can tell what is on disk.
    fn break_file(&self);

    /// Whether only a new start can tell what is on disk.
    fn is_broken(&self) -> bool;

    /// What replicas say to each other.
    fn air(&self) -> &Air;
}

/// Those who hear what replicas say to each other.
#[derive(Default)]
pub(crate) struct Air(Mutex<Vec<(Arc<Life>, Heard)>>);

impl Air {
    /// Nobody hears anything any more. Those who did hold what they run on, and so themselves.
    pub(crate) fn close(&self) {
        lock(&self.0).clear();
    }
}

/// A transaction while it is open.
type Slot = Mutex<Option<Box<dyn Transaction>>>;
/// The same, where its replica's death can find it.
type Open = Arc<Slot>;

/// A replica's connections.
#[derive(Default)]
pub(crate) struct Connections(Mutex<Vec<Weak<Slot>>>);

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
pub(crate) struct Way<G> {
    pub(crate) world: Arc<G>,
    pub(crate) life: Arc<Life>,
    pub(crate) base: Arc<Sqlite>,
    pub(crate) connections: Arc<Connections>,
}

impl<G> Clone for Way<G> {
    fn clone(&self) -> Self {
        let Self { world, life, base, connections } = self;
        Self {
            world: Arc::clone(world),
            life: Arc::clone(life),
            base: Arc::clone(base),
            connections: Arc::clone(connections),
        }
    }
}

impl<G: Ground> Way<G> {
    /// The replica crashes.
    pub(crate) fn crash(&self, why: &str) {
        self.world.note(None, format!("{} {why}", self.life.name));
        self.life.kill();
        self.connections.break_off();
    }

    fn may_crash(&self) {
        if self.world.strikes(DeliveryFault::CrashAtWrite) {
            self.crash("crashes at a commit");
        }
    }

    async fn slow(&self) {
        if self.world.strikes(DeliveryFault::DiskSlow) {
            let time: Duration = self.world.rng(|rng| rng.millis(20, 3000));
            sleep(time).await;
        }
        self.life.awake().await;
    }

    async fn begun(&self) -> Result<Box<dyn Transaction>, StoreError> {
        self.life.awake().await;
        if self.world.is_store_away() {
            return Err(StoreError::Failed("it cannot be reached".to_owned()));
        }
        if self.world.is_broken() {
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
        let is_done = self.world.rng(|rng| rng.chance(500));
        self.world.note(None, format!("{} does not hear of its commit, done: {is_done}", self.life.name));
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
        if self.world.strikes(DeliveryFault::DiskFull) {
            drop(inner);
            return Err(StoreError::Failed("the disk is full".to_owned()));
        }
        match self.world.is_shared() {
            false if self.world.strikes(DeliveryFault::SyncFails) => {
                self.world.break_file();
                return self.uncertain(inner).await;
            }
            true if self.world.strikes(DeliveryFault::SyncFails)
                || self.world.strikes(DeliveryFault::CommitUnknown) =>
            {
                return self.uncertain(inner).await;
            }
            true if self.world.strikes(DeliveryFault::CommitLate) => {
                let after = self.world.rng(|rng| rng.millis(1, 8000));
                self.world
                    .note(None, format!("{} does not hear of its commit, which comes later", self.life.name));
                tokio::spawn(async move {
                    sleep(after).await;
                    // Whether it succeeds is for whoever asks next to find.
                    let _ = inner.commit().await;
                });
                return Err(StoreError::Unknown("nobody heard of it".to_owned()));
            }
            false | true => inner.commit().await?,
        }
        self.may_crash();
        self.slow().await;
        Ok(())
    }
}

/// One transaction of a replica.
struct Step<G> {
    way: Way<G>,
    open: Open,
}

impl<G: Ground> Transaction for Step<G> {
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

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        Box::pin(async move {
            let gone = || StoreError::Failed("the connection is gone".to_owned());
            let mut inner = lock(&self.open).take().ok_or_else(gone)?;
            let confirmed = inner.confirm_clock().await;
            *lock(&self.open) = Some(inner);
            confirmed
        })
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        Box::pin(async move { self.way.commit(&self.open).await })
    }
}

impl<G: Ground> Database for Way<G> {
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
        !self.world.is_shared()
    }

    fn say<'a>(&'a self, _: &'static str, text: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            self.life.awake().await;
            let mut all = lock(&self.world.air().0);
            all.retain(|(life, _)| !life.is_dead());
            for (_, heard) in all.iter().filter(|_| !self.world.strikes(DeliveryFault::WakeUpLost)) {
                heard(text);
            }
            Ok(())
        })
    }

    fn listen(&self, _: &'static str, heard: Heard) -> Listening<'_> {
        Box::pin(async move {
            lock(&self.world.air().0).push((Arc::clone(&self.life), heard));
            std::future::pending().await
        })
    }

    fn clock_ahead(&self) -> i64 {
        self.base.clock_ahead()
    }
}
