//! Finding rows by their key alone, whoever it belongs to: their numbers by sixteen bytes of the key, in memory, eleven to
//! sixteen bytes a row. Costs nothing on the disk: whoever writes or removes a row says so here, and the rows of a file that
//! was opened are read later, a few at a time and the newest first ([`super::key_reader`]). Until then a search says how far
//! it reaches.
//!
//! What is known here is a hint, as in [`super::key_index`]: every row that is found is held against the key.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::admin_rows;
use super::fence_table::FenceTable;
use super::row::{Hash, StoredEntry, digest};
use super::statements::RowRef;
use crate::admin::KeyReach;

/// Numbers that are kept of one key: more than one search shows. Each is passed by whoever adds another.
const OF_ONE_KEY_MAX: usize = 1024;
/// How often a search looks again when a row went while it looked.
const TRIES_MAX: usize = 3;

const CLAIMS: &str = "SELECT fence, key FROM semel_claim WHERE fence < ?1 ORDER BY fence DESC LIMIT ?2";
const RECORDS: &str = "SELECT fence, key FROM semel_record WHERE fence < ?1 ORDER BY fence DESC LIMIT ?2";

/// The numbers of rows by their key.
#[derive(Debug, Default)]
pub(super) struct KeySearch {
    numbers: FenceTable<()>,
    reading: Mutex<Reading>,
}

/// How far the file was read.
#[derive(Debug, Default)]
struct Reading {
    place: Place,
    rows: u64,
    /// Rows that went while some were read: what was read of them is taken out again.
    gone: Vec<RowRef>,
    /// Searches that wait for the end, and since when.
    waiting: Vec<(Instant, oneshot::Sender<()>)>,
    /// Nobody reads any more.
    is_closed: bool,
}

/// The rows that come next: those below a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Claims(i64),
    Records(i64),
    End,
}

impl Default for Place {
    fn default() -> Self {
        Self::Claims(i64::MAX)
    }
}

impl KeySearch {
    /// A row is about to be written.
    pub(super) fn add(&self, row: &RowRef) {
        self.numbers.add_among(&row.key, row.number, (), OF_ONE_KEY_MAX);
    }

    /// A row is there no more.
    pub(super) fn remove(&self, row: &RowRef) {
        {
            // Told before it is taken out: whoever has read it meanwhile either adds it before that, or is told.
            let mut reading = self.reading();
            if reading.place != Place::End {
                reading.gone.push(*row);
            }
        }
        self.numbers.remove(&row.key, row.number);
    }

    /// How far a search reaches.
    pub(super) fn reach(&self) -> KeyReach {
        let reading = self.reading();
        match reading.place {
            Place::End => KeyReach::All,
            Place::Claims(_) | Place::Records(_) => KeyReach::Newest(reading.rows),
        }
    }

    /// The rows with this key, the oldest first.
    pub(super) fn find(
        &self,
        connection: &Connection,
        key: &str,
        limit: u32,
    ) -> rusqlite::Result<Vec<StoredEntry>> {
        let digest = digest(key);
        let mut found = Vec::new();
        for _ in 0..TRIES_MAX {
            found.clear();
            let numbers = self.numbers.of(&digest);
            for number in numbers.iter().rev() {
                let rows = admin_rows::by_number(connection, number.cast_signed())?;
                found.extend(rows.into_iter().filter(|kept| kept.entry.id.key.as_str() == key));
                if found.len() >= limit as usize {
                    return Ok(found);
                }
            }
            // A record may have been given another number meanwhile.
            if self.numbers.of(&digest) == numbers {
                break;
            }
        }
        Ok(found)
    }

    /// Reads the keys of so many rows more, the newest first. Says whether there may be others.
    pub(super) fn read_some(&self, connection: &Connection, rows_max: usize) -> rusqlite::Result<bool> {
        let place = self.begin();
        let rows = place.read(connection, rows_max)?;
        Ok(self.finish(place, &rows, rows_max))
    }

    /// What is read after this has no row that went before.
    fn begin(&self) -> Place {
        let mut reading = self.reading();
        reading.gone.clear();
        reading.place
    }

    /// Knows of the rows that were read since [`Self::begin`], but for those that went meanwhile.
    fn finish(&self, place: Place, rows: &[(i64, Hash)], rows_max: usize) -> bool {
        for (number, key) in rows {
            self.numbers.add_among(key, number.cast_unsigned(), (), OF_ONE_KEY_MAX);
        }
        let mut reading = self.reading();
        for row in std::mem::take(&mut reading.gone) {
            self.numbers.remove(&row.key, row.number);
        }
        reading.rows += rows.len() as u64;
        reading.place =
            place.after(rows.last().filter(|_| rows.len() == rows_max).map(|(number, _)| *number));
        reading.place != Place::End
    }

    /// Ends when everything was read, or when this was waited for long enough. None where there is nothing to wait for.
    pub(super) fn wait(&self) -> Option<oneshot::Receiver<()>> {
        let mut reading = self.reading();
        if reading.place == Place::End || reading.is_closed {
            return None;
        }
        let (ends, waits) = oneshot::channel();
        reading.waiting.push((Instant::now(), ends));
        Some(waits)
    }

    /// Lets those go on who have waited for so long; all of them once everything was read.
    pub(super) fn release(&self, patience: Duration) {
        let mut reading = self.reading();
        let is_read = reading.place == Place::End;
        reading.waiting.retain(|(since, _)| !is_read && since.elapsed() < patience);
    }

    /// Nobody reads any more, and nobody waits for it.
    pub(super) fn close(&self) {
        let mut reading = self.reading();
        reading.is_closed = true;
        reading.waiting.clear();
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The numbers and keys of the rows that come next.
    fn read(self, connection: &Connection, rows_max: usize) -> rusqlite::Result<Vec<(i64, Hash)>> {
        let (sql, below) = match self {
            Self::Claims(below) => (CLAIMS, below),
            Self::Records(below) => (RECORDS, below),
            Self::End => return Ok(Vec::new()),
        };
        let mut statement = connection.prepare_cached(sql)?;
        let key = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, digest(row.get_ref(1)?.as_bytes()?)));
        statement.query_map(params![below, rows_max as i64], key)?.collect()
    }

    /// Where it goes on: below the last row that was read; none, when that was the last of its table.
    fn after(self, last: Option<i64>) -> Self {
        match (self, last) {
            (Self::Claims(_), Some(last)) => Self::Claims(last),
            (Self::Claims(_), None) => Self::Records(i64::MAX),
            (Self::Records(_), Some(last)) => Self::Records(last),
            (Self::Records(_) | Self::End, _) => Self::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_contract::key::{Format, Key};
    use semel_contract::profile::presets;
    use semel_contract::scope::Scope;

    use super::super::SqliteStore;
    use super::super::schema::SCHEMA;
    use super::*;
    use crate::admin::AdminStore;
    use crate::claims::{About, ClaimStore, Id};
    use crate::conformance::TestClock;

    /// A file with a claim and so many records, whose numbers and keys go with each other.
    fn file(records: i64) -> Connection {
        let mut connection = Connection::open_in_memory().expect("a database in memory");
        SCHEMA.migrate(&mut connection).expect("the schema is well formed");
        for number in 1..=records {
            write(&connection, "semel_record", number, &format!("key-{number}"));
        }
        write(&connection, "semel_claim", records + 1, "open");
        connection
    }

    fn write(connection: &Connection, table: &str, number: i64, key: &str) {
        let (names, values) = match table {
            "semel_claim" => ("", ""),
            _ => (
                ", settled_at, expires_at, status, headers, outcome_unknown, body",
                ", 1, 2, 200, x'', 0, x''",
            ),
        };
        let state = if table == "semel_claim" { "unknown" } else { "settled" };
        let sql = format!(
            "INSERT INTO {table} (fence, nonce, hash, scope, key, endpoint, principal, state, guarantee, created_at, \
             lease_until, late_until, request_headers, request_id{names}) VALUES (?1, 1, randomblob(16), zeroblob(32), ?2, '', \
             '', '{state}', 'fenced', 0, 0, 0, x'', ''{values})"
        );
        connection.execute(&sql, params![number, key]).expect("the row is well formed");
    }

    fn row(number: u64, key: &str) -> RowRef {
        RowRef { number, hash: [0; 16], rotation: None, key: digest(key) }
    }

    fn numbers(keys: &KeySearch, key: &str) -> Vec<u64> {
        keys.numbers.of(&digest(key))
    }

    #[test]
    fn rows_are_read_a_few_at_a_time_and_the_newest_first() {
        let (connection, keys) = (file(10), KeySearch::default());
        let read = |rows: usize| keys.read_some(&connection, rows).expect("the file is read");
        assert_eq!(keys.reach(), KeyReach::Newest(0));
        assert!(read(4));
        assert_eq!((keys.reach(), numbers(&keys, "open")), (KeyReach::Newest(1), vec![11]));
        assert!(read(4));
        assert_eq!(keys.reach(), KeyReach::Newest(5));
        assert_eq!((numbers(&keys, "key-7"), numbers(&keys, "key-6")), (vec![7], vec![]));
        assert!(read(4) && !read(4) && !read(4));
        assert_eq!(keys.reach(), KeyReach::All);
        assert!((1..=10).all(|number| numbers(&keys, &format!("key-{number}")) == [number]));
    }

    #[test]
    fn a_row_that_goes_while_it_is_read_does_not_stay() {
        let (connection, keys) = (file(10), KeySearch::default());
        assert!(keys.read_some(&connection, 100).expect("the file is read"));
        keys.remove(&row(4, "key-4"));
        let place = keys.begin();
        let rows = place.read(&connection, 100).expect("the file is read");
        keys.remove(&row(3, "key-3"));
        assert!(!keys.finish(place, &rows, 100));
        assert_eq!(numbers(&keys, "key-3"), [0; 0]);
        // What went before the file was read is there only because nobody has removed its row here.
        assert_eq!(numbers(&keys, "key-4"), [4]);
        keys.remove(&row(5, "key-5"));
        assert_eq!((numbers(&keys, "key-5"), keys.reading().gone.len()), (vec![], 0));
    }

    #[test]
    fn a_row_that_is_written_while_the_file_is_read_is_known_once() {
        let (connection, keys) = (file(10), KeySearch::default());
        keys.add(&row(12, "key-7"));
        keys.add(&row(11, "open"));
        while keys.read_some(&connection, 3).expect("the file is read") {}
        assert_eq!((numbers(&keys, "key-7"), numbers(&keys, "open")), (vec![12, 7], vec![11]));
        keys.remove(&row(11, "open"));
        assert_eq!(numbers(&keys, "open"), [0; 0]);
    }

    #[test]
    fn a_number_whose_row_has_another_key_or_is_not_there_finds_nothing() {
        let (connection, keys) = (file(10), KeySearch::default());
        [row(3, "other"), row(99, "other"), row(7, "key-7")].iter().for_each(|row| keys.add(row));
        let find = |key: &str| {
            let found = keys.find(&connection, key, 10).expect("the file is read");
            found.iter().map(|kept| kept.entry.record.fence.number).collect::<Vec<_>>()
        };
        assert_eq!((find("other"), find("key-7")), (vec![], vec![7]));
    }

    #[test]
    fn whoever_waits_goes_on_when_it_is_over_and_nobody_waits_for_nothing() {
        let (connection, keys) = (file(10), KeySearch::default());
        let mut waits = keys.wait().expect("nothing was read");
        keys.release(Duration::from_secs(60));
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        keys.release(Duration::ZERO);
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let mut waits = keys.wait().expect("nothing was read");
        while keys.read_some(&connection, 100).expect("the file is read") {}
        keys.release(Duration::from_secs(60));
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(keys.wait().is_none());
        let other = KeySearch::default();
        let mut waits = other.wait().expect("nothing was read");
        other.close();
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(other.wait().is_none());
    }

    #[tokio::test]
    async fn what_is_swept_or_taken_back_leaves_the_memory_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = std::sync::Arc::new(TestClock::default());
        let open = || {
            let path = directory.path().join("semel.db");
            SqliteStore::open_with_clock(path, std::sync::Arc::clone(&clock) as _)
                .expect("the file can be opened")
        };
        let (store, lifetime) = (open(), presets::ietf().lifetime);
        let seal = async |store: &SqliteStore, key: &str| {
            let key = Key::parse(&Format::Any255, key).expect("it is a key");
            let id = Id { scope: Scope::from_bytes([0; 32]), key };
            store.seal(&id, &About::default(), &lifetime).await.map(drop)
        };
        seal(&store, "a").await.expect("the store answers");
        store.faults().lose_next_commit(false);
        seal(&store, "b").await.expect_err("nobody can say whether it was written");
        while store.ready().await.is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(numbers(&store.shared.index.keys, "a").len(), 1);
        drop(store);
        let store = open();
        assert_eq!(store.key_reach().await, Ok(KeyReach::All));
        assert_eq!(numbers(&store.shared.index.keys, "a").len(), 1);
        clock.advance(lifetime.record() + Duration::from_secs(86_400));
        store.sweep(10, Duration::ZERO).await.expect("the store answers");
        assert_eq!(numbers(&store.shared.index.keys, "a"), [0; 0]);
    }

    #[test]
    fn batches_are_read_by_number() {
        let connection = file(1);
        for sql in [CLAIMS, RECORDS] {
            let mut statement =
                connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("it is valid");
            let lines = statement.raw_query().mapped(|row| row.get::<_, String>(3));
            let plan = lines.collect::<Result<Vec<_>, _>>().expect("a plan has a text").join("\n");
            assert!(plan.contains("USING INTEGER PRIMARY KEY") && !plan.contains("SCAN"), "{sql}:\n{plan}");
        }
    }
}
