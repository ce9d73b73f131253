//! The clock that decides expiry. It never goes back, and it does not believe a jump forward until an operator confirms
//! it: a wrong clock must not make a record expire and its request run again.
//!
//! How a store uses it: it keeps a [`Mark`] of its time, every few seconds and at the end ([`StoreClock::mark`]). When it
//! opens, it hands the mark that it finds to [`StoreClock::open`], or asks [`time_at_start`] where the time is counted by
//! somebody else (a server). From then on it asks [`StoreClock::now`]; while [`StoreClock::frozen`] says something, it
//! removes nothing.

use std::sync::Mutex;
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::time::{Timestamp, millis_of};
use sha2::{Digest, Sha256};

/// How far the wall clock may stray from the ticking one before it counts as a jump.
pub(crate) const JUMP_MILLIS: i64 = 60_000;
const JUMP_NANOS: i128 = JUMP_MILLIS as i128 * NANOS_PER_MILLI;
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

    /// Whether somebody vouches for the wall clock: a time service that keeps it right. Asked only at the start, where no
    /// ticks tell how long nobody was here.
    fn is_synchronised(&self) -> bool {
        false
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

    fn is_synchronised(&self) -> bool {
        is_synchronised()
    }
}

/// Whether the kernel says that a time service keeps the wall clock right. Setting the clock by hand takes that back.
#[cfg(target_os = "linux")]
fn is_synchronised() -> bool {
    // SAFETY: timex is plain numbers, for which all zeros are a value; no modes are set, so that the call only reads.
    let state = unsafe {
        let mut asked: libc::timex = std::mem::zeroed();
        libc::adjtimex(&raw mut asked)
    };
    state >= 0 && state != libc::TIME_ERROR
}

/// These systems do not say; their clock is believed, as it always was.
#[cfg(not(target_os = "linux"))]
fn is_synchronised() -> bool {
    true
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
    /// How far ahead the wall clock was, unbelieved.
    pub ahead: Ahead,
}

/// How far the wall clock is ahead of a store's time, where it is not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// It is believed.
    #[default]
    No,
    /// Nothing explained it when a store opened, whether it was ahead then or later. A time service may still vouch for it.
    Unexplained,
    /// The ticking clock contradicts it. An operator must confirm it.
    Contradicted,
}

impl Ahead {
    /// The number that stores keep for it.
    pub fn number(self) -> i64 {
        match self {
            Ahead::No => 0,
            Ahead::Contradicted => 1,
            Ahead::Unexplained => -1,
        }
    }

    /// What a kept number means. The release before kept how far ahead a contradicted clock was, in milliseconds.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => Ahead::No,
            1.. => Ahead::Contradicted,
            ..=-1 => Ahead::Unexplained,
        }
    }
}

/// What the time is when a store opens, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing was kept: the wall clock's time.
    First(Timestamp),
    /// The ticking clock went on since the mark, so that the time is known whatever the wall clock shows.
    Ticked(Timestamp),
    /// The machine was started since, and a time service vouches for the wall clock.
    Vouched(Timestamp),
    /// The machine was started since, and only the wall clock says how long ago the mark was. Time goes on from the mark:
    /// a wall clock that is ahead by more than a minute freezes expiry.
    Unexplained(Timestamp),
}

impl Start {
    /// The time.
    pub fn time(self) -> Timestamp {
        match self {
            Start::First(time) | Start::Ticked(time) | Start::Vouched(time) | Start::Unexplained(time) => {
                time
            }
        }
    }
}

/// What the time is when a store opens that kept this mark. Ticks of the same run of the machine say how much time has
/// passed. After a start of the machine nothing does but the wall clock: it is believed if a time service vouches for it
/// (`is_synchronised`) and no jump of it waits for an operator. Otherwise time goes on from the mark, however long a
/// downtime is usual: a wrong clock after a long night would run requests again.
pub fn time_at_start(mark: Option<Mark>, here: Reading, boot: u64, is_synchronised: bool) -> Start {
    let Some(mark) = mark else { return Start::First(here.wall) };
    if planted::is(Bug::ClockBelievedAtStart) {
        return Start::Vouched(mark.time.max(here.wall));
    }
    if boot != 0 && boot == mark.boot {
        let passed = u64::try_from(millis_of(here.ticks) - mark.ticks).unwrap_or(0);
        return Start::Ticked(mark.time.plus(Duration::from_millis(passed)));
    }
    match mark.ahead {
        Ahead::No | Ahead::Unexplained if is_synchronised => Start::Vouched(mark.time.max(here.wall)),
        Ahead::No | Ahead::Unexplained | Ahead::Contradicted => Start::Unexplained(mark.time),
    }
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
    /// Whether a time service may vouch for it: nothing explained the start, and no time service has spoken since.
    may_be_vouched_for: bool,
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.millis()) * NANOS_PER_MILLI
}

fn millis(nanos: i128) -> i64 {
    i64::try_from(nanos.div_euclid(NANOS_PER_MILLI)).unwrap_or(i64::MAX)
}

impl StoreClock {
    /// A clock that goes on from what a store kept, as [`time_at_start`] decides.
    pub fn open(mark: Option<Mark>, clock: &dyn Clock) -> Self {
        let first = clock.read();
        let start = time_at_start(mark, first, clock.boot(), clock.is_synchronised());
        let was_unexplained = mark.is_some_and(|mark| mark.ahead == Ahead::Unexplained);
        let may_be_vouched_for = match start {
            Start::First(_) | Start::Vouched(_) => false,
            Start::Ticked(_) => was_unexplained,
            Start::Unexplained(_) => mark.is_some_and(|mark| mark.ahead != Ahead::Contradicted),
        };
        let opened = Self::starting_at(start.time(), first);
        opened.inner().may_be_vouched_for = may_be_vouched_for;
        opened.now(first);
        opened
    }

    /// A clock that shows this time now, whatever the wall clock says.
    fn starting_at(start: Timestamp, first: Reading) -> Self {
        let (now, ticks) = (nanos(start), first.ticks);
        Self(Mutex::new(Inner { now, ticks, jump: None, may_be_vouched_for: false }))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().expect("reading a clock does not panic")
    }

    /// The store's time now, to be written down. After a start that nothing explained, the wall clock is believed as soon as
    /// a time service vouches for it, whenever it went ahead: a machine without a clock of its own starts long ago, and is
    /// set only then. The service is heard once.
    pub fn mark(&self, clock: &dyn Clock) -> Mark {
        // Asked before the clock is read: a clock that is set between the two would count as vouched for unseen.
        let is_vouched_for = clock.is_synchronised();
        let reading = clock.read();
        let mut time = self.now(reading);
        if is_vouched_for && self.ahead() == Ahead::Unexplained {
            match self.frozen() {
                Some(_) => self.confirm(reading),
                None => self.inner().may_be_vouched_for = false,
            }
            time = self.now(reading);
        }
        Mark { time, ticks: millis_of(reading.ticks), boot: clock.boot(), ahead: self.ahead() }
    }

    /// Why the wall clock is not believed, or would not be if it were ahead.
    fn ahead(&self) -> Ahead {
        let inner = self.inner();
        match (inner.jump, inner.may_be_vouched_for) {
            (_, true) => Ahead::Unexplained,
            (None, false) => Ahead::No,
            (Some(_), false) => Ahead::Contradicted,
        }
    }

    /// A clock that starts no earlier than `high_water`, the latest time it ever gave, where nothing else was kept.
    pub fn new(first: Reading, high_water: Option<Timestamp>) -> Self {
        Self::starting_at(high_water.map_or(first.wall, |known| known.max(first.wall)), first)
    }

    /// The store's time at this reading.
    pub fn now(&self, reading: Reading) -> Timestamp {
        let mut inner = self.inner();
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
        self.inner().jump
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm(&self, reading: Reading) {
        let mut inner = self.inner();
        inner.now = inner.now.max(nanos(reading.wall));
        inner.ticks = reading.ticks;
        inner.jump = None;
        inner.may_be_vouched_for = false;
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

    const HOUR: i64 = 3_600_000;

    /// A machine whose clocks are set by hand.
    struct Machine(Mutex<(Reading, u64, bool)>);

    impl Machine {
        fn new(wall: i64, ticks: u64, boot: u64, is_synchronised: bool) -> Self {
            Self(Mutex::new((reading(wall, ticks), boot, is_synchronised)))
        }

        fn set(&self, wall: i64, ticks: u64, boot: u64, is_synchronised: bool) {
            *self.0.lock().unwrap() = (reading(wall, ticks), boot, is_synchronised);
        }
    }

    impl Clock for Machine {
        fn read(&self) -> Reading {
            self.0.lock().unwrap().0
        }

        fn boot(&self) -> u64 {
            self.0.lock().unwrap().1
        }

        fn is_synchronised(&self) -> bool {
            self.0.lock().unwrap().2
        }
    }

    fn kept(boot: u64, ahead: Ahead) -> Option<Mark> {
        Some(Mark { time: Timestamp::from_millis(10 * HOUR), ticks: 5_000, boot, ahead })
    }

    #[test]
    fn what_the_time_is_at_a_start() {
        let at = |hour: i64| Timestamp::from_millis(hour * HOUR);
        let start = |mark, boot, is_synchronised| {
            time_at_start(mark, reading(58 * HOUR, 8_000), boot, is_synchronised)
        };
        let ticked = Start::Ticked(at(10).plus(Duration::from_secs(3)));
        for is_synchronised in [false, true] {
            assert_eq!(start(None, 7, is_synchronised), Start::First(at(58)));
            for ahead in [Ahead::No, Ahead::Unexplained, Ahead::Contradicted] {
                assert_eq!(start(kept(7, ahead), 7, is_synchronised), ticked, "ticks know best");
            }
            let contradicted = start(kept(6, Ahead::Contradicted), 7, is_synchronised);
            assert_eq!(contradicted, Start::Unexplained(at(10)), "an operator was asked");
        }
        for (mark, boot) in [(6, 7), (0, 7), (7, 0), (0, 0)] {
            for ahead in [Ahead::No, Ahead::Unexplained] {
                assert_eq!(start(kept(mark, ahead), boot, false), Start::Unexplained(at(10)));
                assert_eq!(start(kept(mark, ahead), boot, true), Start::Vouched(at(58)));
            }
        }
        let behind = time_at_start(kept(6, Ahead::No), reading(HOUR, 0), 7, true);
        assert_eq!(behind, Start::Vouched(at(10)), "time never goes back");
    }

    #[test]
    fn a_clock_that_was_set_while_nobody_ran_is_not_believed_at_the_start() {
        for boot in [7, 8] {
            let machine = Machine::new(58 * HOUR, 8_000, boot, false);
            let clock = StoreClock::open(kept(7, Ahead::No), &machine);
            assert!(clock.frozen().is_some_and(|ahead| ahead > 47 * HOUR), "run {boot}");
            assert!(clock.now(machine.read()).millis() < 11 * HOUR, "nothing expires by it");
            clock.confirm(machine.read());
            assert_eq!((clock.now(machine.read()).millis(), clock.frozen()), (58 * HOUR, None));
        }
    }

    #[test]
    fn an_unexplained_start_ends_when_a_time_service_vouches_for_the_clock_also_after_a_restart() {
        let machine = Machine::new(58 * HOUR, 8_000, 8, false);
        let mark = StoreClock::open(kept(7, Ahead::No), &machine).mark(&machine);
        assert_eq!((mark.time.millis(), mark.ahead), (10 * HOUR, Ahead::Unexplained));
        let again = StoreClock::open(Some(mark), &machine);
        assert_eq!(again.mark(&machine), mark);
        machine.set(58 * HOUR + 1_000, 9_000, 8, true);
        let vouched = again.mark(&machine);
        assert_eq!((vouched.time.millis(), vouched.ahead), (58 * HOUR + 1_000, Ahead::No));
        assert_eq!(again.frozen(), None);
    }

    #[test]
    fn a_machine_that_starts_without_a_clock_is_believed_once_a_time_service_has_set_it() {
        // No clock of its own: it starts at some moment long ago, and a time service sets it later.
        let machine = Machine::new(HOUR, 1_000, 8, false);
        let clock = StoreClock::open(kept(7, Ahead::No), &machine);
        let mark = clock.mark(&machine);
        assert_eq!((mark.time.millis(), mark.ahead), (10 * HOUR, Ahead::Unexplained));
        let again = StoreClock::open(Some(mark), &machine);
        for clock in [clock, again] {
            machine.set(58 * HOUR, 9_000, 8, false);
            clock.now(machine.read());
            assert!(clock.frozen().is_some(), "nobody vouches for it yet");
            machine.set(58 * HOUR + 1_000, 10_000, 8, true);
            let vouched = clock.mark(&machine);
            assert_eq!((vouched.time.millis(), vouched.ahead), (58 * HOUR + 1_000, Ahead::No));
            assert_eq!(clock.frozen(), None);
            machine.set(99 * HOUR, 11_000, 8, true);
            assert_eq!(clock.mark(&machine).ahead, Ahead::Contradicted, "vouched for once, not for ever");
            machine.set(HOUR, 1_000, 8, false);
        }
    }

    #[test]
    fn a_time_service_that_finds_nothing_ahead_has_spoken() {
        let machine = Machine::new(10 * HOUR + 2_000, 1_000, 8, false);
        let clock = StoreClock::open(kept(7, Ahead::No), &machine);
        assert_eq!(clock.mark(&machine).ahead, Ahead::Unexplained);
        machine.set(10 * HOUR + 4_000, 3_000, 8, true);
        assert_eq!(clock.mark(&machine).ahead, Ahead::No);
        machine.set(58 * HOUR, 4_000, 8, true);
        assert_eq!(clock.mark(&machine).ahead, Ahead::Contradicted);
    }

    #[test]
    fn no_time_service_vouches_for_a_jump_that_the_ticks_contradict() {
        let machine = Machine::new(10 * HOUR, 5_000, 7, true);
        let clock = StoreClock::open(kept(7, Ahead::No), &machine);
        machine.set(58 * HOUR, 6_000, 7, true);
        let mark = clock.mark(&machine);
        assert_eq!((mark.time.millis(), mark.ahead), (10 * HOUR + 1_000, Ahead::Contradicted));
        machine.set(58 * HOUR, 1_000, 8, true);
        assert_eq!(StoreClock::open(Some(mark), &machine).mark(&machine).ahead, Ahead::Contradicted);
    }

    #[test]
    fn what_is_kept_of_a_clock_ahead_is_read_again_also_of_the_release_before() {
        for ahead in [Ahead::No, Ahead::Unexplained, Ahead::Contradicted] {
            assert_eq!(Ahead::from_number(ahead.number()), ahead);
        }
        assert_eq!(Ahead::from_number(172_800_000), Ahead::Contradicted);
    }

    #[test]
    fn the_machines_clocks_tick() {
        let (one, two) = (SystemClock.read(), SystemClock.read());
        assert!(two.ticks >= one.ticks && one.wall.millis() > 1_600_000_000_000);
    }
}
