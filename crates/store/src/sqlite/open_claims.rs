//! The claims that are held in this process right now. The writer alone decides and changes them, after the commit that
//! makes a change true; holders renew their leases here; readers look here first. Never locked across I/O.

use std::collections::HashMap;
use std::time::Duration;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_contract::transitions;

use super::key_index::KeyIndex;
use super::recent::Recent;
use super::row::{Hash, Rotation, StoredEntry};
use super::statements::RowRef;
use crate::claims::{FencedWrite, Filter, Id};

/// A change of what is held: `None` lets go.
pub(super) type Change = (Hash, Option<StoredEntry>);

/// The held claims, by the hash of their id.
#[derive(Debug, Default)]
pub(super) struct OpenClaims {
    held: HashMap<Hash, StoredEntry>,
    rotations: HashMap<Rotation, Hash>,
}

impl OpenClaims {
    /// The claim that is held under this hash.
    pub(super) fn get(&self, hash: Hash) -> Option<&StoredEntry> {
        self.held.get(&hash)
    }

    /// Whose claim has this rotation.
    pub(super) fn rotation(&self, rotation: Rotation) -> Option<Hash> {
        self.rotations.get(&rotation).copied()
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &StoredEntry> {
        self.held.values()
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, (hash, kept): Change) {
        let rotation = kept.as_ref().and_then(|kept| kept.rotation);
        let before = match kept {
            Some(kept) => self.held.insert(hash, kept),
            None => self.held.remove(&hash),
        };
        if let Some(given_up) = before.and_then(|before| before.rotation)
            && self.rotations.get(&given_up) == Some(&hash)
        {
            self.rotations.remove(&given_up);
        }
        if let Some(rotation) = rotation {
            self.rotations.insert(rotation, hash);
        }
    }

    /// Extends a lease. The caller reads the time after it locked this: a claim that the writer has seen lapsed is then
    /// lapsed here too, because time never goes back.
    pub(super) fn renew(&mut self, id: &Id, fence: Fence, lease: Duration, now: Timestamp) -> FencedWrite {
        match self.held.get_mut(&id.hash()) {
            Some(kept) if kept.entry.id == *id && transitions::is_renewed(&kept.entry.record, fence, now) => {
                kept.entry.record.lease_until = now.plus(lease);
                FencedWrite::Done
            }
            Some(_) | None => FencedWrite::Superseded,
        }
    }

    /// The claims that a list shows.
    pub(super) fn matching(&self, filter: &Filter) -> Vec<StoredEntry> {
        self.all().filter(|kept| kept.is_shown(filter)).cloned().collect()
    }
}

/// What the jobs of one batch changed so far, on top of what is held: true only once the batch commits.
#[derive(Debug, Default)]
pub(super) struct Staged {
    held: HashMap<Hash, Option<StoredEntry>>,
    rotations: HashMap<Rotation, Option<Hash>>,
    woken: Vec<Hash>,
    added: Vec<RowRef>,
    gone: Vec<RowRef>,
}

impl Staged {
    /// The claim under this hash as the next job sees it.
    pub(super) fn get<'a>(&'a self, hash: Hash, live: &'a OpenClaims) -> Option<&'a StoredEntry> {
        match self.held.get(&hash) {
            Some(changed) => changed.as_ref(),
            None => live.get(hash),
        }
    }

    /// Whose claim has this rotation, as the next job sees it.
    pub(super) fn rotation(&self, rotation: Rotation, live: &OpenClaims) -> Option<Hash> {
        match self.rotations.get(&rotation) {
            Some(changed) => *changed,
            None => live.rotation(rotation),
        }
    }

    /// Whether this batch has changed the claim under this hash.
    pub(super) fn has(&self, hash: Hash) -> bool {
        self.held.contains_key(&hash)
    }

    /// A job changes what is held under this hash.
    pub(super) fn change(&mut self, (hash, kept): Change, live: &OpenClaims) {
        if let Some(rotation) = self.get(hash, live).and_then(|before| before.rotation) {
            self.rotations.insert(rotation, None);
        }
        if let Some(rotation) = kept.as_ref().and_then(|kept| kept.rotation) {
            self.rotations.insert(rotation, Some(hash));
        }
        self.held.insert(hash, kept);
    }

    /// Those who wait for this are woken once the batch commits.
    pub(super) fn wake(&mut self, hash: Hash) {
        self.woken.push(hash);
    }

    /// Rows that are new, where they were not known before.
    pub(super) fn add_rows(&mut self, rows: impl IntoIterator<Item = RowRef>) {
        self.added.extend(rows);
    }

    /// Rows that are there no more.
    pub(super) fn remove_rows(&mut self, rows: impl IntoIterator<Item = RowRef>) {
        self.gone.extend(rows);
    }

    /// Makes the changes true, and says who is to be woken.
    pub(super) fn publish(self, live: &mut OpenClaims, index: &KeyIndex, recent: &Recent) -> Vec<Hash> {
        self.held.into_iter().for_each(|change| live.apply(change));
        for row in &self.gone {
            // In this order: a reader that puts it among the recent ones meanwhile looks whether its place is still known.
            index.remove(row);
            recent.remove(row.hash, row.number);
        }
        self.woken
    }

    /// Nothing of it was written.
    pub(super) fn take_back(self, index: &KeyIndex) {
        self.added.iter().for_each(|row| index.remove(row));
    }
}
