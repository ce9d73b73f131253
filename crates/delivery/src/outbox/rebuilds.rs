//! Messages that wait for their lanes to be rebuilt, as far as this run of the process has asked the application about them.
//! Asks nobody itself.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What is known of a message that waits for its lane to be rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The application is thinking.
    Now,
    /// It is thinking, and the message was let go and refused once more meanwhile: what it says is of the refusal before.
    Again,
    /// It could not tell, and is asked again.
    Later,
    /// It left the lane as it is: somebody decides.
    Decided,
}

/// Whom the application was asked about.
#[derive(Debug, Default)]
pub(crate) struct Rebuilds(Mutex<HashMap<i64, Asked>>);

impl Rebuilds {
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut HashMap<i64, Asked>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
