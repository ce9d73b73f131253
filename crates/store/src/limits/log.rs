//! The ids that one principal brought within the last window, each with its first time and its tries. Owns the order
//! in which they leave. Keeps at most as many live ids as the rate allows, since a refused one is never entered.

use std::collections::{BTreeSet, HashMap};

use semel_contract::time::Timestamp;

use super::window::CLEARED_PER_CALL_MAX;

/// Hash of an id.
type Hash = [u8; 16];

/// A log of first sights.
#[derive(Debug, Default)]
pub(crate) struct KeyLog {
    by_time: BTreeSet<(Timestamp, Hash)>,
    ids: HashMap<Hash, Sight>,
}

/// The first sight of an id, and the tries since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) at: Timestamp,
    pub(crate) tries: u32,
}

impl KeyLog {
    /// Forgets a bounded number of ids that are not after `floor`, the oldest first, and says how many.
    pub(crate) fn clear_until(&mut self, floor: Timestamp) -> usize {
        let mut cleared = 0;
        while cleared < CLEARED_PER_CALL_MAX
            && let Some(oldest) = self.by_time.first().copied().filter(|(at, _)| *at <= floor)
        {
            self.by_time.remove(&oldest);
            self.ids.remove(&oldest.1);
            cleared += 1;
        }
        cleared
    }

    /// How many ids came after `floor`.
    pub(crate) fn live(&self, floor: Timestamp) -> usize {
        self.ids.len() - self.by_time.range(..=(floor, Hash::from([u8::MAX; 16]))).count()
    }

    /// The time of the id that is `index` places behind the oldest one after `floor`.
    pub(crate) fn leaving(&self, floor: Timestamp, index: usize) -> Option<Timestamp> {
        let after = self.by_time.range((floor, Hash::from([u8::MAX; 16]))..);
        after.map(|(at, _)| *at).filter(|at| *at > floor).nth(index)
    }

    /// What is known of an id that came after `floor`.
    pub(crate) fn sight(&self, id: Hash, floor: Timestamp) -> Option<Sight> {
        self.ids.get(&id).copied().filter(|sight| sight.at > floor)
    }

    /// Whether the id is kept, be it live or not yet cleared away.
    pub(crate) fn holds(&self, id: Hash) -> bool {
        self.ids.contains_key(&id)
    }

    /// Enters an id anew.
    pub(crate) fn enter(&mut self, id: Hash, at: Timestamp) {
        if let Some(before) = self.ids.insert(id, Sight { at, tries: 1 }) {
            self.by_time.remove(&(before.at, id));
        }
        self.by_time.insert((at, id));
    }

    /// Counts one more try.
    pub(crate) fn try_again(&mut self, id: Hash) {
        if let Some(sight) = self.ids.get_mut(&id) {
            sight.tries += 1;
        }
    }

    /// How many ids are kept.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn one_call_clears_a_bounded_number_and_counts_the_rest_right() {
        let mut log = KeyLog::default();
        for number in 0..CLEARED_PER_CALL_MAX as u128 + 100 {
            log.enter(number.to_be_bytes(), at(number as i64));
        }
        let floor = at(CLEARED_PER_CALL_MAX as i64 + 49);
        assert_eq!(log.live(floor), 50);
        assert_eq!(log.clear_until(floor), CLEARED_PER_CALL_MAX);
        assert_eq!(
            (log.len(), log.live(floor)),
            (100, 50),
            "an expired id that is still there does not count"
        );
        assert_eq!(log.leaving(floor, 0), Some(at(CLEARED_PER_CALL_MAX as i64 + 50)));
        assert_eq!((log.clear_until(floor), log.clear_until(floor)), (50, 0));
    }

    #[test]
    fn an_expired_id_that_comes_again_is_entered_once() {
        let mut log = KeyLog::default();
        log.enter([1; 16], at(10));
        assert_eq!(log.sight([1; 16], at(10)), None);
        log.enter([1; 16], at(30));
        assert_eq!((log.len(), log.live(at(10))), (1, 1));
        assert_eq!(log.clear_until(at(10)), 0);
    }
}
