//! What a member of a batch can see and do: the tables as of the members before it, the claims that are held, fences
//! and the time. Nothing that it does is true before the batch commits.

use rusqlite::Connection;
use semel_contract::decide::Standing;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::time::Timestamp;

use super::error::Fault;
use super::fences::Fences;
use super::guard::Guard;
use super::hub::Hub;
use super::live::{Change, Staged};
use super::row::{Hash, Kept, Rotation};
use super::table;
use crate::claims::Id;

/// A member's turn.
pub(super) struct Turn<'a> {
    connection: &'a Connection,
    hub: &'a Hub,
    staged: &'a Staged,
    fences: &'a mut Fences,
    changes: Vec<Change>,
    woken: Vec<Hash>,
    is_refused: bool,
}

/// What a member leaves behind.
#[derive(Default)]
pub(super) struct Left {
    /// Its changes of what is held.
    pub(super) changes: Vec<Change>,
    /// Whose waiters to wake.
    pub(super) woken: Vec<Hash>,
    /// Its answer says that nothing was written, and holds however the batch ends.
    pub(super) is_refused: bool,
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

impl<'a> Turn<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        hub: &'a Hub,
        staged: &'a Staged,
        fences: &'a mut Fences,
    ) -> Self {
        Self { connection, hub, staged, fences, changes: Vec::new(), woken: Vec::new(), is_refused: false }
    }

    /// Ends the turn.
    pub(super) fn end(self) -> Left {
        Left { changes: self.changes, woken: self.woken, is_refused: self.is_refused }
    }

    /// The writer's connection, inside the member's savepoint.
    pub(super) fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// What watches over the connection.
    pub(super) fn guard(&self) -> &'a Guard {
        &self.hub.guard
    }

    /// The store's time.
    pub(super) fn now(&self) -> Timestamp {
        self.hub.now()
    }

    /// Whether the clock is frozen, as of the last look at it.
    pub(super) fn is_frozen(&self) -> bool {
        self.hub.time.frozen().is_some()
    }

    /// A new fence.
    pub(super) fn next_fence(&mut self, nonce: u64) -> Fence {
        self.fences.give(nonce)
    }

    /// The answer holds even if the batch does not commit.
    pub(super) fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// What is known of an id: what is held counts before what is written.
    pub(super) fn find(&self, id: &Id) -> Result<Option<Kept>, Fault> {
        let hash = id.hash();
        match self.staged.get(hash, &self.hub.live()) {
            Some(held) if held.entry.id == *id => Ok(Some(held)),
            Some(_) => Err(Fault::Failed("another key has the same hash".to_owned())),
            None => Ok(table::find(self.connection, hash, id)?),
        }
    }

    /// Whether the same request lives under another id.
    pub(super) fn rotation_lives(
        &self,
        rotation: Rotation,
        hash: Hash,
        now: Timestamp,
    ) -> Result<bool, Fault> {
        let is_held = self.staged.rotation(rotation, &self.hub.live()).is_some_and(|holder| holder != hash);
        Ok(is_held || table::rotation_lives(self.connection, rotation, hash, now)?)
    }

    /// Held claims whose lease has lapsed, at most so many.
    pub(super) fn lapsed(&self, now: Timestamp, limit: usize) -> Vec<Kept> {
        let is_lapsed = |kept: &&Kept| {
            !self.staged.has(kept.hash) && Standing::of(Some(&kept.entry.record), now) != Standing::Claimed
        };
        self.hub.live().all().filter(is_lapsed).take(limit).cloned().collect()
    }

    /// Writes what is now known of an id, in place of everything that was.
    pub(super) fn put(&mut self, kept: Kept) -> Result<(), Fault> {
        match home(&kept.entry.record) {
            Home::Memory => {}
            Home::Claims => {
                table::erase(self.connection, kept.hash)?;
                table::insert_claim(self.connection, &kept)?;
            }
            Home::Records => {
                table::erase(self.connection, kept.hash)?;
                table::insert_record(self.connection, &kept)?;
            }
            Home::Nowhere => table::erase(self.connection, kept.hash)?,
        }
        match kept.entry.record.state {
            State::Claimed => self.changes.push((kept.hash, Some(kept))),
            State::Settled | State::Unkept | State::Released | State::Unknown | State::Sealed => {
                self.let_go(kept.hash);
            }
        }
        Ok(())
    }

    /// Nobody holds this any more; whoever waits for it looks again.
    pub(super) fn let_go(&mut self, hash: Hash) {
        self.changes.push((hash, None));
        self.woken.push(hash);
    }

    /// Whoever waits for this looks again.
    pub(super) fn wake(&mut self, hash: Hash) {
        self.woken.push(hash);
    }
}
