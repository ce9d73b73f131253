//! The time of a store that is closed and opened again. It keeps a mark of its time; when everything was down, the next start
//! finds that mark and whatever the wall clock shows by then. What is made of the two is decided by the production clock.
//! Counts nothing while it is closed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_contract::time::Timestamp;
use semel_store::clock::{Clock, Mark, Reading, StoreClock};

use crate::clock::SimClock;
use crate::stage::lock;

/// The time of a store.
#[derive(Debug)]
pub struct Uptime {
    machine: Arc<SimClock>,
    first: Timestamp,
    kept: Mutex<Kept>,
}

/// What there is of it at one moment.
#[derive(Debug)]
struct Kept {
    /// None while nobody has the store open.
    running: Option<StoreClock>,
    mark: Mark,
    /// The latest time that was given.
    latest: Timestamp,
}

impl Uptime {
    /// The time of a store that is opened for the first time.
    pub fn new(machine: Arc<SimClock>) -> Self {
        machine.start_machine();
        let running = StoreClock::open(None, &*machine);
        let mark = running.mark(&*machine);
        let kept = Kept { running: Some(running), mark, latest: mark.time };
        Self { first: mark.time, kept: Mutex::new(kept), machine }
    }

    /// Everything goes down: nothing is kept but a mark of this moment, since records of this moment may be there.
    pub fn close(&self) {
        let mut kept = lock(&self.kept);
        if let Some(running) = kept.running.take() {
            kept.mark = running.mark(&*self.machine);
        }
    }

    /// Somebody opens it again, unless it is open.
    pub fn open(&self) {
        let mut kept = lock(&self.kept);
        if kept.running.is_none() {
            kept.running = Some(StoreClock::open(Some(kept.mark), &*self.machine));
        }
    }

    /// Whether nobody has it open.
    pub fn is_closed(&self) -> bool {
        lock(&self.kept).running.is_none()
    }
}

impl Clock for Uptime {
    /// The store's own time twice: so that it is neither doubted nor corrected once more.
    fn read(&self) -> Reading {
        let mut kept = lock(&self.kept);
        if let Some(running) = &kept.running {
            let now = running.now(self.machine.read());
            kept.latest = kept.latest.max(now);
        }
        let passed = u64::try_from(kept.latest.millis_since(self.first)).unwrap_or(0);
        Reading { wall: kept.latest, ticks: Duration::from_millis(passed) }
    }
}
