//! The clock that decides expiry. It never goes back, and it does not believe a jump forward until an operator confirms
//! it: a wrong clock must not make a record expire and its request run again.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::time::{Timestamp, millis_of};
use sha2::{Digest, Sha256};

/// How far the wall clock may stray from the ticking one before it counts as a jump.
const JUMP_NANOS: i128 = 60_000_000_000;
/// A smaller difference is made up slowly: by one part in so many of the time that passes. A lease is thus never shorter
/// than its length less this part of it, whatever the wall clock does.
pub const SLEW_PARTS: u32 = 64;
const NANOS_PER_MILLI: i128 = 1_000_000;

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

    /// A number of this run of the machine: ticks of the same run can be compared across processes. Zero: not known.
    fn boot(&self) -> u64 {
        0
    }
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

    fn boot(&self) -> u64 {
        static BOOT: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        *BOOT.get_or_init(|| {
            let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            if id.is_empty() { 0 } else { first_eight(&Sha256::digest(id)) }
        })
    }
}

fn first_eight(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
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

/// What was written down of the store's time, for the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The time.
    pub time: Timestamp,
    /// The ticking clock at that moment, in milliseconds.
    pub ticks: i64,
    /// The run of the machine that it counts.
    pub boot: u64,
}

/// The store's time.
#[derive(Debug)]
pub struct StoreClock(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The latest time that was given, in nanoseconds, so that reading it often loses nothing.
    now: i128,
    /// The ticking clock at that moment.
    ticks: Duration,
    /// By how many milliseconds the wall clock is ahead, unbelieved.
    jump: Option<i64>,
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.millis()) * NANOS_PER_MILLI
}

fn millis(nanos: i128) -> i64 {
    i64::try_from(nanos.div_euclid(NANOS_PER_MILLI)).unwrap_or(i64::MAX)
}

impl StoreClock {
    /// A clock that shows this time now, whatever the wall clock says.
    pub fn starting_at(start: Timestamp, first: Reading) -> Self {
        Self(Mutex::new(Inner { now: nanos(start), ticks: first.ticks, jump: None }))
    }

    /// A clock that goes on from a mark of the same run of the machine. `None`: of another one, so that nothing tells how
    /// long ago it was.
    pub fn resuming(mark: Mark, clock: &dyn Clock) -> Option<Self> {
        let (reading, boot) = (clock.read(), clock.boot());
        let passed = u64::try_from(millis_of(reading.ticks) - mark.ticks).unwrap_or(0);
        let start = mark.time.plus(Duration::from_millis(passed));
        (boot != 0 && boot == mark.boot).then(|| Self::starting_at(start, reading))
    }

    /// The store's time now, to be written down.
    pub fn mark(&self, clock: &dyn Clock) -> Mark {
        let reading = clock.read();
        Mark { time: self.now(reading), ticks: millis_of(reading.ticks), boot: clock.boot() }
    }

    /// A clock that starts no earlier than `high_water`, the latest time it ever gave.
    pub fn new(first: Reading, high_water: Option<Timestamp>) -> Self {
        let start = high_water.map_or(first.wall, |known| known.max(first.wall));
        Self(Mutex::new(Inner { now: nanos(start), ticks: first.ticks, jump: None }))
    }

    /// The store's time at this reading.
    pub fn now(&self, reading: Reading) -> Timestamp {
        let mut inner = self.0.lock().expect("reading a clock does not panic");
        let passed = i128::try_from(reading.ticks.saturating_sub(inner.ticks).as_nanos()).unwrap_or(0);
        let ticked = inner.now + passed;
        let strays_by = nanos(reading.wall) - ticked;
        inner.ticks = inner.ticks.max(reading.ticks);
        inner.jump = (strays_by > JUMP_NANOS).then(|| millis(strays_by));
        inner.now = if planted::is(Bug::WallClockBelieved) {
            inner.now.max(nanos(reading.wall))
        } else if strays_by.abs() > JUMP_NANOS {
            // Time goes on as it ticks: an operator confirms a jump ahead, and after one back the wall clock catches up.
            ticked
        } else {
            let most = passed / i128::from(SLEW_PARTS);
            ticked + strays_by.clamp(-most, most)
        };
        Timestamp::from_millis(millis(inner.now))
    }

    /// By how many milliseconds the wall clock has jumped ahead, while nobody has confirmed it.
    pub fn frozen(&self) -> Option<i64> {
        self.0.lock().expect("reading a clock does not panic").jump
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm(&self, reading: Reading) {
        let mut inner = self.0.lock().expect("reading a clock does not panic");
        inner.now = inner.now.max(nanos(reading.wall));
        inner.ticks = reading.ticks;
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
            clock.now(reading(1_060_400, 60_000)).millis(),
            1_060_400,
            "small corrections are followed"
        );
        assert_eq!(clock.now(reading(1_060_100, 60_001)).millis(), 1_060_400, "but never backwards");
    }

    #[test]
    fn a_step_below_a_jump_is_made_up_slowly_in_both_directions() {
        let clock = StoreClock::new(reading(1_000_000, 0), None);
        for (step, ticks) in [(50_000, 6_400), (50_000, 12_800)] {
            let ticked = 1_000_000 + i64::try_from(ticks).unwrap();
            let early = clock.now(reading(ticked + step, ticks)).millis() - ticked;
            assert_eq!(early, i64::try_from(ticks / 64).unwrap());
        }
        let behind = clock.now(reading(900_000 + 19_200 + 41_000, 19_200)).millis();
        assert_eq!(behind, 1_019_200 + 100, "slower, but it goes on");
        for ticks in 19_201..19_300 {
            clock.now(reading(1_000_000 + i64::try_from(ticks).unwrap() + 59_000, ticks));
        }
        let often = clock.now(reading(1_078_300, 19_300)).millis();
        assert!((1_019_400..=1_019_402).contains(&often), "reading often changes nothing: {often}");
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
