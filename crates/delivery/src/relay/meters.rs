//! What a relay counts. Plain numbers of this process; what is in the store is counted there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! meters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// What a relay counts. A clone counts on with the same numbers.
        #[derive(Clone, Debug, Default)]
        pub struct Meters { $($(#[$about])* pub $name: Meter,)* }
    };
}

/// One number that only grows. A clone is the same number.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    /// Counts.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

meters! {
    /// Entries that were taken in.
    accepted,
    /// Requests that were known.
    replayed,
    /// Entries that were applied.
    completed,
    /// Entries that were given up.
    failed,
    /// Writes that are tried again.
    retries,
    /// Writes that were sent.
    calls,
    /// Writes that merging saved.
    calls_saved,
    /// Batches left to a person.
    in_doubt,
    /// Times that somebody else had changed the value.
    interference,
    /// Times that a credential was refused.
    unauthorized,
    /// Times that the upstream asked for a pause.
    limited,
}
