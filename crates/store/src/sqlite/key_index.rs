//! Where the rows of a key are: known in memory, in place of indexes in the file. An index over random hashes dirties a
//! page of its own for every row; without one, every write of the store is an append.
//!
//! What is known here is a hint that is checked against the row: it names every row that there is, and perhaps some that
//! are not there or are of another key. So a number is added before its row is committed, and taken out after the row's
//! removal is; and where nobody can say whether a batch was committed, its numbers stay.

use std::path::Path;

use rusqlite::Connection;

use super::engine::{self, OpenError};
use super::fence_table::{FenceTable, Filling, who};
use super::key_search::KeySearch;
use super::row::{Hash, Rotation, StoredEntry, digest, number};
use super::statements::{self, BriefRow, RowRef};

/// The numbers of all rows.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    by_hash: FenceTable,
    by_rotation: FenceTable,
    /// By the key alone; learns of the rows in the file later.
    pub(super) keys: KeySearch,
}

impl KeyIndex {
    /// Learns of every row in the file but for its key, on two threads.
    pub(super) fn fill(&self, connection: &Connection, path: &Path) -> Result<(), OpenError> {
        let middle = statements::middle_expiry(connection)?;
        std::thread::scope(|scope| {
            let later = scope.spawn(move || {
                let connection = engine::for_reading(path)?;
                self.learn(|learn| {
                    statements::each_record(&connection, middle.saturating_add(1)..=i64::MAX, learn)
                })
            });
            self.learn(|learn| {
                statements::each_claim(connection, &mut *learn)?;
                statements::each_record(connection, i64::MIN..=middle, learn)
            })?;
            later
                .join()
                .unwrap_or_else(|_| Err(OpenError::Sqlite("the records could not be read".to_owned())))
        })
    }

    /// Learns of the rows of which `tell` tells.
    fn learn(
        &self,
        tell: impl FnOnce(&mut dyn FnMut(BriefRow)) -> rusqlite::Result<()>,
    ) -> Result<(), OpenError> {
        let (mut hashes, mut rotations) = (Filling::new(&self.by_hash), Filling::new(&self.by_rotation));
        tell(&mut |row| {
            if let Some(rotation) = row.rotation {
                rotations.add(&rotation, row.number, row.who);
            }
            hashes.add(&row.hash, row.number, row.who);
        })?;
        hashes.finish();
        rotations.finish();
        Ok(())
    }

    /// The numbers under which there may be a row of this hash, the highest first.
    pub(super) fn of(&self, hash: Hash) -> Vec<u64> {
        self.by_hash.of(&hash)
    }

    /// The numbers under which there may be a row with this rotation, the highest first.
    pub(super) fn of_rotation(&self, rotation: Rotation) -> Vec<u64> {
        self.by_rotation.of(&rotation)
    }

    /// The numbers after this one under which there may be a row of this principal, in order. Looks at everything.
    pub(super) fn of_principal(&self, principal: &str, after: u64) -> Vec<u64> {
        self.by_hash.belonging(who(principal), after)
    }

    /// A row is about to be written. Says what to take out again if it is not, where it was not known already.
    pub(super) fn add(&self, kept: &StoredEntry) -> Option<RowRef> {
        let number = number(kept.entry.record.fence).cast_unsigned();
        let key = digest(kept.entry.id.key.as_str());
        let row = RowRef { number, hash: kept.hash, rotation: kept.rotation, key };
        let who = who(&kept.entry.about.principal);
        if let Some(rotation) = row.rotation {
            self.by_rotation.add(&rotation, row.number, who);
        }
        self.keys.add(&row);
        self.by_hash.add(&row.hash, row.number, who).then_some(row)
    }

    /// A row is there no more.
    pub(super) fn remove(&self, row: &RowRef) {
        if let Some(rotation) = row.rotation {
            self.by_rotation.remove(&rotation, row.number);
        }
        self.keys.remove(row);
        self.by_hash.remove(&row.hash, row.number);
    }
}
