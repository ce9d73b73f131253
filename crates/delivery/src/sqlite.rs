//! The outbox's store on SQLite: one process, one file; or the same in memory, for simulations. One thread writes, in
//! batches that commit and sync as one: a batch is whatever came while the last one was syncing.

/// What may still be sent, in the words of the partial indexes: SQLite uses them only where a query says the same.
macro_rules! live {
    () => {
        "(status = 'pending' OR status = 'inflight' OR status = 'held')"
    };
}

mod accept;
mod batch;
mod checkpoint;
mod claim;
mod events;
mod inbox;
mod look;
mod operate;
mod row;
mod schema;
mod settle;
mod store;
mod turn;
mod writer;

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use semel_store::sqlite::OpenError;
use semel_store::sqlite::file::{self, FileLock};

use self::turn::Turn;
use self::writer::{Inline, Run, Threaded};

pub use self::batch::Faults;

/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS_KEPT_MAX: usize = 128;
/// What the log is cut to when it begins anew. Below that it keeps its length: writing over it needs no new blocks.
const LOG_KEPT_BYTES: i64 = 64 << 20;
/// Pages that the writer keeps in memory.
const CACHE_KIBIBYTES: i64 = 16 << 10;

/// A store in one file, or in memory.
pub struct SqliteStore {
    run: Box<dyn Run>,
    watch: tokio::sync::watch::Receiver<i64>,
    // Given back last, when nothing of this store touches the file any more.
    lock: Option<FileLock>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a file as a store, or creates it.
    ///
    /// Before: no other store, of this process or another, has it open. After: the schema is this release's, and every
    /// message that was accepted is there. Crash: opening again repeats what was not done.
    ///
    /// # Errors
    /// Another process owns the file, it is damaged, a later release wrote it, or the folder cannot be written.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        file::check_version()?;
        let path = file::canonical(path)?;
        let lock = FileLock::take(&path)?;
        let mut connection = file::for_writing(&path)?;
        schema::refuse_damage(&connection)?;
        // After a sync that failed, what is in memory is not evidence: the log is written and synced anew first.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        schema::migrate(&mut connection)?;
        connection.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIBIBYTES)?;
        keep_statements(&connection)?;
        let turn = Turn::start(&connection)?;
        let (told, watch) = tokio::sync::watch::channel(turn.last_event);
        let run = Threaded::start(connection, turn, path, told)?;
        Ok(Self { run: Box::new(run), watch, lock: Some(lock) })
    }

    /// The version of a file, 0 where there is none, and that of this release. Changes nothing, and does not ask who owns
    /// the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn version(path: &Path) -> Result<(i64, i64), OpenError> {
        schema::versions(path)
    }

    /// A store in memory. Nothing of it outlives it.
    ///
    /// # Errors
    /// The SQLite library refuses.
    pub fn memory() -> Result<Self, OpenError> {
        Self::inline(rusqlite::Connection::open_in_memory()?)
    }

    /// What a start finds after a crash that left this behind; see [`SqliteStore::image`].
    ///
    /// # Errors
    /// It is no image of a store in memory.
    #[cfg(feature = "conformance")]
    pub fn of_image(image: &[u8]) -> Result<Self, OpenError> {
        let mut connection = rusqlite::Connection::open_in_memory()?;
        connection.deserialize_read_exact("main", image, image.len(), false)?;
        Self::inline(connection)
    }

    /// What a crash now would leave behind of a store in memory: all that is committed, and nothing else. A store on a
    /// file has its file for that, and none here.
    #[cfg(feature = "conformance")]
    pub fn image(&self) -> Option<Vec<u8>> {
        self.run.image()
    }

    fn inline(mut connection: rusqlite::Connection) -> Result<Self, OpenError> {
        schema::migrate(&mut connection)?;
        keep_statements(&connection)?;
        let turn = Turn::start(&connection)?;
        let (told, watch) = tokio::sync::watch::channel(turn.last_event);
        Ok(Self { run: Box::new(Inline::new(connection, turn, told)), watch, lock: None })
    }

    /// Where the lock file is that says who owns the store's file.
    pub fn lock_file(&self) -> Option<PathBuf> {
        self.lock.as_ref().map(|lock| lock.path().to_path_buf())
    }

    /// Faults on demand, for tests.
    pub fn faults(&self) -> &Faults {
        self.run.faults()
    }
}

/// Statements are prepared once: values that are bound do not change how they are run.
fn keep_statements(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}
