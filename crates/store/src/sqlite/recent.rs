//! Records that were read lately, in memory. A client that sends a request again often does so more than once, and to read
//! a row from the file costs more than all else that a replay does in the store.
//!
//! The row of a record never changes. What is found here counts only while the number of its row is the highest that is
//! known for the key, so that a record that was removed or replaced is not taken from here. After a commit in doubt numbers
//! stay known whose rows may be gone: then everything is dropped, which is as needful as the rule before.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::row::Hash;
use crate::claims::Entry;

/// Shards, each with a lock of its own.
const SHARDS: usize = 64;
/// What is kept at most, in bytes, roughly.
const BYTES_MAX: usize = 32 << 20;
/// The largest answer that is kept.
const BODY_BYTES_MAX: usize = 16 << 10;
/// How many more than twice its records a shard names in their order.
const NAMED_MORE_MAX: usize = 64;
/// What a record takes beside its texts: itself, its place in the shard, what the allocator rounds up.
const RECORD_BYTES: usize = size_of::<Entry>() + 256;

/// The records.
#[derive(Debug)]
pub(super) struct Recent {
    shards: Vec<Mutex<Shard>>,
    shard_bytes_max: usize,
    /// How often everything was dropped.
    cleared: AtomicU64,
}

/// Since when records were read: what was read before everything was dropped is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age(u64);

#[derive(Debug, Default)]
struct Shard {
    /// Behind a pointer: a table keeps room for twice what is in it.
    records: HashMap<Hash, Arc<Entry>>,
    /// The oldest first, with the numbers of their rows. One that was dropped or replaced may still be named.
    order: VecDeque<(Hash, u64)>,
    bytes: usize,
}

impl Default for Recent {
    fn default() -> Self {
        Self::with_room(BYTES_MAX)
    }
}

impl Recent {
    fn with_room(bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, shard_bytes_max: bytes / SHARDS, cleared: AtomicU64::default() }
    }

    fn shard(&self, hash: Hash) -> MutexGuard<'_, Shard> {
        locked(&self.shards[usize::from(hash[0]) % SHARDS])
    }

    /// The record under this hash, if its row has this number.
    pub(super) fn get(&self, hash: Hash, number: u64) -> Option<Entry> {
        let found = self.shard(hash).records.get(&hash).cloned();
        found.filter(|entry| entry.record.fence.number == number).map(|entry| (*entry).clone())
    }

    /// Asked before a record is read that is then added.
    pub(super) fn age(&self) -> Age {
        Age(self.cleared.load(Ordering::SeqCst))
    }

    /// A record was read. Says whether it is kept.
    pub(super) fn add(&self, hash: Hash, entry: &Entry, age: Age) -> bool {
        let body_bytes = entry.answer.as_ref().map_or(0, |answer| answer.body.len());
        if body_bytes > BODY_BYTES_MAX {
            return false;
        }
        let mut shard = self.shard(hash);
        if age != self.age() {
            return false;
        }
        // Several may have read it at once.
        let number = entry.record.fence.number;
        if shard.records.get(&hash).is_some_and(|known| known.record.fence.number == number) {
            return true;
        }
        shard.drop_one(hash, None);
        shard.bytes += bytes_of(entry);
        shard.order.push_back((hash, number));
        shard.records.insert(hash, Arc::new(entry.clone()));
        shard.forget_dropped();
        while shard.bytes > self.shard_bytes_max
            && let Some((hash, number)) = shard.order.pop_front()
        {
            shard.drop_one(hash, Some(number));
        }
        true
    }

    /// A row is there no more.
    pub(super) fn remove(&self, hash: Hash, number: u64) {
        self.shard(hash).drop_one(hash, Some(number));
    }

    /// Nothing that is known here may be so any more.
    pub(super) fn clear(&self) {
        // First: whoever adds meanwhile either sees this, or is dropped with the rest.
        self.cleared.fetch_add(1, Ordering::SeqCst);
        self.shards.iter().for_each(|shard| *locked(shard) = Shard::default());
    }
}

impl Shard {
    /// Drops the record under this hash, where a number is given only if it has that number.
    fn drop_one(&mut self, hash: Hash, number: Option<u64>) {
        let is_meant = |entry: &Arc<Entry>| number.is_none_or(|number| entry.record.fence.number == number);
        if self.records.get(&hash).is_some_and(is_meant)
            && let Some(entry) = self.records.remove(&hash)
        {
            self.bytes -= bytes_of(&entry);
        }
    }

    /// Keeps the order from growing where records are dropped before their turn.
    fn forget_dropped(&mut self) {
        if self.order.len() > 2 * self.records.len() + NAMED_MORE_MAX {
            let records = &self.records;
            self.order.retain(|(hash, number)| {
                records.get(hash).is_some_and(|entry| entry.record.fence.number == *number)
            });
        }
    }
}

/// Roughly what a record takes.
fn bytes_of(entry: &Entry) -> usize {
    let about = &entry.about;
    let tenant = about.tenant.as_ref().map_or(0, String::len);
    let told = about.endpoint.len() + about.principal.len() + about.request_id.len() + tenant;
    let headers: usize = about.headers.iter().map(|(name, value)| name.len() + value.len() + 48).sum();
    let answer = entry.answer.as_ref().map_or(0, |answer| {
        let headers: usize = answer.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        headers + answer.body.len()
    });
    RECORD_BYTES + entry.id.key.as_str().len() + told + headers + answer
}

fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().expect("nothing panics while it changes a shard")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_contract::decide::Claim;
    use semel_contract::key::{Format, Key};
    use semel_contract::profile::presets;
    use semel_contract::record::{Fence, Guarantee, Record, State};
    use semel_contract::scope::Scope;
    use semel_contract::time::Timestamp;

    use bytes::Bytes;

    use super::*;
    use crate::claims::{About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Id, Settlement};
    use crate::sqlite::SqliteStore;

    fn record(number: u64, body: Bytes) -> Entry {
        let zero = Timestamp::from_millis(0);
        let facts = Record {
            state: State::Settled,
            guarantee: Guarantee::Fenced,
            fence: Fence { number, nonce: 0 },
            fingerprint: None,
            payload_hash: None,
            lease_until: zero,
            created_at: zero,
            expires_at: None,
        };
        let key = Key::parse(&Format::Any255, "k").expect("it is a key");
        Entry {
            id: Id { scope: Scope::from_bytes([0; 32]), key },
            record: facts,
            about: Arc::new(About::default()),
            answer: Some(Answer { status: 200, headers: [].into(), body, outcome_unknown: false }),
            settled_at: Some(zero),
            late_until: zero,
        }
    }

    fn add(recent: &Recent, hash: Hash, number: u64) {
        assert!(recent.add(hash, &record(number, Bytes::from_static(b"{}")), recent.age()));
    }

    #[test]
    fn a_record_is_found_by_the_number_of_its_row_only() {
        let recent = Recent::default();
        add(&recent, [1; 16], 7);
        assert_eq!(recent.get([1; 16], 7).map(|entry| entry.record.fence.number), Some(7));
        assert!(recent.get([1; 16], 8).is_none() && recent.get([2; 16], 7).is_none());
    }

    #[test]
    fn a_row_that_is_gone_takes_its_own_record_along_and_no_later_one() {
        let recent = Recent::default();
        add(&recent, [1; 16], 7);
        add(&recent, [1; 16], 9);
        recent.remove([1; 16], 7);
        assert!(recent.get([1; 16], 7).is_none() && recent.get([1; 16], 9).is_some());
        recent.remove([1; 16], 9);
        assert!(recent.get([1; 16], 9).is_none());
        add(&recent, [1; 16], 11);
        recent.clear();
        assert!(recent.get([1; 16], 11).is_none());
    }

    #[test]
    fn the_oldest_make_room_and_nothing_grows_beyond_its_bounds() {
        let recent = Recent::with_room(SHARDS * 10 * RECORD_BYTES);
        let hash = |number: u64| {
            let mut hash = [0; 16];
            hash[8..].copy_from_slice(&number.to_be_bytes());
            hash
        };
        (1..=100).for_each(|number| add(&recent, hash(number), number));
        assert!(recent.get(hash(1), 1).is_none() && recent.get(hash(100), 100).is_some());
        for number in 101..=1000 {
            add(&recent, hash(number), number);
            recent.remove(hash(number), number);
        }
        let shard = locked(&recent.shards[0]);
        assert!(shard.bytes <= 10 * RECORD_BYTES && shard.records.len() <= 10);
        assert!(shard.order.len() <= 2 * shard.records.len() + NAMED_MORE_MAX + 1, "{}", shard.order.len());
        let counted: usize = shard.records.values().map(|entry| bytes_of(entry)).sum();
        assert_eq!(counted, shard.bytes);
    }

    #[tokio::test]
    async fn a_settled_record_is_here_once_it_was_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(directory.path().join("semel.db"));
        let store = store.expect("a new file can be opened");
        let settled = record(1, Bytes::from_static(b"{}"));
        let request = ClaimRequest {
            id: settled.id.clone(),
            how: Claim::New,
            replaces: None,
            nonce: 1,
            lease: Duration::from_secs(30),
            late: Duration::ZERO,
            guarantee: Guarantee::Fenced,
            fingerprint: None,
            payload_hash: None,
            rotation: None,
            terms: None,
            about: Arc::clone(&settled.about),
        };
        let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(request).await else {
            panic!("nobody else claims")
        };
        let is_here = || store.shared.recent.get(settled.id.hash(), fence.number).is_some();
        store.look_up(&settled.id).await.expect("the store answers");
        assert!(!is_here(), "an open claim is not a record");
        let settlement = Settlement::Settle(settled.answer.expect("it has one"));
        let lifetime = presets::ietf().lifetime;
        store.settle(&settled.id, fence, settlement, &lifetime).await.expect("the store answers");
        assert!(!is_here(), "nobody has asked for it");
        store.look_up(&settled.id).await.expect("the store answers");
        assert!(is_here());
    }

    #[test]
    fn several_that_read_one_record_keep_it_once() {
        let recent = Recent::default();
        (0..500).for_each(|_| add(&recent, [1; 16], 7));
        let shard = recent.shard([1; 16]);
        assert_eq!((shard.order.len(), shard.records.len()), (1, 1));
    }

    #[test]
    fn a_large_answer_is_left_to_the_file() {
        let recent = Recent::default();
        let large = record(1, Bytes::from(vec![0; BODY_BYTES_MAX + 1]));
        assert!(!recent.add([1; 16], &large, recent.age()) && recent.get([1; 16], 1).is_none());
    }

    #[test]
    fn what_was_read_before_everything_was_dropped_is_not_kept() {
        let recent = Recent::default();
        let age = recent.age();
        recent.clear();
        assert!(!recent.add([1; 16], &record(1, Bytes::new()), age));
        assert!(recent.get([1; 16], 1).is_none());
    }
}
