//! Finding rows by their key alone, whoever it belongs to. Costs nothing until somebody searches, and nothing when a row is
//! written: the first search reads the keys of all rows once, and each later one those of the rows that came since.

use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::admin_rows;
use super::fence_table::FenceTable;
use super::row::{Hash, StoredEntry};

/// Numbers below the highest that are read again: far more than are given out and not yet committed at any time.
const AGAIN: i64 = 10_000;
/// Rows that may have gone before everything is read anew.
const GONE_MAX: usize = 1_000_000;

const KEYS: &str = "SELECT fence, key FROM semel_record WHERE fence > ?1 \
     UNION ALL SELECT fence, key FROM semel_claim WHERE fence > ?1";

/// The numbers of rows by their key.
#[derive(Debug, Default)]
pub(super) struct KeySearch(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    numbers: FenceTable,
    /// The highest number that was read.
    upto: i64,
    added: usize,
}

/// Sixteen bytes of a key; what is found by them is checked against the row.
fn digest(key: &str) -> Hash {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(key.as_bytes());
        hasher.finish().to_be_bytes()
    };
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&half(0));
    hash[8..].copy_from_slice(&half(1));
    hash
}

impl KeySearch {
    /// The rows with this key, the oldest first.
    pub(super) fn find(
        &self,
        connection: &Connection,
        key: &str,
        limit: u32,
        rows_now: usize,
    ) -> rusqlite::Result<Vec<StoredEntry>> {
        let numbers = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.added > rows_now * 2 + GONE_MAX {
                *known = Known::default();
            }
            known.catch_up(connection)?;
            known.numbers.of(&digest(key))
        };
        let mut found = Vec::new();
        for number in numbers.into_iter().rev() {
            let rows = admin_rows::by_number(connection, number.cast_signed())?;
            found.extend(rows.into_iter().filter(|kept| kept.entry.id.key.as_str() == key));
            if found.len() >= limit as usize {
                break;
            }
        }
        Ok(found)
    }
}

impl Known {
    fn catch_up(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(KEYS)?;
        let mut rows = statement.query([(self.upto - AGAIN).max(0)])?;
        let mut upto = self.upto;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let key = row.get_ref(1)?.as_str()?;
            if self.numbers.add(&digest(key), number.cast_unsigned(), 0) {
                self.added += 1;
            }
            upto = upto.max(number);
        }
        // Only once all was read: a search that broke off reads it again.
        self.upto = upto;
        Ok(())
    }
}
