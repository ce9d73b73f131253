//! The two clocks of the simulated machines. The ticking one is tokio's virtual time; the wall clock is that plus an
//! offset, which faults change.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use semel_contract::time::{Timestamp, millis_of};
use semel_store::clock::{Clock, Reading};
use tokio::time::Instant;

/// The wall clock of the first moment of every run: 2026-01-31T08:30:00Z.
const FIRST_MILLIS: i64 = 1_769_848_200_000;

/// Clocks that go with virtual time.
#[derive(Debug)]
pub struct SimClock {
    start: Instant,
    /// Small corrections, which add up.
    creep_millis: AtomicI64,
    /// The present jump, which comes and goes.
    jump_millis: AtomicI64,
    /// The run of the machine.
    boot: AtomicU64,
}

impl SimClock {
    /// Clocks that start now, inside a runtime whose time is paused.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            creep_millis: AtomicI64::new(0),
            jump_millis: AtomicI64::new(0),
            boot: AtomicU64::new(0),
        }
    }

    /// Virtual time since the start.
    pub fn ticks(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time as somebody with a good clock knows it.
    pub fn true_time(&self) -> Timestamp {
        Timestamp::from_millis(FIRST_MILLIS + millis_of(self.ticks()))
    }

    /// The machine starts: its ticks are not compared with those before. Until the first start nobody knows its runs.
    pub fn start_machine(&self) {
        self.boot.fetch_add(1, Ordering::Relaxed);
    }

    /// By how much the wall clock is wrong: by small corrections, and by the present jump.
    pub fn wrong_millis(&self) -> (i64, i64) {
        (self.creep_millis.load(Ordering::Relaxed), self.jump_millis.load(Ordering::Relaxed))
    }

    /// Sets the wall clock to be wrong by this much.
    pub fn set_wrong_millis(&self, (creep, jump): (i64, i64)) {
        self.creep_millis.store(creep, Ordering::Relaxed);
        self.jump_millis.store(jump, Ordering::Relaxed);
    }
}

impl Default for SimClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SimClock {
    fn read(&self) -> Reading {
        let (creep, jump) = self.wrong_millis();
        let wall = self.true_time().millis() + creep + jump;
        Reading { wall: Timestamp::from_millis(wall), ticks: self.ticks() }
    }

    fn boot(&self) -> u64 {
        self.boot.load(Ordering::Relaxed)
    }
}
