//! Where the rows of a key are: known in memory, in place of indexes in the file. An index over random hashes dirties a
//! page of its own for every row; without one, every write of the store is an append.
//!
//! What is known here is a hint that is checked against the row: it names every row that there is, and perhaps some that
//! are not there or are of another key. So a number is added before its row is committed, and taken out after the row's
//! removal is; and where nobody can say whether a batch was committed, its numbers stay.

use std::path::Path;

use rusqlite::Connection;

use super::connect;
use super::error::OpenError;
use super::numbers::{Filling, Numbers, Who};
use super::row::{Hash, Kept, Rotation, number};
use super::table::{self, Gone};

/// The four bytes of a principal. They are written into rows, so they never change.
pub(super) fn who(principal: &str) -> Who {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = principal.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix);
    ((hash >> 32) ^ (hash & 0xffff_ffff)) as Who
}

/// The numbers of all rows.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_hash: Numbers,
    by_rotation: Numbers,
}

impl Places {
    /// Learns of every row in the file, on two threads.
    pub(super) fn fill(&self, connection: &Connection, path: &Path) -> Result<(), OpenError> {
        let middle = table::middle_expiry(connection)?;
        std::thread::scope(|scope| {
            let later = scope.spawn(move || {
                let connection = connect::for_reading(path)?;
                self.learn(|learn| {
                    table::each_record(&connection, middle.saturating_add(1)..=i64::MAX, learn)
                })
            });
            self.learn(|learn| {
                table::each_claim(connection, &mut *learn)?;
                table::each_record(connection, i64::MIN..=middle, learn)
            })?;
            later
                .join()
                .unwrap_or_else(|_| Err(OpenError::Sqlite("the records could not be read".to_owned())))
        })
    }

    /// Learns of the rows of which `tell` tells.
    fn learn(
        &self,
        tell: impl FnOnce(&mut dyn FnMut(Gone, Who)) -> rusqlite::Result<()>,
    ) -> Result<(), OpenError> {
        let (mut hashes, mut rotations) = (Filling::new(&self.by_hash), Filling::new(&self.by_rotation));
        tell(&mut |row, who| {
            if let Some(rotation) = row.rotation {
                rotations.add(&rotation, row.number, who);
            }
            hashes.add(&row.hash, row.number, who);
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
    pub(super) fn add(&self, kept: &Kept) -> Option<Gone> {
        let number = number(kept.entry.record.fence).cast_unsigned();
        let row = Gone { number, hash: kept.hash, rotation: kept.rotation };
        let who = who(&kept.entry.about.principal);
        if let Some(rotation) = row.rotation {
            self.by_rotation.add(&rotation, row.number, who);
        }
        self.by_hash.add(&row.hash, row.number, who).then_some(row)
    }

    /// A row is there no more.
    pub(super) fn remove(&self, row: &Gone) {
        if let Some(rotation) = row.rotation {
            self.by_rotation.remove(&rotation, row.number);
        }
        self.by_hash.remove(&row.hash, row.number);
    }
}

#[cfg(test)]
mod tests {
    use super::who;

    #[test]
    fn the_four_bytes_of_a_principal_stay_what_they_are() {
        assert_eq!((who(""), who("alice")), (0x4fd0_bfc1, 892_015_548));
    }
}
