//! What one target of a relay may have under way at once, and which lanes wait for that. Knows nothing of what is done with
//! a lane.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lanes that wait at most for a share; those beyond are found again by the look around the circle.
pub(super) const WAITING_MAX: usize = 100_000;

/// What one target may have under way at once.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) permits: Arc<Semaphore>,
    pub(super) size: usize,
    waiting: Mutex<Waiting>,
}

/// Lanes that wait for room, each once, in the order in which they came.
#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<i64>,
    known: BTreeSet<i64>,
}

impl Share {
    pub(super) fn new(size: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(size)), size, waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for this lane; without any, the lane waits for it.
    pub(super) fn take(&self, lane: i64) -> Option<OwnedSemaphorePermit> {
        let mut waiting = self.waiting();
        // Looked for under the lock, so that whoever gives room back finds the lane, or we find the room.
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        if permit.is_none() && waiting.queue.len() < WAITING_MAX && waiting.known.insert(lane) {
            waiting.queue.push_back(lane);
        }
        permit
    }

    /// The lane that has waited longest, where there is room for it.
    pub(super) fn next(&self) -> Option<i64> {
        let mut waiting = self.waiting();
        if self.permits.available_permits() == 0 {
            return None;
        }
        let lane = waiting.queue.pop_front()?;
        waiting.known.remove(&lane);
        Some(lane)
    }
}
