//! About how often something happened to records since this process started, in memory that never grows. It forgets the
//! records that it heard of longest ago, and may take one record for another once in millions: for people to look at, never
//! for a decision.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Places among which a record has its own.
const WAYS: usize = 4;
/// Sets of such places: half a megabyte in all, which is taken when the first thing happens.
const SETS_BITS: u32 = 14;

const COUNT_BITS: u32 = 16;
const SECONDS_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const SECONDS_MAX: u64 = (1 << SECONDS_BITS) - 1;

/// Counts by the number of a record's fence.
#[derive(Debug)]
pub struct Tally {
    started: Instant,
    places: OnceLock<Box<[AtomicU64]>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { started: Instant::now(), places: OnceLock::new() }
    }
}

/// What is known of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tallied {
    /// About how often it happened.
    pub count: u64,
    /// How long ago it happened last, to the second.
    pub ago: Duration,
}

/// What one place holds: whose it is, how often, and when last.
#[derive(Clone, Copy)]
struct Place {
    tag: u64,
    count: u64,
    seconds: u64,
}

impl Place {
    fn unpack(packed: u64) -> Place {
        Place {
            tag: packed >> (COUNT_BITS + SECONDS_BITS),
            count: (packed >> SECONDS_BITS) & COUNT_MAX,
            seconds: packed & SECONDS_MAX,
        }
    }

    fn pack(self) -> u64 {
        let count = self.count.min(COUNT_MAX) << SECONDS_BITS;
        (self.tag << (COUNT_BITS + SECONDS_BITS)) | count | self.seconds.min(SECONDS_MAX)
    }
}

/// The set of a record's places, and what tells it from others of the set.
fn place_of(number: u64) -> (usize, u64) {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((mixed >> (64 - SETS_BITS)) as usize * WAYS, mixed & ((1 << (64 - COUNT_BITS - SECONDS_BITS)) - 1))
}

impl Tally {
    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs().min(SECONDS_MAX)
    }

    /// It happened to the record with this number.
    pub fn add(&self, number: u64) {
        let places =
            self.places.get_or_init(|| (0..(1 << SETS_BITS) * WAYS).map(|_| AtomicU64::new(0)).collect());
        let (first, tag) = place_of(number);
        let seconds = self.seconds();
        let own = &places[first..first + WAYS];
        let is_its = |packed: u64| {
            let place = Place::unpack(packed);
            (place.count > 0 && place.tag == tag)
                .then(|| Place { count: (place.count + 1).min(COUNT_MAX), seconds, ..place }.pack())
        };
        if own.iter().any(|place| place.fetch_update(Relaxed, Relaxed, is_its).is_ok()) {
            return;
        }
        // An empty place counts as the oldest. Of several of one second any may go: always the same one would forget what has
        // just happened.
        let oldest = own.iter().zip(0u64..).min_by_key(|(place, way)| {
            let place = Place::unpack(place.load(Relaxed));
            (place.count > 0, place.seconds, (way + tag) % WAYS as u64)
        });
        if let Some((oldest, _)) = oldest {
            oldest.store(Place { tag, count: 1, seconds }.pack(), Relaxed);
        }
    }

    /// What is known of the record with this number; nothing where it never happened, or so long ago that it is forgotten.
    pub fn of(&self, number: u64) -> Option<Tallied> {
        let places = self.places.get()?;
        let (first, tag) = place_of(number);
        let own = places[first..first + WAYS].iter().map(|place| Place::unpack(place.load(Relaxed)));
        let its: Vec<Place> = own.filter(|place| place.count > 0 && place.tag == tag).collect();
        let last = its.iter().map(|place| place.seconds).max()?;
        Some(Tallied {
            count: its.iter().map(|place| place.count).sum(),
            ago: Duration::from_secs(self.seconds().saturating_sub(last)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_to_a_record_is_counted_and_of_another_nothing_is_known() {
        let tally = Tally::default();
        assert_eq!(tally.of(7), None);
        for _ in 0..3 {
            tally.add(7);
        }
        tally.add(8);
        assert_eq!(
            (tally.of(7).map(|seen| seen.count), tally.of(8).map(|seen| seen.count)),
            (Some(3), Some(1))
        );
        assert_eq!(tally.of(9), None);
    }

    #[test]
    fn a_million_records_take_no_more_room_and_the_last_ones_are_known() {
        let tally = Tally::default();
        for number in 0..1_000_000 {
            tally.add(number);
        }
        assert_eq!(tally.places.get().map(|places| places.len()), Some((1 << SETS_BITS) * WAYS));
        let known = (990_000..1_000_000).filter(|number| tally.of(*number).is_some()).count();
        assert!(known > 9_000, "{known} of the last 10,000 are known");
    }

    #[test]
    fn a_count_stops_at_its_end_and_never_begins_anew() {
        let tally = Tally::default();
        for _ in 0..COUNT_MAX + 10 {
            tally.add(1);
        }
        assert_eq!(tally.of(1).map(|seen| seen.count), Some(COUNT_MAX));
    }

    #[test]
    fn of_what_many_threads_add_next_to_nothing_is_lost() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| tally.add(5)));
            }
        });
        let count = tally.of(5).map_or(0, |seen| seen.count);
        assert!((39_900..=40_000).contains(&count), "{count}");
    }
}
