//! The clock that decides expiry. It never goes back, and it does not believe a jump forward until an operator confirms
//! it: a wrong clock must not make a record expire and its request run again.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::time::{Timestamp, millis_of};

/// How far the wall clock may stray from the ticking one before it counts as a jump.
const JUMP_MILLIS: i64 = 60_000;

/// Two clocks read at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The wall clock, which people and protocols set.
    pub wall: Timestamp,
    /// A clock that only ticks, also while the machine sleeps.
    pub ticks: Duration,
}

/// Something that can be read.
pub trait Clock: Send + Sync + 'static {
    /// Reads both clocks.
    fn read(&self) -> Reading;
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn read(&self) -> Reading {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let wall = since.map_or_else(|before| -millis_of(before.duration()), millis_of);
        Reading { wall: Timestamp::from_millis(wall), ticks: boot_time() }
    }
}

/// Time since the machine started. Unlike [`std::time::Instant`] it goes on while the machine sleeps, so that opening a
/// laptop is not taken for a jump of the clock.
#[cfg(target_os = "linux")]
pub fn boot_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and CLOCK_BOOTTIME exists on every Linux since 2.6.39.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(failed, 0, "the boot-time clock can be read");
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time since the first call. On these systems it also ticks while the machine sleeps.
#[cfg(not(target_os = "linux"))]
pub fn boot_time() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// The store's time.
#[derive(Debug)]
pub struct StoreClock(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    base: Reading,
    last: Timestamp,
    jump: Option<i64>,
}

impl StoreClock {
    /// A clock that starts no earlier than `high_water`, the latest time it ever gave.
    pub fn new(first: Reading, high_water: Option<Timestamp>) -> Self {
        let start = high_water.map_or(first.wall, |known| known.max(first.wall));
        Self(Mutex::new(Inner { base: Reading { wall: start, ..first }, last: start, jump: None }))
    }

    /// The store's time at this reading.
    pub fn now(&self, reading: Reading) -> Timestamp {
        let mut inner = self.0.lock().expect("reading a clock does not panic");
        let ticked = inner.base.wall.plus(reading.ticks.saturating_sub(inner.base.ticks));
        let strays_by = reading.wall.millis_since(ticked);
        let now = if planted::is(Bug::WallClockBelieved) {
            reading.wall
        } else if strays_by > JUMP_MILLIS {
            inner.jump = Some(strays_by);
            ticked
        } else if strays_by < -JUMP_MILLIS {
            // Set back: time goes on as it ticks, and the wall clock will catch up.
            ticked
        } else {
            inner.jump = None;
            inner.base = reading;
            reading.wall
        };
        inner.last = inner.last.max(now);
        inner.last
    }

    /// By how many milliseconds the wall clock has jumped ahead, while nobody has confirmed it.
    pub fn frozen(&self) -> Option<i64> {
        self.0.lock().expect("reading a clock does not panic").jump
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm(&self, reading: Reading) {
        let mut inner = self.0.lock().expect("reading a clock does not panic");
        inner.base = reading;
        inner.jump = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(wall: i64, ticks: u64) -> Reading {
        Reading { wall: Timestamp::from_millis(wall), ticks: Duration::from_millis(ticks) }
    }

    #[test]
    fn time_goes_with_the_wall_clock_while_the_two_agree() {
        let clock = StoreClock::new(reading(1_000_000, 0), None);
        assert_eq!(clock.now(reading(1_030_000, 30_000)).millis(), 1_030_000);
        assert_eq!(
            clock.now(reading(1_060_500, 60_000)).millis(),
            1_060_500,
            "small corrections are followed"
        );
        assert_eq!(clock.now(reading(1_060_100, 60_001)).millis(), 1_060_500, "but never backwards");
    }

    #[test]
    fn a_clock_set_back_neither_goes_back_nor_stops() {
        let clock = StoreClock::new(reading(1_000_000, 0), None);
        assert_eq!(clock.now(reading(-5_000_000, 10_000)).millis(), 1_010_000);
        assert_eq!(clock.now(reading(-4_990_000, 20_000)).millis(), 1_020_000);
        assert_eq!(clock.frozen(), None);
    }

    #[test]
    fn a_jump_forward_is_not_believed_until_it_is_confirmed() {
        let clock = StoreClock::new(reading(1_000_000, 0), None);
        assert_eq!(clock.now(reading(90_000_000, 10_000)).millis(), 1_010_000);
        assert!(clock.frozen().is_some());
        clock.confirm(reading(90_001_000, 11_000));
        assert_eq!(clock.now(reading(90_002_000, 12_000)).millis(), 90_002_000);
        assert_eq!(clock.frozen(), None);
    }

    #[test]
    fn a_jump_that_is_taken_back_is_forgotten() {
        let clock = StoreClock::new(reading(1_000_000, 0), None);
        clock.now(reading(90_000_000, 10_000));
        assert_eq!(clock.now(reading(1_020_000, 20_000)).millis(), 1_020_000);
        assert_eq!(clock.frozen(), None);
    }

    #[test]
    fn a_restart_does_not_go_back() {
        let clock = StoreClock::new(reading(1_000_000, 0), Some(Timestamp::from_millis(2_000_000)));
        assert_eq!(clock.now(reading(1_001_000, 1_000)).millis(), 2_001_000);
    }

    #[test]
    fn the_machines_clocks_tick() {
        let (one, two) = (SystemClock.read(), SystemClock.read());
        assert!(two.ticks >= one.ticks && one.wall.millis() > 1_600_000_000_000);
    }
}
