//! Where the handles, the writer and the other threads of one store meet.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::Connection;
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;

use super::checkpoint::Checkpointer;
use super::faults::Faults;
use super::guard::Guard;
use super::live::Live;
use super::places::Places;
use super::queue::Queue;
use super::readers::Readers;
use super::recent::Recent;
use crate::claims::StoreError;
use crate::clock::{Clock, StoreClock};
use crate::hints::Hints;

/// What they all use.
pub(super) struct Hub {
    pub(super) path: PathBuf,
    /// What syncs the whole file.
    pub(super) database: Arc<File>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) time: StoreClock,
    pub(super) hints: Hints,
    pub(super) queue: Queue,
    pub(super) guard: Arc<Guard>,
    pub(super) readers: Readers,
    pub(super) checkpointer: Checkpointer,
    pub(super) health: Health,
    pub(super) faults: Faults,
    pub(super) held: Mutex<Live>,
    /// Where rows are.
    pub(super) places: Places,
    /// Records that were read lately.
    pub(super) recent: Recent,
    /// Restores from backups, as they are written.
    pub(super) restores: Mutex<Vec<Restore>>,
}

impl Hub {
    /// The store's time.
    pub(super) fn now(&self) -> Timestamp {
        self.time.now(self.clock.read())
    }

    /// Looks something up. It sees everything that was committed when it was called.
    pub(super) fn look<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers.look(self.guard.commits(), read)
    }

    /// What is held; never keep it across I/O.
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.held.lock().expect("nothing panics while it changes what is held")
    }
}

/// Whether the store may answer, and whether it can write.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_ill: AtomicBool,
    is_full: AtomicBool,
    reason: Mutex<String>,
}

impl Health {
    /// Whether the store may answer; otherwise the error that everybody gets.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.is_ill.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable(self.reason()));
        }
        Ok(())
    }

    /// Whether the store can serve: it may answer, and there is room to write.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        self.check()?;
        if self.is_full() { Err(StoreError::Full(self.reason())) } else { Ok(()) }
    }

    /// Whether the last write found no room.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    fn reason(&self) -> String {
        self.reason.lock().expect("a reason is only copied").clone()
    }

    /// The store must not answer, for this reason.
    pub(super) fn fail(&self, reason: String) {
        *self.reason.lock().expect("a reason is only copied") = reason;
        self.is_ill.store(true, Ordering::SeqCst);
    }

    /// A write found no room.
    pub(super) fn note_full(&self, reason: &str) {
        reason.clone_into(&mut self.reason.lock().expect("a reason is only copied"));
        self.is_full.store(true, Ordering::SeqCst);
    }

    /// Something was written.
    pub(super) fn note_room(&self) {
        if self.is_full() {
            self.is_full.store(false, Ordering::SeqCst);
        }
    }

    /// The store may answer again.
    pub(super) fn restore(&self) {
        self.is_ill.store(false, Ordering::SeqCst);
    }
}
