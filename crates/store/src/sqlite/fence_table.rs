//! Fence numbers by sixteen bytes, in memory: a compact table in shards. Eight bytes a number, four more where it knows whose
//! it is, and some room. Keeps two bytes of the sixteen beside the number, so that what it finds may be of something else.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};

/// Shards, each with a lock and a table of its own: growing one of them takes microseconds.
const SHARDS: usize = 4096;
/// Bits of a number that are kept; at a million a second that is nine years, at a thousand nine thousand.
const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// Numbers that are collected before they are added, some megabytes of them.
const FILLED_AT_ONCE: usize = 1 << 19;
/// A slot in which nothing is; numbers count from one.
const EMPTY: u64 = 0;

/// Which principal it belongs to, as far as four bytes can tell.
pub(super) type Who = u32;

/// The four bytes of a principal. They are written into rows, so they never change.
pub(super) fn who(principal: &str) -> Who {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = principal.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix);
    ((hash >> 32) ^ (hash & 0xffff_ffff)) as Who
}

/// The table. What it keeps beside a number is whose it is, or nothing.
#[derive(Debug)]
pub(super) struct FenceTable<W = Who> {
    shards: Vec<Mutex<Shard<W>>>,
    /// Mixed into the bytes, so that nobody can choose keys that meet at one place.
    secret: Option<RandomState>,
}

/// An open table: a number stands at the place that its tag says, or behind it without a gap.
#[derive(Debug, Default)]
struct Shard<W> {
    slots: Vec<u64>,
    whose: Vec<W>,
    used: usize,
}

impl<W: Copy + Default> Default for FenceTable<W> {
    fn default() -> Self {
        Self { shards: shards(), secret: Some(RandomState::new()) }
    }
}

impl<W: Copy + Default> FenceTable<W> {
    fn shard(&self, hash: &[u8; 16]) -> (MutexGuard<'_, Shard<W>>, u16) {
        let (at, tag) = self.place(hash);
        (locked(&self.shards[at]), tag)
    }

    /// The shard of these bytes, and their tag there.
    fn place(&self, hash: &[u8; 16]) -> (usize, u16) {
        let mixed = match &self.secret {
            Some(secret) => secret.hash_one(hash),
            None => u64::from_be_bytes(*hash.first_chunk().expect("sixteen bytes are more than eight")),
        };
        let [a, b, c, d, ..] = mixed.to_be_bytes();
        let at = usize::from(u16::from_be_bytes([a, b])) % SHARDS;
        (at, u16::from_be_bytes([c, d]))
    }

    /// The numbers that may be of these bytes, the highest first.
    pub(super) fn of(&self, hash: &[u8; 16]) -> Vec<u64> {
        let (shard, tag) = self.shard(hash);
        let mut found: Vec<u64> = shard.run(tag).filter_map(|at| shard.number(at, tag)).collect();
        drop(shard);
        found.sort_unstable_by(|one, other| other.cmp(one));
        found
    }

    /// Adds a number, and says whether it was not there.
    pub(super) fn add(&self, hash: &[u8; 16], number: u64, who: W) -> bool {
        self.add_among(hash, number, who, usize::MAX)
    }

    /// The same, unless so many numbers of these bytes are there already: to find the end of a long run takes long.
    pub(super) fn add_among(&self, hash: &[u8; 16], number: u64, who: W, others_max: usize) -> bool {
        check(number);
        let (mut shard, tag) = self.shard(hash);
        let mut others = 0;
        for known in shard.run(tag).filter_map(|at| shard.number(at, tag)) {
            others += 1;
            if known == number || others >= others_max {
                return false;
            }
        }
        shard.make_room(1);
        shard.insert(slot(tag, number), who);
        true
    }

    /// Takes a number out.
    pub(super) fn remove(&self, hash: &[u8; 16], number: u64) {
        let (mut shard, tag) = self.shard(hash);
        if let Some(at) = shard.position(tag, number) {
            shard.take_out(at);
        }
    }
}

impl FenceTable {
    /// The numbers after this one that may be of this principal, in order. Looks at everything, some
    /// nanoseconds each, and never at more than one shard at once.
    pub(super) fn belonging(&self, who: Who, after: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = locked(shard);
            let rows = shard.slots.iter().zip(&shard.whose).filter(|(slot, _)| **slot != EMPTY);
            let belonging = rows.filter(|(_, of)| **of == who).map(|(slot, _)| slot & NUMBER_MASK);
            found.extend(belonging.filter(|number| *number > after));
        }
        found.sort_unstable();
        found
    }
}

/// Adds many numbers, one shard after the other: at random, every number would wait for memory several times.
#[derive(Debug)]
pub(super) struct Filling<'a> {
    numbers: &'a FenceTable,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    shard: u16,
    who: Who,
    slot: u64,
}

impl<'a> Filling<'a> {
    pub(super) fn new(numbers: &'a FenceTable) -> Self {
        Self { numbers, rows: Vec::new() }
    }

    /// Adds a number that is surely not there; it is found after [`Self::finish`].
    pub(super) fn add(&mut self, hash: &[u8; 16], number: u64, who: Who) {
        check(number);
        let (shard, tag) = self.numbers.place(hash);
        self.rows.push(Row { shard: shard as u16, who, slot: slot(tag, number) });
        if self.rows.len() == FILLED_AT_ONCE {
            self.put();
        }
    }

    /// Adds what is left.
    pub(super) fn finish(mut self) {
        self.put();
    }

    fn put(&mut self) {
        self.rows.sort_unstable_by_key(|row| row.shard);
        for rows in self.rows.chunk_by(|one, next| one.shard == next.shard) {
            let mut shard = locked(&self.numbers.shards[usize::from(rows[0].shard)]);
            shard.make_room(rows.len());
            rows.iter().for_each(|row| shard.insert(row.slot, row.who));
        }
        self.rows.clear();
    }
}

fn check(number: u64) {
    assert!(number != 0 && number <= NUMBER_MASK, "fence numbers have 48 bits");
}

fn shards<W: Default>() -> Vec<Mutex<Shard<W>>> {
    (0..SHARDS).map(|_| Mutex::default()).collect()
}

fn locked<W>(shard: &Mutex<Shard<W>>) -> MutexGuard<'_, Shard<W>> {
    shard.lock().expect("nothing panics while it changes a shard")
}

fn slot(tag: u16, number: u64) -> u64 {
    u64::from(tag) << NUMBER_BITS | number
}

fn tag_of(slot: u64) -> u16 {
    (slot >> NUMBER_BITS) as u16
}

impl<W: Copy + Default> Shard<W> {
    /// Where a tag would stand in an empty table.
    fn home(&self, tag: u16) -> usize {
        (usize::from(tag) * self.slots.len()) >> 16
    }

    /// From a tag's home to the next gap.
    fn run(&self, tag: u16) -> impl Iterator<Item = usize> + '_ {
        let home = self.home(tag);
        (home..self.slots.len()).chain(0..home).take_while(|at| self.slots[*at] != EMPTY)
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn number(&self, at: usize, tag: u16) -> Option<u64> {
        let slot = self.slots[at];
        (tag_of(slot) == tag).then_some(slot & NUMBER_MASK)
    }

    fn position(&self, tag: u16, number: u64) -> Option<usize> {
        let wanted = slot(tag, number);
        self.run(tag).find(|at| self.slots[*at] == wanted)
    }

    /// Makes room for so many more. Grows at least by half once three quarters are used, so that runs stay short.
    fn make_room(&mut self, more: usize) {
        let least = ((self.used + more) * 4).div_ceil(3);
        if least <= self.slots.len() {
            return;
        }
        let length = (self.slots.len() * 3 / 2).max(least).max(8);
        let slots = std::mem::replace(&mut self.slots, vec![EMPTY; length]);
        let whose = std::mem::replace(&mut self.whose, vec![W::default(); length]);
        self.used = 0;
        for (slot, who) in slots.into_iter().zip(whose).filter(|(slot, _)| *slot != EMPTY) {
            self.insert(slot, who);
        }
    }

    fn insert(&mut self, slot: u64, who: W) {
        let mut at = self.home(tag_of(slot));
        while self.slots[at] != EMPTY {
            at = self.after(at);
        }
        self.slots[at] = slot;
        self.whose[at] = who;
        self.used += 1;
    }

    /// Empties a slot, and closes the gap: whatever stands behind it moves up unless it is at home.
    fn take_out(&mut self, at: usize) {
        let length = self.slots.len();
        let (mut gap, mut next) = (at, self.after(at));
        while self.slots[next] != EMPTY {
            let home = self.home(tag_of(self.slots[next]));
            let (from_home, from_gap) = ((next + length - home) % length, (next + length - gap) % length);
            if from_home >= from_gap {
                self.slots[gap] = self.slots[next];
                self.whose[gap] = self.whose[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = EMPTY;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// Hashes that meet in one shard, and often at one place.
    fn hash(of: u16) -> [u8; 16] {
        let mut hash = [0; 16];
        hash[2..4].copy_from_slice(&of.wrapping_mul(4099).to_be_bytes());
        hash
    }

    proptest! {
        #[test]
        fn every_row_is_named_and_what_was_taken_out_is_not(
            steps in prop::collection::vec((any::<bool>(), 0_u16..40, 1_u64..60), 1..400)
        ) {
            let table = FenceTable { shards: shards(), secret: None };
            let mut model: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
            for (adds, of, number) in steps {
                let numbers = model.entry(of).or_default();
                if adds {
                    prop_assert_eq!(table.add(&hash(of), number, Who::from(of)), numbers.insert(number));
                } else {
                    table.remove(&hash(of), number);
                    numbers.remove(&number);
                }
            }
            for (of, numbers) in &model {
                let found = table.of(&hash(*of));
                prop_assert_eq!(found, numbers.iter().rev().copied().collect::<Vec<_>>());
                let found = table.belonging(Who::from(*of), 10);
                prop_assert_eq!(found, numbers.iter().copied().filter(|it| *it > 10).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_was_filled_in_is_found() {
        let hash = |number: u64| {
            u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C834).to_be_bytes()
        };
        let table = FenceTable::default();
        let many = FILLED_AT_ONCE as u64 + 1000;
        let mut filling = Filling::new(&table);
        (1..=many).for_each(|number| filling.add(&hash(number), number, 7));
        filling.finish();
        assert!((1..=many).all(|number| table.of(&hash(number)).contains(&number)));
        assert_eq!(table.belonging(7, 0), (1..=many).collect::<Vec<_>>());
    }

    /// Slots for so many numbers, and the bytes of what is kept beside them.
    fn room<W: Copy + Default>(numbers: u64) -> (usize, usize) {
        let table = FenceTable::<W>::default();
        for number in 1..=numbers {
            let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            let mut hash = [0; 16];
            hash[..8].copy_from_slice(&mixed);
            table.add(&hash, number, W::default());
        }
        let shards = table.shards.iter().map(|shard| locked(shard));
        shards.fold((0, 0), |(slots, bytes), shard| {
            (slots + shard.slots.capacity(), bytes + shard.whose.len() * size_of::<W>())
        })
    }

    #[test]
    fn a_row_costs_at_most_twenty_four_bytes_and_a_key_sixteen() {
        let (slots, whose) = room::<Who>(100_000);
        assert!(slots * 8 + whose <= 2_400_000, "{slots}");
        let (slots, whose) = room::<()>(100_000);
        assert!(slots * 8 <= 1_600_000 && whose == 0, "{slots}");
    }

    #[test]
    fn of_the_same_bytes_no_more_are_kept_than_was_said() {
        let table = FenceTable::<()>::default();
        let added = (1..=20).filter(|number| table.add_among(&[7; 16], *number, (), 5)).count();
        assert_eq!((added, table.of(&[7; 16])), (5, vec![5, 4, 3, 2, 1]));
        table.remove(&[7; 16], 3);
        assert!(table.add_among(&[7; 16], 9, (), 5) && !table.add_among(&[7; 16], 9, (), 5));
    }

    #[test]
    fn the_four_bytes_of_a_principal_stay_what_they_are() {
        assert_eq!((who(""), who("alice")), (0x4fd0_bfc1, 892_015_548));
    }
}
