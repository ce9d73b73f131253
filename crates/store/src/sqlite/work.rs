//! A handler's own writes in the store's file: what its closure is given, and what became of it. Offers no transaction
//! control: the writer's savepoint is the transaction.

use std::fmt;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};

use super::engine::WORK_TIME_MAX;

/// What a handler's statements begin with among those that are kept.
const OF_A_HANDLER: &str = "/* a handler's */ ";

/// The database as a handler's closure sees it. Statements that control transactions, change settings, attach files or
/// touch the store's own tables (`semel_…`) are refused.
pub struct Work<'a> {
    connection: &'a Connection,
}

impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl<'a> Work<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self { connection }
    }

    /// Prepares a statement, or takes one that was prepared before. Permission is asked for when a statement is prepared:
    /// behind a mark that no statement of the store has, its text never finds one of those.
    fn prepared(&self, sql: &str) -> rusqlite::Result<CachedStatement<'a>> {
        self.connection.prepare_cached(&[OF_A_HANDLER, sql].concat())
    }

    /// Runs one statement and says how many rows it changed.
    pub fn execute<P: Params>(&self, sql: &str, params: P) -> Result<usize, WorkError> {
        Ok(self.prepared(sql)?.execute(params)?)
    }

    /// Reads the first row of a query; none is an error.
    pub fn query_row<T, P, F>(&self, sql: &str, params: P, read: F) -> Result<T, WorkError>
    where
        P: Params,
        F: FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    {
        Ok(self.prepared(sql)?.query_row(params, read)?)
    }

    /// Reads the first row of a query, if there is one.
    pub fn query_optional<T, P, F>(&self, sql: &str, params: P, read: F) -> Result<Option<T>, WorkError>
    where
        P: Params,
        F: FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    {
        Ok(self.prepared(sql)?.query_row(params, read).optional()?)
    }

    /// Reads every row of a query.
    pub fn query_all<T, P, F>(&self, sql: &str, params: P, read: F) -> Result<Vec<T>, WorkError>
    where
        P: Params,
        F: FnMut(&Row<'_>) -> rusqlite::Result<T>,
    {
        let mut statement = self.prepared(sql)?;
        let rows = statement.query_map(params, read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The rowid of the last row that was inserted.
    pub fn last_insert_rowid(&self) -> i64 {
        self.connection.last_insert_rowid()
    }
}

/// Why a handler's closure had no effect.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkError {
    /// SQLite refused a statement.
    Sqlite(rusqlite::Error),
    /// The handler gave up, in its own words.
    Handler(String),
    /// It took longer than [`WORK_TIME_MAX`].
    TooSlow,
    /// It panicked.
    Panicked(String),
    /// One of its statements rolled the whole transaction back.
    RolledBack,
    /// It left rows that refer to rows which do not exist.
    DanglingReferences,
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkError::Sqlite(error) => write!(f, "a statement failed: {error}"),
            WorkError::Handler(why) => f.write_str(why),
            WorkError::TooSlow => write!(f, "it took longer than {} s", WORK_TIME_MAX.as_secs()),
            WorkError::Panicked(message) => write!(f, "it panicked: {message}"),
            WorkError::RolledBack => f.write_str("one of its statements rolled the transaction back"),
            WorkError::DanglingReferences => f.write_str("it left references to rows that do not exist"),
        }
    }
}

impl std::error::Error for WorkError {}

impl From<rusqlite::Error> for WorkError {
    fn from(error: rusqlite::Error) -> Self {
        WorkError::Sqlite(error)
    }
}

/// What became of a handler's closure and its settlement.
#[derive(Debug)]
pub enum TransactOutcome<T> {
    /// Both are durable.
    Done(T),
    /// This fence had settled before, and the closure was not run: the record tells the answer.
    AlreadyDone,
    /// Somebody else holds the key, or it was resolved. Nothing was written.
    Superseded,
    /// The closure failed. Nothing was written, and the claim is still held.
    Failed(WorkError),
}

/// Whether a deferred foreign key is broken now. It would fail the commit of the whole batch.
pub(super) fn has_dangling_references(connection: &Connection) -> bool {
    let (mut broken, mut highest) = (0, 0);
    // SAFETY: the handle is that of a live connection, and both pointers are to live integers.
    let status = unsafe {
        rusqlite::ffi::sqlite3_db_status(
            connection.handle(),
            rusqlite::ffi::SQLITE_DBSTATUS_DEFERRED_FKS,
            &raw mut broken,
            &raw mut highest,
            0,
        )
    };
    status == rusqlite::ffi::SQLITE_OK && broken != 0
}
