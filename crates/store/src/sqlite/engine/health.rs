//! Whether a store may answer, and whether it can write.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::EngineError;

/// The health of one store.
#[derive(Debug, Default)]
pub struct Health {
    is_ill: AtomicBool,
    is_full: AtomicBool,
    reason: Mutex<String>,
}

impl Health {
    /// Whether the store may answer; otherwise the error that every caller gets.
    ///
    /// # Errors
    /// It must not answer.
    pub fn check(&self) -> Result<(), EngineError> {
        if self.is_ill.load(Ordering::SeqCst) {
            return Err(EngineError::Unavailable(self.reason()));
        }
        Ok(())
    }

    /// Whether the store can serve: it may answer, and there is room to write.
    ///
    /// # Errors
    /// It cannot.
    pub fn ready(&self) -> Result<(), EngineError> {
        self.check()?;
        if self.is_full() { Err(EngineError::Full(self.reason())) } else { Ok(()) }
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
