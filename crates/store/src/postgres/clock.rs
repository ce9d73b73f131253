//! What this process believes of the server's clock. The time of the store is the server's; here it is only checked
//! against the ticks of this machine, so that a jump is noticed before anything expires by it. Every statement carries
//! the belief along, and the server keeps to it: see `sql::clock!`.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::time::{Timestamp, millis_of};

/// How far the server's clock may stray from the ticks before it counts as a jump. The migrations know it too.
pub(super) const JUMP_MILLIS: i64 = 60_000;

/// What a statement is told of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Belief {
    /// The time as it ticked on here since the server was last heard.
    pub(super) ticked: i64,
    /// The latest time that this process ever saw; time does not go back behind it.
    pub(super) last: i64,
    /// The revision of the clock's row that this belief rests on.
    pub(super) revision: i64,
}

/// What a statement says of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The store's time, by which the statement acted.
    pub(super) now: i64,
    /// The server's clock with the offset of the clock's row, believed or not.
    pub(super) wall: i64,
    /// The revision of the clock's row.
    pub(super) revision: i64,
}

/// The server's clock went off by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    /// By how much, forward or back.
    pub(super) by_millis: i64,
    /// The revision at which it was seen.
    pub(super) revision: i64,
}

/// The server's clock as seen from here.
#[derive(Debug)]
pub(super) struct ServerClock(Mutex<Base>);

#[derive(Debug)]
struct Base {
    wall: i64,
    ticks: Duration,
    last: i64,
    revision: i64,
}

impl ServerClock {
    /// Begins with what the server said first: with the store's time, whatever the server's clock shows.
    pub(super) fn new(seen: Seen, ticks: Duration) -> Self {
        Self(Mutex::new(Base { wall: seen.now, ticks, last: seen.now, revision: seen.revision }))
    }

    /// What to tell the next statement.
    pub(super) fn belief(&self, ticks: Duration) -> Belief {
        let base = self.0.lock().expect("reading a clock does not panic");
        Belief { ticked: base.ticked(ticks), last: base.last, revision: base.revision }
    }

    /// Takes in what a statement said. A jump that nobody meant is returned, to be written into the clock's row.
    pub(super) fn learn(&self, seen: Seen, ticks: Duration) -> Option<Jump> {
        let mut base = self.0.lock().expect("reading a clock does not panic");
        base.last = base.last.max(seen.now);
        if seen.revision < base.revision {
            // An answer from before the last change, overtaken on its way.
            return None;
        }
        let strays_by = seen.wall.saturating_sub(base.ticked(ticks));
        let was_meant = seen.revision > base.revision;
        if was_meant || strays_by.abs() <= JUMP_MILLIS {
            *base = Base { wall: seen.wall, ticks, last: base.last, revision: seen.revision };
            return None;
        }
        Some(Jump { by_millis: strays_by, revision: seen.revision })
    }

    /// The latest time that this process ever saw.
    pub(super) fn last(&self) -> Timestamp {
        Timestamp::from_millis(self.0.lock().expect("reading a clock does not panic").last)
    }
}

impl Base {
    fn ticked(&self, ticks: Duration) -> i64 {
        self.wall.saturating_add(millis_of(ticks.saturating_sub(self.ticks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(wall: i64, revision: i64) -> Seen {
        Seen { now: wall, wall, revision }
    }

    fn ticks(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn small_corrections_are_followed_and_time_ticks_on_between_them() {
        let clock = ServerClock::new(seen(1_000_000, 1), ticks(0));
        assert_eq!(clock.learn(seen(1_030_500, 1), ticks(30_000)), None);
        assert_eq!(clock.belief(ticks(31_000)), Belief { ticked: 1_031_500, last: 1_030_500, revision: 1 });
    }

    #[test]
    fn a_jump_is_reported_either_way_and_not_believed() {
        let clock = ServerClock::new(seen(1_000_000, 1), ticks(0));
        for wall in [90_010_000, -90_000_000] {
            let jump = clock.learn(Seen { now: 1_010_000, wall, revision: 1 }, ticks(10_000));
            assert_eq!(jump, Some(Jump { by_millis: wall - 1_010_000, revision: 1 }));
            assert_eq!(clock.belief(ticks(10_000)).ticked, 1_010_000);
        }
    }

    #[test]
    fn a_change_that_was_meant_is_believed_once_and_late_answers_do_not_undo_it() {
        let clock = ServerClock::new(seen(1_000_000, 1), ticks(0));
        assert_eq!(clock.learn(seen(90_000_000, 2), ticks(10)), None);
        assert_eq!(clock.learn(seen(1_000_010, 1), ticks(20)), None);
        assert_eq!(clock.belief(ticks(20)), Belief { ticked: 90_000_010, last: 90_000_000, revision: 2 });
    }
}
