//! The claims that are held in this process right now. The writer alone decides and changes them, after the commit that
//! makes a change true; holders renew their leases here; readers look here first. Never locked across I/O.

use std::collections::HashMap;
use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

use super::places::Places;
use super::recent::Recent;
use super::row::{Hash, Kept, Rotation};
use super::table::Gone;
use super::turn::Left;
use crate::claims::{Filter, Id, Written};

/// A change of what is held: `None` lets go.
pub(super) type Change = (Hash, Option<Kept>);

/// The held claims, by the hash of their id.
#[derive(Debug, Default)]
pub(super) struct Live {
    held: HashMap<Hash, Kept>,
    rotations: HashMap<Rotation, Hash>,
}

impl Live {
    /// The claim that is held under this hash.
    pub(super) fn get(&self, hash: Hash) -> Option<&Kept> {
        self.held.get(&hash)
    }

    /// Whose claim has this rotation.
    pub(super) fn rotation(&self, rotation: Rotation) -> Option<Hash> {
        self.rotations.get(&rotation).copied()
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Kept> {
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
    pub(super) fn renew(&mut self, id: &Id, fence: Fence, lease: Duration, now: Timestamp) -> Written {
        match self.held.get_mut(&id.hash()) {
            Some(kept)
                if kept.entry.id == *id
                    && kept.entry.record.fence == fence
                    && Standing::of(Some(&kept.entry.record), now) == Standing::Claimed =>
            {
                kept.entry.record.lease_until = now.plus(lease);
                Written::Done
            }
            Some(_) | None => Written::Superseded,
        }
    }

    /// The claims that a list shows.
    pub(super) fn matching(&self, filter: &Filter) -> Vec<Kept> {
        self.all().filter(|kept| kept.is_shown(filter)).cloned().collect()
    }
}

/// What the members of one batch changed so far, on top of what is held: true only once the batch commits.
#[derive(Debug, Default)]
pub(super) struct Staged {
    held: HashMap<Hash, Option<Kept>>,
    rotations: HashMap<Rotation, Option<Hash>>,
    woken: Vec<Hash>,
    added: Vec<Gone>,
    gone: Vec<Gone>,
}

impl Staged {
    /// The claim under this hash as the next member sees it.
    pub(super) fn get<'a>(&'a self, hash: Hash, live: &'a Live) -> Option<&'a Kept> {
        match self.held.get(&hash) {
            Some(changed) => changed.as_ref(),
            None => live.get(hash),
        }
    }

    /// Whose claim has this rotation, as the next member sees it.
    pub(super) fn rotation(&self, rotation: Rotation, live: &Live) -> Option<Hash> {
        match self.rotations.get(&rotation) {
            Some(changed) => *changed,
            None => live.rotation(rotation),
        }
    }

    /// Whether this batch has changed the claim under this hash.
    pub(super) fn has(&self, hash: Hash) -> bool {
        self.held.contains_key(&hash)
    }

    /// Adds what a member did.
    pub(super) fn add(&mut self, left: Left, live: &Live) {
        for (hash, kept) in left.changes {
            if let Some(rotation) = self.get(hash, live).and_then(|before| before.rotation) {
                self.rotations.insert(rotation, None);
            }
            if let Some(rotation) = kept.as_ref().and_then(|kept| kept.rotation) {
                self.rotations.insert(rotation, Some(hash));
            }
            self.held.insert(hash, kept);
        }
        self.woken.extend(left.woken);
        self.added.extend(left.added);
        self.gone.extend(left.gone);
    }

    /// Makes the changes true, and says who is to be woken.
    pub(super) fn publish(self, live: &mut Live, places: &Places, recent: &Recent) -> Vec<Hash> {
        self.held.into_iter().for_each(|change| live.apply(change));
        for row in &self.gone {
            // In this order: whoever puts it among the recent ones meanwhile looks whether its place is still known.
            places.remove(row);
            recent.remove(row);
        }
        self.woken
    }

    /// Nothing of it was written.
    pub(super) fn take_back(self, places: &Places) {
        self.added.iter().for_each(|row| places.remove(row));
    }
}
