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
use super::table::{self, Gone};
use crate::claims::Id;

/// A member's turn.
pub(super) struct Turn<'a> {
    connection: &'a Connection,
    hub: &'a Hub,
    staged: &'a Staged,
    fences: &'a mut Fences,
    left: Left,
}

/// What a member leaves behind.
#[derive(Default)]
pub(super) struct Left {
    /// Its changes of what is held.
    pub(super) changes: Vec<Change>,
    /// Whose waiters to wake.
    pub(super) woken: Vec<Hash>,
    /// Rows that are new.
    pub(super) added: Vec<Gone>,
    /// Rows that are there no more.
    pub(super) gone: Vec<Gone>,
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
        Self { connection, hub, staged, fences, left: Left::default() }
    }

    /// Ends the turn.
    pub(super) fn end(self) -> Left {
        self.left
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
        self.left.is_refused = true;
    }

    /// What is known of an id: what is held counts before what is written.
    pub(super) fn find(&self, id: &Id, hash: Hash) -> Result<Option<Kept>, Fault> {
        let held = self.staged.get(hash, &self.hub.live()).cloned();
        match held {
            Some(held) if held.entry.id == *id => Ok(Some(held)),
            Some(_) => Err(Fault::Failed("another key has the same hash".to_owned())),
            None => Ok(table::find(self.connection, &self.hub.places.of(hash), hash, id)?),
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
        if is_held {
            return Ok(true);
        }
        for number in self.hub.places.of_rotation(rotation) {
            if table::rotation_lives(self.connection, number, rotation, hash, now)? {
                return Ok(true);
            }
        }
        Ok(false)
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
                self.make_room_for(&kept)?;
                table::insert_claim(self.connection, &kept)?;
            }
            Home::Records => {
                self.make_room_for(&kept)?;
                table::insert_record(self.connection, &kept)?;
            }
            Home::Nowhere => {
                for number in self.hub.places.of(kept.hash) {
                    self.left.gone.extend(table::erase(self.connection, number, kept.hash)?);
                }
            }
        }
        match kept.entry.record.state {
            State::Claimed => self.left.changes.push((kept.hash, Some(kept))),
            State::Settled | State::Unkept | State::Released | State::Unknown | State::Sealed => {
                self.let_go(kept.hash);
            }
        }
        Ok(())
    }

    /// Removes every row of an id, because another is about to be written, and makes that one known.
    fn make_room_for(&mut self, kept: &Kept) -> Result<(), Fault> {
        let own = kept.entry.record.fence.number;
        for number in self.hub.places.of(kept.hash) {
            if number == own {
                // It stays known: what replaces it has the same number.
                table::erase_claim(self.connection, number)?;
            } else {
                self.left.gone.extend(table::erase(self.connection, number, kept.hash)?);
            }
        }
        self.left.added.extend(self.hub.places.add(kept));
        Ok(())
    }

    /// Rows were removed.
    pub(super) fn removed(&mut self, gone: Vec<Gone>) {
        self.left.woken.extend(gone.iter().map(|row| row.hash));
        self.left.gone.extend(gone);
    }

    /// Nobody holds this any more; whoever waits for it looks again.
    pub(super) fn let_go(&mut self, hash: Hash) {
        self.left.changes.push((hash, None));
        self.left.woken.push(hash);
    }
}
