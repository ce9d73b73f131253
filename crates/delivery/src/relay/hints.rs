//! Hints between replicas: that something may be due, and who is at work on a lane. Safety never rests on them: a hint that
//! is lost, late or untrue costs time and nothing else. Without any, replicas find out by asking the store.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::target::LEASE;

/// What somebody else's hint means for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nobody else seems to be at work: claim it.
    Ours,
    /// Somebody else seems to be: leave it to them for now.
    Elsewhere,
}

/// A hint to come.
pub type Hinted<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Hints between replicas.
pub trait Hints: std::fmt::Debug + Send + Sync + 'static {
    /// Tells the others that something may be due. Never waits, never fails.
    fn wake(&self) {}

    /// Says that this process is about to work on a lane, and whether another one seems to be. Where that cannot be
    /// found out soon, nobody is.
    fn take(&self, _lane: i64) -> Hinted<'_, Taken> {
        Box::pin(std::future::ready(Taken::Ours))
    }

    /// Says that it has ended.
    fn give(&self, _lane: i64) -> Hinted<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// No hints: replicas ask the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHints;

impl Hints for NoHints {}

/// For so long a hint keeps this process away from a lane. The store itself lets one process work on a lane; asking it in
/// vain costs little, and a sender waits.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long hints have kept this process away from lanes. A holder may be gone, or may never have been: a hint is believed
/// for a moment, and then not until a lease has passed or the lane was ours.
#[derive(Debug, Default)]
pub struct Patience(HashMap<i64, Instant>);

impl Patience {
    /// Whether the hint that somebody else has this lane is still believed.
    pub fn believes(&mut self, lane: i64, now: Instant) -> bool {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < BELIEVED;
        // What was not asked about for long is nobody's concern any more.
        self.0.retain(|known, since| *known == lane || now.saturating_duration_since(*since) < 2 * LEASE);
        match self.0.get(&lane) {
            Some(since) if is_fresh(*since) => true,
            Some(since) if now.saturating_duration_since(*since) < LEASE => false,
            _ => {
                self.0.insert(lane, now);
                true
            }
        }
    }

    /// The lane was ours: the next hint is a new one.
    pub fn forget(&mut self, lane: i64) {
        self.0.remove(&lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_believed_for_a_moment_and_not_longer() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(patience.believes(7, start) && patience.believes(7, at(900)));
        assert!(!patience.believes(7, at(1_000)), "a holder that never ends");
        assert!(!patience.believes(7, at(29_000)), "it is still the same one");
        patience.forget(7);
        assert!(patience.believes(7, at(30_000)), "another holder");
        assert!(patience.believes(8, at(30_000)) && !patience.believes(7, at(31_500)));
        assert!(patience.believes(7, at(61_000)), "and one more");
    }
}
