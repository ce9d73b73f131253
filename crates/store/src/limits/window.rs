//! The arithmetic of windows, shared by every backend: buckets, weights, who pays, and how long to wait. Never reads a
//! clock and keeps nothing; a backend brings the counts and writes back what it is told.

use std::time::Duration;

use semel_contract::profile::Rate;
use semel_contract::time::{Timestamp, millis_of};

use super::{Verdict, Why};

/// A whole previous bucket. Shares of it are sixty-five-thousandths, so that a count of 32 bits times a share is exact
/// in a double, which is all that a script in Redis has.
pub const WEIGHT_WHOLE: u64 = 1 << 16;
/// The longest window; a longer one counts as this. Ten years.
pub const WINDOW_MILLIS_MAX: i64 = 3_660 * 86_400_000;
/// How many windows after its last charge an id's marker is still known. One would do if all clocks agreed.
pub const MARKER_LIFE_WINDOWS: i64 = 2;
/// The same for counted requests, which matter for up to two windows: here too one more for clocks that are behind.
pub const REQUESTS_LIFE_WINDOWS: i64 = 3;
/// How many expired ids one call may clear away, so that no call pays for a whole hour.
pub const CLEARED_PER_CALL_MAX: usize = 512;

/// A window in milliseconds; never zero.
pub fn window_millis(window: Duration) -> i64 {
    millis_of(window).clamp(1, WINDOW_MILLIS_MAX)
}

/// How long markers with this window are known.
pub fn marker_life_millis(window: Duration) -> i64 {
    window_millis(window) * MARKER_LIFE_WINDOWS
}

/// How long counted requests with this window are known.
pub fn requests_life_millis(window: Duration) -> i64 {
    window_millis(window) * REQUESTS_LIFE_WINDOWS
}

/// Where in the aligned windows a moment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The number of the aligned window.
    pub bucket: i64,
    elapsed: i64,
    window: i64,
}

impl Span {
    /// The place of `now`.
    pub fn at(now: Timestamp, window: Duration) -> Self {
        let window = window_millis(window);
        let millis = now.millis();
        Self { bucket: millis.div_euclid(window), elapsed: millis.rem_euclid(window), window }
    }

    /// The same place, or the beginning of `bucket` where that is later: another process's clock was ahead, and going
    /// back to an older bucket would forget what was counted since.
    #[must_use]
    pub fn no_earlier_than(self, bucket: i64) -> Self {
        if self.bucket < bucket { Self { bucket, elapsed: 0, ..self } } else { self }
    }

    /// Milliseconds until the next bucket begins.
    pub fn left_millis(self) -> i64 {
        self.window - self.elapsed
    }

    /// The share of the previous bucket that a window ending here still covers, rounded up.
    pub fn weight(self) -> u64 {
        let left = self.left_millis().unsigned_abs();
        (left * WEIGHT_WHOLE).div_ceil(self.window.unsigned_abs())
    }
}

/// What is kept of a subject's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The bucket of `current`.
    pub bucket: i64,
    /// Requests of this bucket.
    pub current: u32,
    /// Requests of the bucket before.
    pub previous: u32,
}

/// Whether a request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It was.
    Yes,
    /// The window was full.
    No,
}

impl Pair {
    /// Counts a request if there is room for it. The script for Redis does the same in its own words.
    pub fn count(known: Option<Pair>, rate: Rate, now: Timestamp) -> (Pair, Counted) {
        let span = Span::at(now, rate.window).no_earlier_than(known.map_or(i64::MIN, |pair| pair.bucket));
        let pair = known.unwrap_or_default().moved_to(span.bucket);
        if pair.used(span) < u64::from(rate.count) {
            (Pair { current: pair.current + 1, ..pair }, Counted::Yes)
        } else {
            (pair, Counted::No)
        }
    }

    /// What to say of a request that led to this pair.
    pub fn verdict(self, counted: Counted, rate: Rate, now: Timestamp) -> Verdict {
        let span = Span::at(now, rate.window).no_earlier_than(self.bucket);
        let pair = self.moved_to(span.bucket);
        match counted {
            Counted::Yes => Verdict::Allowed {
                remaining: u32::try_from(u64::from(rate.count).saturating_sub(pair.used(span))).unwrap_or(0),
                reset: duration(span.left_millis()),
            },
            Counted::No => Verdict::Denied {
                retry_after: duration(pair.wait_millis(span, rate.count)),
                limit: rate,
                why: Why::OverLimit,
            },
        }
    }

    fn moved_to(self, bucket: i64) -> Pair {
        match bucket.saturating_sub(self.bucket) {
            0 => self,
            1 => Pair { bucket, current: 0, previous: self.current },
            _ => Pair { bucket, current: 0, previous: 0 },
        }
    }

    fn used(self, span: Span) -> u64 {
        u64::from(self.current) + (u64::from(self.previous) * span.weight()).div_ceil(WEIGHT_WHOLE)
    }

    /// How long until one more fits, if nobody else comes: exact to the millisecond.
    fn wait_millis(self, span: Span, limit: u32) -> i64 {
        let Some(room) = limit.checked_sub(1) else { return span.window };
        match room.checked_sub(self.current) {
            // The previous bucket is in the way, and fades while this one lasts.
            Some(room) => (span.left_millis() - bearable_millis(room, self.previous, span.window)).max(0),
            // This bucket is in the way, and fades only once it is the previous one.
            None => span.left_millis() + span.window - bearable_millis(room, self.current, span.window),
        }
    }
}

/// The longest remainder of a bucket in which `previous` requests of the one before count as at most `room`.
fn bearable_millis(room: u32, previous: u32, window: i64) -> i64 {
    let whole = WEIGHT_WHOLE.cast_signed();
    let weight = (i64::from(room) * whole).checked_div(i64::from(previous)).unwrap_or(whole).min(whole);
    weight * window / whole
}

/// What a try of an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first within its window: it takes a unit.
    First,
    /// One more of an id that has its unit.
    Again,
    /// A first one without room. Its unit is given back, and it leaves no marker: it would pay for a later try.
    OverLimit,
    /// One too many of an id that has its unit.
    TooOften,
}

impl Step {
    /// Decides by the tries of this id so far (`None`: not seen in this window) and the units taken. The scripts for
    /// Redis do the same in their own words.
    pub fn of(tries: Option<u32>, used: u32, limit: u32, tries_max: u32) -> Step {
        match tries {
            Some(tries) if tries >= tries_max => Step::TooOften,
            Some(_) => Step::Again,
            None if used >= limit => Step::OverLimit,
            None => Step::First,
        }
    }

    /// The step of the number that a shared limiter's script or function gives.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn numbered(number: i64) -> Result<Step, crate::claims::StoreError> {
        match number {
            0 => Ok(Step::First),
            1 => Ok(Step::Again),
            2 => Ok(Step::OverLimit),
            3 => Ok(Step::TooOften),
            other => Err(crate::claims::StoreError::Unavailable(format!(
                "the limiter answered with the step {other}"
            ))),
        }
    }

    /// What to say of it, with the units that are now taken and the moment at which this wish has a better chance.
    pub fn verdict(self, used: u32, rate: Rate, better_at: Timestamp, now: Timestamp) -> Verdict {
        let until = duration(better_at.millis_since(now));
        let denied = |why| Verdict::Denied { retry_after: until, limit: rate, why };
        match self {
            Step::First | Step::Again => {
                Verdict::Allowed { remaining: rate.count.saturating_sub(used), reset: until }
            }
            Step::OverLimit => denied(Why::OverLimit),
            Step::TooOften => denied(Why::TooManyAttempts),
        }
    }
}

/// The end of the aligned window that `now` lies in.
pub fn window_end(now: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_millis(now.millis().saturating_add(Span::at(now, window).left_millis()))
}

/// The latest moment that a window ending now no longer covers.
pub fn window_floor(now: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_millis(now.millis().saturating_sub(window_millis(window)))
}

/// The moment at which a charge of `at` leaves the window.
pub fn leaves_at(at: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_millis(at.millis().saturating_add(window_millis(window)))
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn rate(count: u32, window: u64) -> Rate {
        Rate { count, window: Duration::from_millis(window) }
    }

    fn allowed(pair: Option<Pair>, rate: Rate, now: i64) -> bool {
        Pair::count(pair, rate, at(now)).1 == Counted::Yes
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_in_an_aligned_window_nor_twice_in_any_other(
            limit in 0u32..20, window in 1u64..500, start in -1000i64..1000, steps in prop::collection::vec(0i64..60, 1..300),
        ) {
            let rate = rate(limit, window);
            let (mut known, mut now, mut admitted) = (None, start, Vec::new());
            for step in steps {
                now += step;
                let (pair, counted) = Pair::count(known, rate, at(now));
                known = Some(pair);
                admitted.extend((counted == Counted::Yes).then_some(now));
            }
            let mut buckets = BTreeMap::<i64, u32>::new();
            for at in &admitted {
                *buckets.entry(at.div_euclid(window as i64)).or_default() += 1;
                let since = admitted.iter().filter(|other| (at - window as i64..*at).contains(other)).count();
                prop_assert!((since as u32) < limit * 2);
            }
            prop_assert!(buckets.values().all(|count| *count <= limit), "{buckets:?}");
        }

        #[test]
        fn a_clock_that_goes_back_never_frees_a_window(
            limit in 1u32..10, window in 1u64..200, steps in prop::collection::vec(-150i64..200, 1..300),
        ) {
            let rate = rate(limit, window);
            let (mut known, mut now) = (None::<Pair>, 1_000_000);
            let mut buckets = BTreeMap::<i64, u32>::new();
            for step in steps {
                now += step;
                let (pair, counted) = Pair::count(known, rate, at(now));
                prop_assert!(known.is_none_or(|known| pair.bucket >= known.bucket));
                if counted == Counted::Yes {
                    *buckets.entry(pair.bucket).or_default() += 1;
                }
                known = Some(pair);
            }
            prop_assert!(buckets.values().all(|count| *count <= limit), "{buckets:?}");
        }

        #[test]
        fn a_refused_request_is_let_in_exactly_when_it_is_told(
            limit in 1u32..40, window in 1u64..5_000, current in 0u32..60, previous in 0u32..60, now in 0i64..20_000,
        ) {
            let rate = rate(limit, window);
            let known = Pair { bucket: Span::at(at(now), rate.window).bucket, current, previous };
            let (pair, counted) = Pair::count(Some(known), rate, at(now));
            match pair.verdict(counted, rate, at(now)) {
                Verdict::Allowed { .. } => prop_assert_eq!(pair, Pair { current: current + 1, ..known }),
                Verdict::Denied { retry_after, .. } => {
                    prop_assert_eq!(pair, known, "a refusal counts nothing");
                    let wait = millis_of(retry_after);
                    prop_assert!(wait > 0);
                    prop_assert!(allowed(Some(pair), rate, now + wait), "after {}", wait);
                    prop_assert!(!allowed(Some(pair), rate, now + wait - 1), "before {}", wait);
                }
            }
        }

        #[test]
        fn what_remains_can_be_spent_at_once_and_not_more(
            limit in 1u32..40, window in 1u64..5_000, current in 0u32..60, previous in 0u32..60, now in 0i64..20_000,
        ) {
            let rate = rate(limit, window);
            let known = Pair { bucket: Span::at(at(now), rate.window).bucket, current, previous };
            let (mut pair, counted) = Pair::count(Some(known), rate, at(now));
            if let Verdict::Allowed { remaining, .. } = pair.verdict(counted, rate, at(now)) {
                for _ in 0..remaining {
                    let (next, counted) = Pair::count(Some(pair), rate, at(now));
                    prop_assert_eq!(counted, Counted::Yes);
                    pair = next;
                }
                prop_assert!(!allowed(Some(pair), rate, now));
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let rate = Rate { count: u32::MAX, window: Duration::MAX };
        for now in [i64::MIN, -1, 0, i64::MAX] {
            let span = Span::at(at(now), rate.window);
            let known = Pair { bucket: span.bucket, current: u32::MAX - 1, previous: u32::MAX };
            let (pair, counted) = Pair::count(Some(known), rate, at(now));
            pair.verdict(counted, rate, at(now));
            pair.verdict(Counted::No, rate, at(now));
            assert!(window_end(at(now), rate.window) >= at(now));
            assert!(span.weight() <= WEIGHT_WHOLE);
        }
    }

    #[test]
    fn a_limit_of_none_lets_nothing_in_and_a_window_of_none_is_a_millisecond() {
        assert!(!allowed(None, rate(0, 1000), 5));
        assert!(allowed(None, rate(1, 0), 5));
        assert_eq!(Step::of(None, 0, 0, 10), Step::OverLimit);
    }
}
