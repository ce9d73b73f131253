//! The last moment before the first byte: past the first lease somebody else may already act on the key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_store::clock::Clock;

/// Until when a keyed request may be sent on, found in its extensions. A service that forwards requests asks it
/// immediately before the first byte, and otherwise answers with [`NoAnswer::NotSent`](crate::NoAnswer::NotSent).
#[derive(Clone)]
pub struct Dispatch {
    clock: Arc<dyn Clock>,
    by: Duration,
}

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatch").field("by", &self.by).finish_non_exhaustive()
    }
}

impl Dispatch {
    /// `by` is by the clock that only ticks. Renewals never extend it.
    pub(crate) fn new(clock: Arc<dyn Clock>, by: Duration) -> Self {
        Self { clock, by }
    }

    /// Whether the first byte may be sent now.
    pub fn in_time(&self) -> bool {
        self.clock.read().ticks < self.by
    }
}
