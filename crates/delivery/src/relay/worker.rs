//! Keeps lanes moving: works on those that are due, releases what new credentials allow, sweeps. One for each process.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::engine::{Engine, Synced};
use super::finder::Finder;
use super::hints::{Hints, NoHints, Taken as Hint};
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
    permits: Arc<Semaphore>,
    parallel: usize,
    busy: Mutex<BTreeSet<i64>>,
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
    /// A worker with so many lanes at a time.
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
        Arc::new(Self {
            engine,
            retention,
            permits: Arc::new(Semaphore::new(parallel)),
            parallel,
            busy: Mutex::default(),
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
        let all = u32::try_from(self.parallel).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(within, self.permits.acquire_many(all)).await;
        self.parallel - self.permits.available_permits()
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
            for lane in found.lanes.into_iter().chain(again) {
                if !self.start_one(lane).await {
                    return Ok(self.poll);
                }
            }
            if !is_more {
                return Ok(pause);
            }
        }
    }

    /// Begins to work on a lane as soon as there is room. Says whether more may be begun.
    async fn start_one(self: &Arc<Self>, lane: i64) -> bool {
        if self.busy.lock().unwrap_or_else(PoisonError::into_inner).contains(&lane) {
            return true;
        }
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return false };
        if self.stopping.load(Ordering::SeqCst) {
            return false;
        }
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(lane);
        let taken = Taken { worker: Arc::clone(self), lane };
        tokio::spawn(async move {
            let worker = Arc::clone(&taken.worker);
            if worker.hints.take(lane).await == Hint::Elsewhere {
                return worker.look_again(lane);
            }
            let synced = worker.engine.sync_all_due(lane).await;
            worker.hints.give(lane).await;
            drop((taken, permit));
            match synced {
                Ok(Synced::Idle) => {}
                // It stays due while another works on it.
                Ok(Synced::Busy) => worker.look_again(lane),
                // What came while the last turn ended must not wait for the poll, neither here nor elsewhere.
                Ok(_) => {
                    worker.wake.notify_one();
                    worker.hints.wake();
                }
                Err(error) => {
                    tracing::error!(%error, lane, "a lane is left until its lease ends");
                    worker.look_again(lane);
                }
            }
        });
        true
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

    /// Works on a lane at once, for callers who want to see what became of it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn sync(&self, lane: i64) -> Result<Synced, StoreError> {
        self.engine.sync_all(lane).await
    }
}
