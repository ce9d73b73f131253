//! Faults on demand, for tests: a commit whose result is lost, a disk that is full, a recovery that must wait. Nothing
//! sets them outside of tests.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use rusqlite::Connection;

/// The faults that are to happen.
#[derive(Debug, Default)]
pub struct Faults {
    commit: AtomicU8,
    pages: AtomicU32,
    no_recovery: AtomicBool,
    disk_full: AtomicBool,
    no_keys: AtomicBool,
}

const COMMIT_LOST_AFTER: u8 = 1;
const COMMIT_LOST_BEFORE: u8 = 2;

/// What to do about the next commit.
pub(super) enum CommitFault {
    None,
    /// It happens, and reports an error.
    After,
    /// It does not happen, and reports an error.
    Before,
}

impl Faults {
    /// The next commit reports an error of which nobody can say whether it was written; `written` says whether it was.
    #[cfg(feature = "conformance")]
    pub fn lose_next_commit(&self, written: bool) {
        self.commit.store(if written { COMMIT_LOST_AFTER } else { COMMIT_LOST_BEFORE }, Ordering::SeqCst);
    }

    /// The file may grow to so many pages; 0 takes the limit away.
    #[cfg(feature = "conformance")]
    pub fn limit_pages(&self, pages: u32) {
        self.pages.store(if pages == 0 { u32::MAX } else { pages }, Ordering::SeqCst);
    }

    /// Recovery fails until this is taken back.
    #[cfg(feature = "conformance")]
    pub fn hold_recovery(&self, hold: bool) {
        self.no_recovery.store(hold, Ordering::SeqCst);
    }

    /// What is read in the background after a start is not read until this is taken back.
    #[cfg(feature = "conformance")]
    pub fn hold_keys(&self, hold: bool) {
        self.no_keys.store(hold, Ordering::SeqCst);
    }

    /// From now on, or no longer, every commit finds the disk full.
    pub fn fill_disk(&self, is_full: bool) {
        self.disk_full.store(is_full, Ordering::SeqCst);
    }

    pub(crate) fn reads_keys(&self) -> bool {
        !self.no_keys.load(Ordering::SeqCst)
    }

    pub(super) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::SeqCst)
    }

    pub(super) fn next_commit(&self) -> CommitFault {
        match self.commit.swap(0, Ordering::SeqCst) {
            COMMIT_LOST_AFTER => CommitFault::After,
            COMMIT_LOST_BEFORE => CommitFault::Before,
            _ => CommitFault::None,
        }
    }

    pub(super) fn apply_limit(&self, connection: &Connection) {
        let pages = self.pages.swap(0, Ordering::SeqCst);
        if pages > 0 {
            let applied = connection.pragma(None, "max_page_count", pages, |_| Ok(()));
            applied.expect("a limit of pages can be set");
        }
    }

    pub(super) fn recovers(&self) -> bool {
        !self.no_recovery.load(Ordering::SeqCst)
    }
}
