//! What every run has, whatever it simulates: clocks, random numbers, the log, the counts and the first failure. Holds no
//! lock across an await.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::SimClock;
use crate::coverage::{Coverage, Met};
use crate::log::{Log, SlotNumber};
use crate::rng::Rng;

/// What must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// At most one effect for one scope and key, one message, one batch.
    I1,
    /// Every replay is the first settled answer, byte for byte.
    I2,
    /// Another request under the same key is refused and never executed.
    I3,
    /// At most one dispatch while a key is claimed; one message of a lane at a time, in order.
    I4,
    /// What a client sees is durable, and so is what is sent.
    I5,
    /// What was acknowledged is delivered or given up for a person to see, whatever crashes.
    I6,
    /// Fences only grow, and stale ones change nothing.
    I7,
    /// Settled stays settled until it expires; unknown is not run again without a policy.
    I8,
    /// No answer of one principal reaches another.
    I9,
    /// One append for an id; every subscriber gets every message of its interval, in order, and nothing else is anywhere.
    I10,
    /// The upstream's total is the sum of what was accepted.
    I11,
    /// What was acknowledged survives every crash.
    I12,
    /// A jump of the clock never makes anything run twice.
    I13,
    /// Work in progress and waiters are bounded, and what they hold comes back.
    I14,
    /// After the faults, everything is settled or listed as unknown, and every client has a last word.
    I15,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which one.
    pub invariant: Invariant,
    /// How.
    pub why: String,
    /// The key, the message or the lane it is about.
    pub slot: Option<SlotNumber>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.why)
    }
}

/// What every run has.
pub struct Stage {
    /// The clocks.
    pub clock: Arc<SimClock>,
    rng: Mutex<Rng>,
    log: Mutex<Log>,
    coverage: Mutex<Coverage>,
    failure: Mutex<Option<Failure>>,
    failed: Notify,
    quiet: AtomicBool,
    over: AtomicBool,
    store_away_until: Mutex<Duration>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// Takes a lock that nobody holds while panicking.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing that holds this lock panics")
}

impl Stage {
    /// A stage on which nothing has happened, with the rest of the seed's numbers.
    pub fn new(rng: Rng) -> Self {
        Self {
            clock: Arc::new(SimClock::new()),
            rng: Mutex::new(rng),
            log: Mutex::default(),
            coverage: Mutex::default(),
            failure: Mutex::new(None),
            failed: Notify::new(),
            quiet: AtomicBool::new(false),
            over: AtomicBool::new(false),
            store_away_until: Mutex::new(Duration::ZERO),
        }
    }

    /// Virtual time since the start, in milliseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.ticks().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes down what happened.
    pub fn note(&self, slot: Option<SlotNumber>, text: impl Into<String>) {
        lock(&self.log).note(self.now(), slot, text.into());
    }

    /// How much has happened.
    pub fn steps(&self) -> usize {
        lock(&self.log).len()
    }

    /// Draws from the seed.
    pub fn rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut lock(&self.rng))
    }

    /// Whether a fault of this name and rate, in a thousand chances, happens now. None does once it is quiet.
    pub fn happens(&self, rate: u32, name: &'static str) -> bool {
        let happens = rate > 0 && !self.is_quiet() && self.rng(|rng| rng.chance(rate));
        if happens {
            self.count(Met::Fault, name);
        }
        happens
    }

    /// Counts something for the table.
    pub fn count(&self, met: Met, name: &'static str) {
        lock(&self.coverage).count(met, name);
    }

    /// Begins or ends a time without faults.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
        if quiet {
            *lock(&self.store_away_until) = Duration::ZERO;
        }
        self.note(None, if quiet { "the faults stop" } else { "the faults begin" });
    }

    /// The run is over: what is dropped from now on is dropped with everything.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether faults have stopped.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// The store cannot be reached for a while.
    pub fn send_store_away(&self, time: Duration) {
        *lock(&self.store_away_until) = self.clock.ticks() + time;
        self.note(None, format!("the store is away for {time:?}"));
    }

    /// Whether the store cannot be reached now.
    pub fn is_store_away(&self) -> bool {
        self.clock.ticks() < *lock(&self.store_away_until)
    }

    /// A promise was broken. The first one ends the run.
    pub fn fail(&self, invariant: Invariant, slot: Option<SlotNumber>, why: impl Into<String>) {
        let why = why.into();
        if self.failure().is_none() {
            self.note(slot, format!("BROKEN {invariant:?}: {why}"));
            *lock(&self.failure) = Some(Failure { invariant, why, slot });
            self.failed.notify_one();
        }
    }

    /// Waits for the first broken promise.
    pub async fn failed(&self) {
        loop {
            if lock(&self.failure).is_some() {
                return;
            }
            self.failed.notified().await;
        }
    }

    /// The first broken promise.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// What was met so far.
    pub fn coverage(&self) -> Coverage {
        lock(&self.coverage).clone()
    }

    /// The log, taken out at the end.
    pub fn take_log(&self) -> Log {
        std::mem::take(&mut lock(&self.log))
    }
}
