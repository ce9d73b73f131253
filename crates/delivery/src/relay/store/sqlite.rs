//! The relay's database on SQLite: one process, one file; or the same in memory. Every transaction is IMMEDIATE, and one
//! runs at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, Value as SqlValue, ValueRef};
use semel_store::clock::{Clock, Mark, StoreClock};
pub use semel_store::sqlite::OpenError;
use semel_store::sqlite::file::{self, FileLock};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::sql::{Asked, Database, NOW, Row, StoreError, Transaction, Value};
use super::timekeeping;

/// Every migration: its number, the newest that the oldest release knew which still works once it is applied, its text.
const MIGRATIONS: &[(i64, i64, &str)] = &[
    (1, 1, include_str!("../migrations/sqlite_0001_relay.sql")),
    (2, 2, include_str!("../migrations/sqlite_0002_state.sql")),
    (3, 3, include_str!("../migrations/sqlite_0003_done.sql")),
];
/// How far the clock may run before its mark is written down again.
const MARK_EVERY_MILLIS: i64 = 10_000;

/// A database in one file, or in memory.
pub struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    is_broken: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    time: Arc<StoreClock>,
    marked: Arc<AtomicI64>,
    lock: Option<FileLock>,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqlite").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Opens a file, or creates it.
    ///
    /// Before: nobody else has it open. After: the schema is this release's. Crash: opening again repeats what was not
    /// done.
    ///
    /// # Errors
    /// Another process has it, a later release wrote it, or it cannot be read.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        file::check_version()?;
        let path = file::canonical(path)?;
        let lock = FileLock::take(&path)?;
        let connection = file::for_writing(&path)?;
        connection.pragma_update(None, "wal_autocheckpoint", 1000)?;
        connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
        // After a sync that failed, what is in memory is not evidence: the log is written and synced anew first.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Self::with(connection, clock, Some(lock))
    }

    /// A database in memory. Nothing of it outlives it.
    ///
    /// # Errors
    /// The SQLite library refuses.
    pub fn memory(clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::with(Connection::open_in_memory()?, clock, None)
    }

    /// What a crash now would leave behind: all that is committed, and nothing else. `None` while a transaction is open.
    #[cfg(feature = "conformance")]
    pub fn image(&self) -> Option<Vec<u8>> {
        let mut connection = self.connection.try_lock().ok()?;
        let image = connection.serialize("main").ok()?;
        Some(image.to_vec())
    }

    /// What a start finds after a crash that left this behind.
    ///
    /// # Errors
    /// It is no image of a database.
    #[cfg(feature = "conformance")]
    pub fn of_image(image: &[u8], clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let mut connection = Connection::open_in_memory()?;
        connection.deserialize_read_exact("main", image, image.len(), false)?;
        Self::with(connection, clock, None)
    }

    fn with(
        mut connection: Connection,
        clock: Arc<dyn Clock>,
        lock: Option<FileLock>,
    ) -> Result<Self, OpenError> {
        connection.set_prepared_statement_cache_capacity(128);
        migrate(&mut connection)?;
        let time = Arc::new(timekeeping::resume(&mut connection, &*clock)?);
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            is_broken: Arc::new(AtomicBool::new(false)),
            clock,
            time,
            marked: Arc::default(),
            lock,
        })
    }

    /// Writes down where the owner of the file can be asked.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn publish_admin(&self, address: &str) -> std::io::Result<()> {
        self.lock.as_ref().map_or(Ok(()), |lock| lock.publish(address))
    }

    async fn started(&self) -> Result<Box<dyn Transaction>, StoreError> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(StoreError::Failed(
                "a commit failed before: what is in memory is no evidence".to_owned(),
            ));
        }
        let connection = Arc::clone(&self.connection).lock_owned().await;
        connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        let mark = self.time.mark(&*self.clock);
        let is_due = mark.time.millis() - self.marked.load(Ordering::SeqCst) > MARK_EVERY_MILLIS;
        Ok(Box::new(Begun {
            connection: Some(connection),
            is_broken: Arc::clone(&self.is_broken),
            clock: Arc::clone(&self.clock),
            time: Arc::clone(&self.time),
            mark: is_due.then(|| (mark, Arc::clone(&self.marked))),
            syncs: self.lock.is_some(),
        }))
    }
}

/// The newest migration of a file, 0 where there is none, and the newest that this release knows. Changes nothing, and does
/// not ask who owns the file.
///
/// # Errors
/// It cannot be read.
pub fn version(path: &Path) -> Result<(i64, i64), OpenError> {
    let known = MIGRATIONS.iter().map(|(number, ..)| *number).max().unwrap_or(0);
    if !path.try_exists()? {
        return Ok((0, known));
    }
    let connection = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let has_rows = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'relay_meta'";
    if connection.query_row(has_rows, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok((0, known));
    }
    let sql = "SELECT coalesce(max(value), 0) FROM relay_meta WHERE name = 'schema'";
    Ok((connection.query_row(sql, [], |row| row.get(0))?, known))
}

fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS relay_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",
    )?;
    let number = |name: &str| {
        let sql = "SELECT coalesce(max(value), 0) FROM relay_meta WHERE name = ?1";
        transaction.query_row(sql, [name], |row| row.get::<_, i64>(0))
    };
    let (found, works_for) = (number("schema")?, number("schema_works_for")?);
    let known = MIGRATIONS.len() as i64;
    // A later release may have written it in a way that this one can still work with.
    if found > known && works_for > known {
        return Err(OpenError::TooNew { found, known });
    }
    for (number, works_for, sql) in MIGRATIONS.iter().filter(|(number, ..)| *number > found) {
        transaction.execute_batch(sql)?;
        for (name, value) in [("schema", number), ("schema_works_for", works_for)] {
            let sql = "INSERT INTO relay_meta (name, value) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            transaction.execute(sql, (name, value))?;
        }
    }
    transaction.commit()?;
    Ok(())
}

struct Begun {
    // Taken at the commit.
    connection: Option<OwnedMutexGuard<Connection>>,
    is_broken: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    time: Arc<StoreClock>,
    /// The time to be written down with the commit, so that a later start never begins before it.
    mark: Option<(Mark, Arc<AtomicI64>)>,
    /// Whether a commit waits for a disk. In memory it is done at once, by the caller's own thread.
    syncs: bool,
}

impl Begun {
    fn rows(&mut self, sql: &str, args: &[Value]) -> Result<Vec<Row>, StoreError> {
        let connection =
            self.connection.as_ref().ok_or_else(|| StoreError::Failed("it has ended".to_owned()))?;
        if sql == NOW {
            return Ok(vec![Row(vec![self.time.now(self.clock.read()).millis().into()])]);
        }
        let sql = sql.replace('$', "?").replace("/*LOCK*/", "");
        let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
        let columns = statement.column_count();
        let mut found = statement.query(rusqlite::params_from_iter(args)).map_err(failed)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(failed)? {
            let value = |at| match row.get_ref(at).map_err(failed)? {
                ValueRef::Null => Ok(Value::Null),
                ValueRef::Integer(value) => Ok(Value::Int(value)),
                ValueRef::Text(text) => Ok(Value::Text(String::from_utf8_lossy(text).into_owned())),
                ValueRef::Real(_) | ValueRef::Blob(_) => {
                    Err(StoreError::Failed("a value of no known kind".to_owned()))
                }
            };
            rows.push(Row((0..columns).map(value).collect::<Result<_, _>>()?));
        }
        Ok(rows)
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Value::Null => ToSqlOutput::Owned(SqlValue::Null),
            Value::Int(value) => ToSqlOutput::Owned(SqlValue::Integer(*value)),
            Value::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

impl Transaction for Begun {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move { self.rows(sql, &args) })
    }

    fn commit(mut self: Box<Self>) -> Asked<'static, ()> {
        Box::pin(async move {
            let mark = self.mark.take();
            let ended = || StoreError::Failed("it has ended".to_owned());
            if let Some((mark, _)) = &mark {
                timekeeping::write(self.connection.as_ref().ok_or_else(ended)?, *mark).map_err(failed)?;
            }
            let connection = self.connection.take().ok_or_else(ended)?;
            let is_broken = Arc::clone(&self.is_broken);
            let commit = move || {
                let outcome = connection.execute_batch("COMMIT");
                if outcome.is_err() {
                    is_broken.store(true, Ordering::SeqCst);
                }
                outcome.map_err(|error| error.to_string())
            };
            // The sync may take a while.
            let committed = match self.syncs {
                true => {
                    tokio::task::spawn_blocking(commit).await.unwrap_or_else(|error| Err(error.to_string()))
                }
                false => commit(),
            };
            committed.map_err(StoreError::Unknown)?;
            if let Some((mark, marked)) = mark {
                marked.store(mark.time.millis(), Ordering::SeqCst);
            }
            Ok(())
        })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Where this fails nothing is open any more, or the next BEGIN says so.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl Database for Sqlite {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(self.started())
    }

    fn now(&self) -> Asked<'_, i64> {
        let now = self.time.now(self.clock.read()).millis();
        Box::pin(async move { Ok(now) })
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    fn clock_ahead(&self) -> i64 {
        self.time.frozen().unwrap_or(0)
    }
}
