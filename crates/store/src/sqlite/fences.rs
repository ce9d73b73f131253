//! Fence numbers: counted up in memory, never past a ceiling that is already durable or becomes so in the same commit.
//! A restart goes on from the ceiling, so no number is ever given twice.

use rusqlite::Connection;
use semel_contract::record::Fence;

use super::schema::SCHEMA;

/// How many numbers are set aside at once; a restart skips what is left of them.
const FENCES_IN_BLOCK: u64 = 1_000_000;
const CEILING: &str = "fence_ceiling";

/// The counter.
#[derive(Debug)]
pub(super) struct Fences {
    next: u64,
    /// Numbers below are set aside durably.
    ceiling: u64,
    /// Set aside by the batch that runs, and durable if it commits.
    pending: u64,
}

impl Fences {
    /// Goes on where the last process cannot have been. Nothing is set aside yet.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let ceiling =
            SCHEMA.number(connection, CEILING)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.cast_unsigned();
        Ok(Self { next: ceiling, ceiling, pending: ceiling })
    }

    /// After doubt about a commit: what is durable is read again, and numbers that may have been given are not given
    /// again.
    pub(super) fn reload(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let found = Self::load(connection)?;
        self.ceiling = found.ceiling;
        self.pending = found.ceiling;
        Ok(())
    }

    /// Makes sure, in the batch's own transaction, that its jobs can have as many numbers as this.
    pub(super) fn reserve(&mut self, connection: &Connection, wanted: u64) -> rusqlite::Result<()> {
        self.pending = self.ceiling;
        if self.next + wanted > self.ceiling {
            let ceiling = self.next + wanted + FENCES_IN_BLOCK;
            SCHEMA.set_number(connection, CEILING, ceiling.cast_signed())?;
            self.pending = ceiling;
        }
        Ok(())
    }

    /// The batch is durable.
    pub(super) fn confirm(&mut self) {
        self.ceiling = self.pending;
    }

    /// The next fence.
    pub(super) fn give(&mut self, nonce: u64) -> Fence {
        assert!(self.next < self.pending, "a fence number is set aside before it is given");
        let number = self.next;
        self.next += 1;
        Fence { number, nonce }
    }
}
