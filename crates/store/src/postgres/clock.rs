//! What this process believes of the server's clock, and what it may begin with. The time of the store is the server's
//! clock, corrected by `semel.clock`; here it is only checked against the ticks of this machine, so that a step is noticed
//! before anything expires by it. Every statement carries the belief along, and the server keeps to it: see `sql::clock!`.
//!
//! Times here are the store's less what it was moved on purpose (`moved_ms`): an operator's change changes no belief.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::time::{Timestamp, millis_of};

use crate::clock::{Ahead, Mark, Reading, SLEW_PARTS, Start, time_at_start};

/// How far the server's clock may be from the ticks without being corrected. A statement acts on no time that is farther
/// off, so that no number of smaller steps adds up: the ticks follow them by one part in [`SLEW_PARTS`].
const STEP_MILLIS: i64 = 250;
/// How old the last mark may be while other processes run. A process that knows nothing else believes a clock that is ahead
/// of it by so much.
const MARK_AGE_MILLIS: i64 = 20_000;
/// By how much a process may believe the server's clock to be ahead of what another counted, in all.
pub(super) const UNNOTICED_MILLIS: i64 = MARK_AGE_MILLIS + 2 * STEP_MILLIS;

/// What a statement is told of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Belief {
    /// The time as it ticked on here since the server was last heard.
    pub(super) ticked: i64,
    /// The latest time of the store that this process ever saw; time does not go back behind it.
    pub(super) last: i64,
    /// How far from `ticked` the server's clock is believed.
    pub(super) within: i64,
}

/// What a statement says of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The store's time, by which the statement acted.
    pub(super) now: i64,
    /// The server's clock as the clock's row corrects it, believed or not.
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
    /// Whether ticks of this machine contradict it. Otherwise nothing explains it, and a time service may.
    pub(super) is_contradicted: bool,
}

/// What the clock's row says when a process starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The time.
    pub(super) seen: Seen,
    /// The latest time that any process marked; `None` where none did.
    pub(super) high_water: Option<i64>,
    /// The time and the ticks that a process on this run of this machine marked.
    pub(super) mark: Option<(i64, i64)>,
    /// The server's clock without corrections for what it did by itself.
    pub(super) uncorrected: i64,
}

/// What a process begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// The time.
    pub(super) time: i64,
    /// What is to be written down of the server's clock.
    pub(super) jump: Option<Jump>,
}

/// The time to begin with. The mark of the same run of this machine tells it exactly. Without one it is the last mark of
/// any process, unless that is as fresh as marks are while others run, or a time service vouches for this machine's clock
/// and the server's agrees with it.
pub(super) fn begin(found: Found, here: Reading, boot: u64, is_synchronised: bool) -> Beginning {
    let Seen { wall, revision, .. } = found.seen;
    let (Some(high_water), false) = (found.high_water, planted::is(Bug::ClockBelievedAtStart)) else {
        return Beginning { time: wall.max(found.high_water.unwrap_or(wall)), jump: None };
    };
    let (time, ticks) = found.mark.unwrap_or((high_water, 0));
    let mark = Mark {
        time: Timestamp::from_millis(time),
        ticks,
        boot: if found.mark.is_some() { boot } else { 0 },
        ahead: Ahead::No,
    };
    let seen = Reading { wall: Timestamp::from_millis(wall), ticks: here.ticks };
    let start = time_at_start(Some(mark), seen, boot, is_synchronised && agree(found.uncorrected, here.wall));
    let explained = match start {
        Start::First(time) | Start::Ticked(time) | Start::Vouched(time) => time.millis(),
        Start::Unexplained(time) if wall.saturating_sub(time.millis()) <= MARK_AGE_MILLIS => wall,
        Start::Unexplained(time) => time.millis(),
    };
    // Another process may have counted slower; time does not go back for that.
    let time = explained.min(wall).max(high_water);
    let strays_by = wall.saturating_sub(time);
    let is_contradicted = matches!(start, Start::Ticked(_));
    let jump = Jump { by_millis: strays_by, revision, is_contradicted };
    Beginning { time, jump: (strays_by.abs() > STEP_MILLIS).then_some(jump) }
}

/// Whether two clocks show the same time, as clocks do.
fn agree(server: i64, here: Timestamp) -> bool {
    server.saturating_sub(here.millis()).abs() <= crate::clock::JUMP_MILLIS
}

/// The server's clock as seen from here.
#[derive(Debug)]
pub(super) struct ServerClock(Mutex<Base>);

#[derive(Debug)]
struct Base {
    /// The time in nanoseconds, so that hearing of it often loses nothing.
    count: i128,
    ticks: Duration,
    last: i64,
    revision: i64,
}

const NANOS_PER_MILLI: i128 = 1_000_000;

impl ServerClock {
    /// Counts from this time on, at these ticks; `last` is the store's time.
    pub(super) fn new(time: i64, ticks: Duration, last: i64, revision: i64) -> Self {
        Self(Mutex::new(Base { count: i128::from(time) * NANOS_PER_MILLI, ticks, last, revision }))
    }

    /// What to tell the next statement.
    pub(super) fn belief(&self, ticks: Duration) -> Belief {
        let base = self.0.lock().expect("reading a clock does not panic");
        Belief { ticked: millis(base.ticked(ticks)), last: base.last, within: STEP_MILLIS }
    }

    /// Takes in what a statement said that was sent and answered at these ticks. A step that the ticks contradict is
    /// returned, to be written into the clock's row.
    pub(super) fn learn(&self, seen: Seen, sent: Duration, answered: Duration) -> Option<Jump> {
        let mut base = self.0.lock().expect("reading a clock does not panic");
        base.last = base.last.max(seen.now);
        if seen.revision < base.revision {
            // An answer from before the last correction, overtaken on its way.
            return None;
        }
        let was_corrected = seen.revision > base.revision;
        base.revision = seen.revision;
        let wall = i128::from(seen.wall) * NANOS_PER_MILLI;
        let (earliest, latest) = (base.ticked(sent), base.ticked(answered));
        // The server read its clock at some moment between the two.
        let strays_by = wall - wall.clamp(earliest, latest.max(earliest));
        if planted::is(Bug::ClockStepsAddUp) && strays_by.abs() <= 60_000 * NANOS_PER_MILLI {
            (base.count, base.ticks) = (wall, answered);
            return None;
        }
        if strays_by.abs() <= i128::from(STEP_MILLIS) * NANOS_PER_MILLI {
            let passed = answered.saturating_sub(base.ticks);
            let most = i128::try_from(passed.as_nanos()).unwrap_or(0) / i128::from(SLEW_PARTS);
            base.count = latest + strays_by.clamp(-most, most);
            base.ticks = base.ticks.max(answered);
            return None;
        }
        if was_corrected && strays_by < 0 {
            // Another process counts slower than this one: the slowest is right, since nothing expires early by it.
            (base.count, base.ticks) = (wall, answered);
            return None;
        }
        Some(Jump { by_millis: millis(strays_by), revision: seen.revision, is_contradicted: true })
    }

    /// The latest time of the store that this process ever saw.
    pub(super) fn last(&self) -> Timestamp {
        Timestamp::from_millis(self.0.lock().expect("reading a clock does not panic").last)
    }
}

impl Base {
    fn ticked(&self, ticks: Duration) -> i128 {
        let passed = ticks.saturating_sub(self.ticks).as_nanos();
        self.count.saturating_add(i128::try_from(passed).unwrap_or(0))
    }
}

fn millis(nanos: i128) -> i64 {
    i64::try_from(nanos.div_euclid(NANOS_PER_MILLI)).unwrap_or(i64::MAX)
}

/// The ticks of a mark, as they are stored.
pub(super) fn stored_ticks(ticks: Duration) -> i64 {
    millis_of(ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    fn seen(wall: i64, revision: i64) -> Seen {
        Seen { now: wall, wall, revision }
    }

    fn ticks(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn clock() -> ServerClock {
        ServerClock::new(1_000_000, ticks(0), 1_000_000, 1)
    }

    #[test]
    fn small_corrections_are_followed_slowly_and_time_ticks_on_between_them() {
        let clock = clock();
        assert_eq!(clock.learn(seen(1_030_100, 1), ticks(30_000), ticks(30_000)), None);
        let belief = clock.belief(ticks(31_000));
        assert_eq!(belief, Belief { ticked: 1_031_100, last: 1_030_100, within: STEP_MILLIS });
        assert_eq!(clock.learn(seen(1_031_340, 1), ticks(31_000), ticks(31_000)), None);
        assert_eq!(clock.belief(ticks(31_000)).ticked, 1_031_115, "a 64th of the second that passed");
    }

    #[test]
    fn no_number_of_steps_lets_time_run_ahead() {
        for step in [1, 100, 249, 250, 251, 1_000, 55_000, 60_001, 2 * DAY] {
            let clock = clock();
            let (mut off, mut revision) = (0, 1);
            for number in 1..=100_u64 {
                let now = ticks(number * 10);
                off += step;
                let wall = 1_000_000 + i64::try_from(number * 10).unwrap() + off;
                if let Some(jump) = clock.learn(seen(wall, revision), now, now) {
                    // As the server does it.
                    (off, revision) = (off - jump.by_millis, revision + 1);
                }
                let ahead =
                    clock.belief(now).ticked + STEP_MILLIS - 1_000_000 - i64::try_from(number * 10).unwrap();
                assert!(ahead <= STEP_MILLIS + 1_000 / 64 + 1, "{step} ms, {number} times: {ahead} ms ahead");
            }
        }
    }

    #[test]
    fn a_slow_statement_is_not_taken_for_a_step() {
        let clock = clock();
        assert_eq!(clock.learn(seen(1_000_100, 1), ticks(50), ticks(9_000)), None);
        assert_eq!(clock.belief(ticks(9_000)).ticked, 1_009_000);
    }

    #[test]
    fn a_step_is_reported_either_way_and_not_believed() {
        let clock = clock();
        for wall in [1_010_300, 90_010_000, -90_000_000] {
            let jump = clock.learn(Seen { now: 1_010_000, wall, revision: 1 }, ticks(10_000), ticks(10_000));
            let by_millis = wall - 1_010_000;
            assert_eq!(jump, Some(Jump { by_millis, revision: 1, is_contradicted: true }));
            assert_eq!(clock.belief(ticks(10_000)).ticked, 1_010_000);
        }
    }

    #[test]
    fn the_process_that_counts_slowest_is_right() {
        let clock = clock();
        assert_eq!(clock.learn(seen(1_000_000, 2), ticks(10_000), ticks(10_000)), None);
        assert_eq!(clock.belief(ticks(10_000)).ticked, 1_000_000, "another corrected it back");
        let ahead = clock.learn(seen(1_090_000, 3), ticks(20_000), ticks(20_000));
        assert_eq!(ahead.map(|jump| jump.by_millis), Some(80_000), "but not ahead of the ticks");
        assert_eq!(clock.learn(seen(1_000_010, 1), ticks(30), ticks(30)), None, "late answers undo nothing");
    }

    fn found(gap: i64, mark: Option<(i64, i64)>) -> Found {
        let seen = seen(10 * DAY + gap, 4);
        Found { seen, high_water: Some(10 * DAY), mark, uncorrected: 10 * DAY + gap }
    }

    fn here(wall: i64) -> Reading {
        Reading { wall: Timestamp::from_millis(wall), ticks: ticks(8_000) }
    }

    #[test]
    fn a_start_goes_on_by_the_ticks_of_the_same_run_of_the_machine() {
        let mark = Some((10 * DAY, 5_000));
        let jumped = begin(found(2 * DAY, mark), here(12 * DAY), 7, true);
        assert_eq!(jumped.time, 10 * DAY + 3_000);
        let jump = jumped.jump.expect("the ticks contradict it");
        assert_eq!((jump.by_millis, jump.revision, jump.is_contradicted), (2 * DAY - 3_000, 4, true));
        let right = begin(found(3_000, mark), here(10 * DAY), 7, false);
        assert_eq!(right, Beginning { time: 10 * DAY + 3_000, jump: None });
        let step = begin(found(50_000, mark), here(10 * DAY), 7, false);
        assert_eq!((step.time, step.jump.map(|jump| jump.by_millis)), (10 * DAY + 3_000, Some(47_000)));
    }

    #[test]
    fn a_start_that_nothing_explains_goes_on_from_the_last_mark() {
        let frozen = begin(found(2 * DAY, None), here(12 * DAY), 7, false);
        assert_eq!((frozen.time, frozen.jump.map(|jump| jump.is_contradicted)), (10 * DAY, Some(false)));
        let disagrees = begin(found(2 * DAY, None), here(10 * DAY), 7, true);
        assert_eq!(disagrees, frozen, "this machine's clock is right, and the server's is another");
        let vouched = begin(found(2 * DAY, None), here(12 * DAY), 7, true);
        assert_eq!(vouched, Beginning { time: 12 * DAY, jump: None });
        let others_run = begin(found(12_000, None), here(0), 7, false);
        assert_eq!(others_run, Beginning { time: 10 * DAY + 12_000, jump: None });
    }

    #[test]
    fn a_start_never_goes_back() {
        let back = begin(found(-30 * DAY, None), here(0), 7, false);
        assert_eq!((back.time, back.jump.map(|jump| jump.by_millis)), (10 * DAY, Some(-30 * DAY)));
        let first = Found { high_water: None, ..found(5, None) };
        assert_eq!(begin(first, here(0), 7, false), Beginning { time: 10 * DAY + 5, jump: None });
    }
}
