//! Keeps lanes moving: works on those that are due, releases what new credentials allow, sweeps. One for each process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::engine::{Engine, LaneOutcome};
use super::finder::Finder;
use super::hints::{Hints, NoHints, Taken as Hint};
use super::share::{Share, WAITING_MAX};
use super::store::StoreError;
use super::store::accept::Submission;
use super::store::sweep::Retention;

/// How long a lane that is due waits at most until somebody looks, unless the settings say otherwise.
pub const POLL: Duration = Duration::from_secs(1);
/// However often it is woken, this long passes from one look to the next.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(5);
/// How often credentials are compared with those that were refused.
const CREDENTIALS_EVERY: Duration = Duration::from_secs(15);
/// How often the store is swept.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// How often a waiting answer looks whether its request is done elsewhere.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Keeps lanes moving.
#[derive(Debug)]
pub struct Worker {
    engine: Arc<Engine>,
    retention: Retention,
    /// What each target may have under way at once, and what waits for that: a target that hangs holds up no other.
    shares: BTreeMap<String, Share>,
    /// For lanes whose target is not configured.
    others: Share,
    busy: Mutex<BTreeSet<i64>>,
    /// The targets of lanes that were worked on.
    targets: Mutex<HashMap<i64, String>>,
    /// Lanes that are due and could not be worked on: another has them, or the store failed. Looked at again with every poll.
    again: Mutex<BTreeSet<i64>>,
    wake: Notify,
    stopping: AtomicBool,
    hints: Arc<dyn Hints>,
    poll: Duration,
}

/// A lane that this process works on, until this is dropped.
struct Taken {
    worker: Arc<Worker>,
    lane: i64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.worker.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.lane);
    }
}

impl Worker {
    /// A worker with so many lanes at a time, shared out evenly among the targets.
    pub fn new(engine: Arc<Engine>, retention: Retention, parallel: usize) -> Arc<Self> {
        Self::hinted(engine, retention, parallel, Arc::new(NoHints), POLL)
    }

    /// The same with hints from and to other replicas, and another pause between two looks at the store.
    pub fn hinted(
        engine: Arc<Engine>,
        retention: Retention,
        parallel: usize,
        hints: Arc<dyn Hints>,
        poll: Duration,
    ) -> Arc<Self> {
        let share = (parallel / engine.targets.len().max(1)).max(1);
        let shares = engine.targets.keys().map(|name| (name.clone(), Share::new(share))).collect();
        Arc::new(Self {
            engine,
            retention,
            shares,
            others: Share::new(1),
            busy: Mutex::default(),
            targets: Mutex::default(),
            again: Mutex::default(),
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
            hints,
            poll,
        })
    }

    /// Works until it is stopped.
    pub async fn run(self: Arc<Self>) {
        let (mut credentials, mut sweep) = (Instant::now(), Instant::now());
        let mut finder = Finder::default();
        while !self.stopping.load(Ordering::SeqCst) {
            let looked = Instant::now();
            let pause = self.start_due(&mut finder).await.unwrap_or_else(|error| {
                tracing::error!(%error, "the store does not answer; trying again");
                self.poll
            });
            if credentials.elapsed() >= CREDENTIALS_EVERY {
                credentials = Instant::now();
                if let Err(error) = self.engine.release_renewed().await {
                    tracing::error!(%error, "failed to look for new credentials");
                }
            }
            if sweep.elapsed() >= SWEEP_EVERY {
                sweep = Instant::now();
                match self.engine.store.sweep(&self.retention).await {
                    Ok(swept) => {
                        self.engine.meters.failed.add(swept.given_up.try_into().unwrap_or(0));
                        tracing::info!(?swept, "swept");
                    }
                    Err(error) => tracing::error!(%error, "failed to sweep"),
                }
            }
            let _ = tokio::time::timeout(pause, self.wake.notified()).await;
            tokio::time::sleep_until(looked + LOOK_AT_MOST_EVERY).await;
        }
    }

    /// Takes no more lanes, and waits for those that are worked on. Returns how many are left.
    pub async fn stop(&self, within: Duration) -> usize {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake.notify_one();
        let shares = || self.shares.values().chain([&self.others]);
        let ended = async {
            for share in shares() {
                let all = u32::try_from(share.size).unwrap_or(u32::MAX);
                let _ = share.permits.acquire_many(all).await;
            }
        };
        let _ = tokio::time::timeout(within, ended).await;
        shares().map(|share| share.size - share.permits.available_permits()).sum()
    }

    /// Begins to work on what is due, and says how long nobody need look.
    async fn start_due(self: &Arc<Self>, finder: &mut Finder) -> Result<Duration, StoreError> {
        loop {
            let found = finder.look(&self.engine.store).await?;
            let again = match found.is_poll {
                true => std::mem::take(&mut *self.again.lock().unwrap_or_else(PoisonError::into_inner)),
                false => BTreeSet::new(),
            };
            let (pause, is_more) = (found.pause(self.poll), found.is_more);
            let mut left = found.lanes.into_iter().chain(again);
            while let Some(lane) = left.next() {
                if self.stopping.load(Ordering::SeqCst) {
                    return Ok(self.poll);
                }
                let target = self.target_of(lane).await.inspect_err(|_| {
                    // Whoever has looked for them does not look there again soon.
                    self.look_again(lane);
                    left.by_ref().for_each(|lane| self.look_again(lane));
                })?;
                self.start_one(lane, target.as_deref());
            }
            if !is_more {
                return Ok(pause);
            }
        }
    }

    /// The target of a lane, which never changes.
    async fn target_of(&self, lane: i64) -> Result<Option<String>, StoreError> {
        if self.shares.len() == 1 {
            return Ok(self.shares.keys().next().cloned());
        }
        if let Some(target) = self.targets.lock().unwrap_or_else(PoisonError::into_inner).get(&lane) {
            return Ok(Some(target.clone()));
        }
        let found = self.engine.store.target_of(lane).await?;
        if let Some(target) = &found {
            let mut known = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= WAITING_MAX {
                known.clear();
            }
            known.insert(lane, target.clone());
        }
        Ok(found)
    }

    fn share_of(&self, target: Option<&str>) -> &Share {
        target.and_then(|target| self.shares.get(target)).unwrap_or(&self.others)
    }

    /// Begins to work on a lane, or leaves it waiting until its target has room. Says whether it has begun.
    fn start_one(self: &Arc<Self>, lane: i64, target: Option<&str>) -> bool {
        if self.works_on(&[lane]) {
            return false;
        }
        let Some(permit) = self.share_of(target).take(lane) else { return false };
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(lane);
        let taken = Taken { worker: Arc::clone(self), lane };
        let target = target.map(str::to_owned);
        tokio::spawn(async move {
            let worker = Arc::clone(&taken.worker);
            worker.work(taken, permit).await;
            worker.start_waiting(target.as_deref());
        });
        true
    }

    /// Gives room that came free to the next lane of this target.
    fn start_waiting(self: &Arc<Self>, target: Option<&str>) {
        while !self.stopping.load(Ordering::SeqCst) {
            let Some(next) = self.share_of(target).next() else { return };
            if self.start_one(next, target) {
                return;
            }
        }
    }

    async fn work(&self, taken: Taken, permit: OwnedSemaphorePermit) {
        let lane = taken.lane;
        if self.hints.take(lane).await == Hint::Elsewhere {
            return self.look_again(lane);
        }
        let outcome = self.engine.sync_all_due(lane).await;
        self.hints.give(lane).await;
        drop((taken, permit));
        match outcome {
            Ok(LaneOutcome::Idle) => {}
            // It stays due while another works on it.
            Ok(LaneOutcome::Busy) => self.look_again(lane),
            // What came while the last turn ended must not wait for the poll, neither here nor elsewhere.
            Ok(_) => {
                self.wake.notify_one();
                self.hints.wake();
            }
            Err(error) => {
                tracing::error!(%error, lane, "a lane is left until its lease ends");
                self.look_again(lane);
            }
        }
    }

    fn look_again(&self, lane: i64) {
        self.again.lock().unwrap_or_else(PoisonError::into_inner).insert(lane);
    }

    /// Something may be due now, as somebody else says.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until a request is done, or as long as its target says. Returns whether it is.
    ///
    /// # Errors
    /// The store failed.
    pub async fn wait(
        &self,
        submission: &Submission,
        request: i64,
        lanes: &[i64],
    ) -> Result<bool, StoreError> {
        let Some(target) = self.engine.targets.get(&submission.target) else { return Ok(false) };
        let ends = Instant::now() + target.sync_deadline;
        self.wake();
        self.hints.wake();
        loop {
            let told = self.engine.settled.notified();
            if self.engine.store.is_done(request).await? {
                return Ok(true);
            }
            // Who is told to stop writes no more, but for what it has begun: the answer says that it is accepted.
            if self.stopping.load(Ordering::SeqCst) && !self.works_on(lanes) {
                return Ok(false);
            }
            // A lane that must wait for longer than the answer does needs no waiting for.
            let now = self.engine.store.now().await?;
            let left = i64::try_from(ends.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(0);
            if left == 0 || self.engine.store.none_due(lanes, now + left).await? {
                return Ok(false);
            }
            let pause = LOOK_EVERY.min(ends.saturating_duration_since(Instant::now()));
            let _ = tokio::time::timeout(pause, told).await;
        }
    }

    fn works_on(&self, lanes: &[i64]) -> bool {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().any(|lane| busy.contains(lane))
    }

    /// Works on a lane at once, for callers who want to see what became of it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn sync(&self, lane: i64) -> Result<LaneOutcome, StoreError> {
        self.engine.sync_all(lane).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entropy;
    use crate::credentials::NoCredentials;
    use crate::relay::debounce::{Debounce, Mode};
    use crate::relay::meters::Meters;
    use crate::relay::store::RelayStore;
    use crate::relay::store::accept::{Accepted, NewItem};
    use crate::relay::store::sql::{Asked, Database, Row, Transaction, Value};
    use crate::relay::store::sqlite::Sqlite;
    use semel_store::clock::SystemClock;

    /// A database that cannot say of which target a lane is.
    struct Forgetful(Sqlite);

    impl Database for Forgetful {
        fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
            self.0.begin()
        }

        fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
            if sql.starts_with("SELECT target FROM relay_lane") {
                return Box::pin(async { Err(StoreError::Failed("away".to_owned())) });
            }
            self.0.read(sql, args)
        }

        fn now(&self) -> Asked<'_, i64> {
            self.0.now()
        }

        fn is_owned(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn lanes_that_were_found_are_not_forgotten_when_the_store_fails() {
        let clock = Arc::new(SystemClock);
        let database = Forgetful(Sqlite::memory(clock.clone()).unwrap());
        let engine = Engine {
            store: RelayStore::new(Arc::new(database)),
            targets: BTreeMap::new(),
            credentials: Arc::new(NoCredentials),
            entropy: Entropy::system(),
            clock,
            owner: "one".to_owned(),
            meters: Meters::default(),
            settled: Notify::new(),
        };
        let item = |lane: &str| NewItem {
            lane: lane.to_owned(),
            group: String::new(),
            label: None,
            session: None,
            value: 1,
        };
        let quiet = Duration::from_secs(1);
        let submission = Submission {
            target: "t".to_owned(),
            principal: "ann".to_owned(),
            key: "k".to_owned(),
            fingerprint: String::new(),
            mode: Mode::Interactive,
            debounce: Debounce { quiet, max_wait: quiet },
            groups: true,
            items: ["a", "b", "c"].map(item).into(),
            age: None,
        };
        let Accepted::New { lanes, .. } = engine.store.accept(&submission).await.unwrap() else { panic!() };
        let worker = Worker::new(Arc::new(engine), Retention::default(), 4);
        worker.start_due(&mut Finder::default()).await.unwrap_err();
        let again: Vec<i64> = worker.again.lock().unwrap().iter().copied().collect();
        assert_eq!(again, lanes, "all three are looked at again");
    }
}
