//! What a job of the claim store can see and do: the tables as of the jobs before it, the claims that are held, fences
//! and the time. Nothing that it does is true before the batch commits.

use std::sync::Arc;

use rusqlite::Connection;
use semel_contract::decide::Standing;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;

use super::engine::{BATCH_JOBS_MAX, BatchState, BatchTx, Fault};
use super::fences::Fences;
use super::open_claims::{OpenClaims, Staged};
use super::row::{Hash, Rotation, StoredEntry};
use super::shared::StoreShared;
use super::statements::{self, RowRef};
use crate::claims::Id;

/// A job's view of the claim store.
pub(super) type ClaimTx<'a> = BatchTx<'a, ClaimState>;

/// What the writer of the claim store keeps in memory.
pub(super) struct ClaimState {
    shared: Arc<StoreShared>,
    fences: Fences,
    staged: Staged,
}

impl ClaimState {
    pub(super) fn new(shared: Arc<StoreShared>, fences: Fences) -> Self {
        Self { shared, fences, staged: Staged::default() }
    }
}

impl BatchState for ClaimState {
    /// Sets fence numbers aside.
    fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        // A job that forgets a principal takes up to a thousand.
        self.fences.reserve(connection, 64 * BATCH_JOBS_MAX as u64)
    }

    /// The changes become visible, and those who wait are woken.
    fn publish(&mut self) {
        self.fences.confirm();
        let StoreShared { index, recent, hints, .. } = &*self.shared;
        let staged = std::mem::take(&mut self.staged);
        let woken = staged.publish(&mut self.shared.open_claims(), index, recent);
        woken.into_iter().for_each(|hash| hints.wake(hash));
    }

    fn take_back(&mut self) {
        std::mem::take(&mut self.staged).take_back(&self.shared.index);
    }

    /// Numbers that the batch in doubt has added stay: they are hints.
    fn rebuild(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.staged = Staged::default();
        // What was removed by the commit in doubt may be gone.
        self.shared.recent.clear();
        self.fences.reload(connection)?;
        let reconciled = reconcile(connection, &self.shared.open_claims())?;
        *self.shared.open_claims() = reconciled;
        Ok(())
    }
}

/// What is held, after the file has told what was committed. Leases keep their renewals.
fn reconcile(connection: &Connection, before: &OpenClaims) -> rusqlite::Result<OpenClaims> {
    let mut after = OpenClaims::default();
    for kept in before.all() {
        match kept.entry.record.guarantee {
            // A reservation stands unless its settlement was committed.
            Guarantee::Atomic | Guarantee::None
                if !statements::is_written(connection, kept.entry.record.fence)? =>
            {
                after.apply((kept.hash, Some(kept.clone())));
            }
            Guarantee::Atomic | Guarantee::Fenced | Guarantee::None => {}
        }
    }
    for written in statements::open_claims(connection)? {
        let known = before.get(written.hash).filter(|it| it.entry.record.fence == written.entry.record.fence);
        after.apply((written.hash, Some(known.cloned().unwrap_or(written))));
    }
    Ok(after)
}

/// Where a record is kept.
enum Home {
    /// An atomic claim: a reservation. What it reserves against stays until the settlement.
    Memory,
    /// An open claim or an unknown outcome.
    Claims,
    /// A finished record.
    Records,
    /// A released one that leaves no trace.
    Nowhere,
}

fn home(record: &Record) -> Home {
    match record.state {
        State::Claimed => match record.guarantee {
            Guarantee::Atomic | Guarantee::None => Home::Memory,
            Guarantee::Fenced => Home::Claims,
        },
        State::Unknown => Home::Claims,
        State::Released if record.expires_at.is_none() => Home::Nowhere,
        State::Settled | State::Unkept | State::Released | State::Sealed => Home::Records,
    }
}

impl ClaimTx<'_> {
    /// A new fence.
    pub(super) fn next_fence(&mut self, nonce: u64) -> Fence {
        self.state.fences.give(nonce)
    }

    /// What is known of an id: what is held counts before what is written.
    pub(super) fn find(&self, id: &Id, hash: Hash) -> Result<Option<StoredEntry>, Fault> {
        let held = self.state.staged.get(hash, &self.state.shared.open_claims()).cloned();
        match held {
            Some(held) if held.entry.id == *id => Ok(Some(held)),
            Some(_) => Err(Fault::Failed("another key has the same hash".to_owned())),
            None => Ok(statements::find(self.connection(), &self.state.shared.index.of(hash), hash, id)?),
        }
    }

    /// The numbers under which a key may have a row.
    pub(super) fn rows_of(&self, hash: Hash) -> Vec<u64> {
        self.state.shared.index.of(hash)
    }

    /// Whether the same request lives under another id.
    pub(super) fn rotation_lives(
        &self,
        rotation: Rotation,
        hash: Hash,
        now: Timestamp,
    ) -> Result<bool, Fault> {
        let is_held = self
            .state
            .staged
            .rotation(rotation, &self.state.shared.open_claims())
            .is_some_and(|holder| holder != hash);
        if is_held {
            return Ok(true);
        }
        for number in self.state.shared.index.of_rotation(rotation) {
            if statements::rotation_lives(self.connection(), number, rotation, hash, now)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Held claims whose lease has lapsed, at most so many.
    pub(super) fn lapsed(&self, now: Timestamp, limit: usize) -> Vec<StoredEntry> {
        let is_lapsed = |kept: &&StoredEntry| {
            !self.state.staged.has(kept.hash)
                && Standing::of(Some(&kept.entry.record), now) != Standing::Claimed
        };
        self.state.shared.open_claims().all().filter(is_lapsed).take(limit).cloned().collect()
    }

    /// Writes what is now known of an id, in place of everything that was.
    pub(super) fn put(&mut self, kept: StoredEntry) -> Result<(), Fault> {
        match home(&kept.entry.record) {
            Home::Memory => {}
            Home::Claims => {
                self.make_room_for(&kept)?;
                statements::insert_claim(self.connection(), &kept)?;
            }
            Home::Records => {
                self.make_room_for(&kept)?;
                statements::insert_record(self.connection(), &kept)?;
            }
            Home::Nowhere => {
                for number in self.state.shared.index.of(kept.hash) {
                    self.state.staged.remove_rows(statements::erase(self.connection(), number, kept.hash)?);
                }
            }
        }
        match kept.entry.record.state {
            State::Claimed => self.change(kept.hash, Some(kept)),
            State::Settled | State::Unkept | State::Released | State::Unknown | State::Sealed => {
                self.let_go(kept.hash);
            }
        }
        Ok(())
    }

    /// Removes every row of an id, because another is about to be written, and makes that one known.
    fn make_room_for(&mut self, kept: &StoredEntry) -> Result<(), Fault> {
        let own = kept.entry.record.fence.number;
        for number in self.state.shared.index.of(kept.hash) {
            if number == own {
                // It stays known: what replaces it has the same number.
                statements::erase_claim(self.connection(), number)?;
            } else {
                self.state.staged.remove_rows(statements::erase(self.connection(), number, kept.hash)?);
            }
        }
        let added = self.state.shared.index.add(kept);
        self.state.staged.add_rows(added);
        Ok(())
    }

    /// Rows were removed.
    pub(super) fn forget_rows(&mut self, gone: Vec<RowRef>) {
        gone.iter().for_each(|row| self.state.staged.wake(row.hash));
        self.state.staged.remove_rows(gone);
    }

    /// Nobody holds this any more; those who wait for it look again.
    pub(super) fn let_go(&mut self, hash: Hash) {
        self.change(hash, None);
        self.state.staged.wake(hash);
    }

    fn change(&mut self, hash: Hash, kept: Option<StoredEntry>) {
        let ClaimState { shared, staged, .. } = &mut *self.state;
        staged.change((hash, kept), &shared.open_claims());
    }
}
