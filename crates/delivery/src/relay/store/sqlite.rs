//! The database of the relay, or of the broker, on SQLite: one process, one file; or the same in memory. Every transaction
//! is IMMEDIATE, and one runs at a time. The file, its lock, its clock and what follows a failed sync are the engine's.

use std::path::Path;
use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, Value as SqlValue, ValueRef};
use rusqlite::{Connection, Statement};
use semel_store::clock::Clock;
pub use semel_store::sqlite::OpenError;
use semel_store::sqlite::engine::{
    self, Absence, EngineError, Examine, Faults, Lender, LentTx, Migration, Options, Schema, Shared, StartUp,
    TimeRows,
};

use super::sql::{Asked, Database, NOW, Row, StoreError, Transaction, Value};

/// The relay's schema.
static SCHEMA: Schema = Schema {
    table: "relay_meta",
    version: "schema",
    migrations: &[
        Migration {
            name: "relay",
            sql: concat!(
                "CREATE TABLE IF NOT EXISTS relay_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;",
                include_str!("../migrations/sqlite_0001_relay.sql")
            ),
            works_for: 1,
        },
        Migration { name: "state", sql: include_str!("../migrations/sqlite_0002_state.sql"), works_for: 2 },
        Migration { name: "done", sql: include_str!("../migrations/sqlite_0003_done.sql"), works_for: 3 },
        Migration { name: "given", sql: include_str!("../migrations/sqlite_0004_given.sql"), works_for: 3 },
        Migration { name: "reason", sql: include_str!("../migrations/sqlite_0005_reason.sql"), works_for: 3 },
    ],
    time: Some(TimeRows { high_water: "high_water", ticks: "ticks", boot: "boot", jump: "jump" }),
};
/// Pages of the file that are kept in memory.
const CACHE_KIBIBYTES: u32 = 2000;
/// The pages of a new file.
const PAGE_BYTES: u32 = 4096;

/// A database in one file, or in memory.
#[derive(Debug)]
pub struct Sqlite {
    lender: Lender,
}

impl Sqlite {
    /// Opens a file, or creates it.
    ///
    /// Before: no other store has it open. After: the schema is this release's. Crash: opening again repeats what was not
    /// done.
    ///
    /// # Errors
    /// Another process has it, a later release wrote it, or it cannot be read.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::open_schema(path, clock, &SCHEMA, start_up)
    }

    /// The same with the tables of another part.
    ///
    /// # Errors
    /// As above.
    pub fn open_schema(
        path: &Path,
        clock: Arc<dyn Clock>,
        schema: &'static Schema,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, OpenError> {
        let lender = Lender::open(path, options(schema, clock), start_up)?;
        if let Some(ahead) = lender.shared().time.jump() {
            let why = "the wall clock is ahead by so many milliseconds and nothing explains it: nothing is swept until a \
                time service keeps it right, it is set back, or somebody confirms it (semel relay clock, semel broker clock)";
            tracing::warn!(ahead, "{why}");
        }
        Ok(Self { lender })
    }

    /// A database in memory. Nothing of it outlives it.
    ///
    /// # Errors
    /// The SQLite library refuses.
    pub fn memory(clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::memory_schema(clock, &SCHEMA, start_up)
    }

    /// The same with the tables of another part.
    ///
    /// # Errors
    /// As above.
    pub fn memory_schema(
        clock: Arc<dyn Clock>,
        schema: &'static Schema,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, OpenError> {
        let connection = Connection::open_in_memory()?;
        Ok(Self { lender: Lender::in_memory(connection, options(schema, clock), start_up)? })
    }

    /// What a crash now would leave behind: all that is committed, and nothing else. `None` while a transaction is open.
    #[cfg(feature = "conformance")]
    pub fn image(&self) -> Option<Vec<u8>> {
        self.lender.with_memory(|connection| Some(connection.serialize("main").ok()?.to_vec())).flatten()
    }

    /// What a start finds after a crash that left this behind.
    ///
    /// # Errors
    /// It is no image of a database.
    #[cfg(feature = "conformance")]
    pub fn of_image(image: &[u8], clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::of_image_schema(image, clock, &SCHEMA, start_up)
    }

    /// The same with the tables of another part.
    ///
    /// # Errors
    /// As above.
    #[cfg(feature = "conformance")]
    pub fn of_image_schema(
        image: &[u8],
        clock: Arc<dyn Clock>,
        schema: &'static Schema,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, OpenError> {
        let mut connection = Connection::open_in_memory()?;
        connection.deserialize_read_exact("main", image, image.len(), false)?;
        Ok(Self { lender: Lender::in_memory(connection, options(schema, clock), start_up)? })
    }

    /// Writes down where the owner of the file can be asked.
    ///
    /// # Errors
    /// The lock file cannot be written.
    pub fn publish_admin(&self, address: &str) -> std::io::Result<()> {
        self.shared().lock().map_or(Ok(()), |lock| lock.publish(address))
    }

    /// Faults on demand, for tests.
    pub fn faults(&self) -> &Faults {
        self.shared().faults()
    }

    fn shared(&self) -> &Shared {
        self.lender.shared()
    }
}

fn options(schema: &'static Schema, clock: Arc<dyn Clock>) -> Options {
    Options {
        schema,
        clock,
        cache_kibibytes: CACHE_KIBIBYTES,
        page_bytes: PAGE_BYTES,
        examine: Examine::Nothing,
    }
}

/// Where it is not known how long no process was here, what may still be applied late has its whole window again.
fn start_up(start: &StartUp<'_>) -> rusqlite::Result<()> {
    match start.absence {
        Absence::Known => Ok(()),
        Absence::Unknown => {
            let sql = "UPDATE relay_intent SET last_ms = max(last_ms, ?1)";
            start.connection.execute(sql, [start.now.millis()]).map(drop)
        }
    }
}

/// The newest migration of a file, 0 where there is none, and the newest that this release knows. Changes nothing, and does
/// not ask who owns the file.
///
/// # Errors
/// It cannot be read.
pub fn version(path: &Path) -> Result<(i64, i64), OpenError> {
    let version = engine::version(path, &SCHEMA)?;
    Ok((version.found, version.known))
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Full(why) | EngineError::Unavailable(why) => StoreError::Failed(why),
            EngineError::Unknown(why) => StoreError::Unknown(why),
        }
    }
}

/// A transaction that has begun.
struct Begun {
    tx: LentTx,
    shared: Arc<Shared>,
    confirms_clock: bool,
}

impl Transaction for Begun {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        let found = match self.tx.connection() {
            Ok(connection) => rows(connection, &self.shared, sql, &args),
            Err(error) => Err(error.into()),
        };
        Box::pin(std::future::ready(found))
    }

    fn run_each<'a>(&'a mut self, sql: &'a str, rows: Vec<Vec<Value>>) -> Asked<'a, Vec<Row>> {
        let found = match self.tx.connection() {
            Ok(connection) => {
                each(connection, &dialect(sql), &rows).map_err(|error| EngineError::from(error).into())
            }
            Err(error) => Err(error.into()),
        };
        Box::pin(std::future::ready(found))
    }

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        self.confirms_clock = true;
        Box::pin(std::future::ready(Ok(())))
    }

    fn commit(self: Box<Self>) -> Asked<'static, ()> {
        let Begun { tx, shared, confirms_clock } = *self;
        Box::pin(async move {
            tx.commit().await?;
            if confirms_clock {
                // Time cannot be taken back, should the commit fail: it is believed after it.
                shared.time.confirm();
            }
            Ok(())
        })
    }
}

/// The rows that a statement returns.
fn rows(connection: &Connection, shared: &Shared, sql: &str, args: &[Value]) -> Result<Vec<Row>, StoreError> {
    if sql == NOW {
        return Ok(vec![Row(vec![shared.time.now().millis().into()])]);
    }
    Ok(query(connection, &dialect(sql), args).map_err(EngineError::from)?)
}

/// A statement as this library reads it: its parameters are `?1`, and no row is locked where one transaction runs at a time.
fn dialect(sql: &str) -> String {
    sql.replace('$', "?").replace("/*LOCK*/", "")
}

fn query(connection: &Connection, sql: &str, args: &[Value]) -> rusqlite::Result<Vec<Row>> {
    let (mut statement, mut rows) = (connection.prepare_cached(sql)?, Vec::new());
    collect(&mut statement, args, &mut rows)?;
    Ok(rows)
}

/// The rows that one statement returns for each of these.
fn each(connection: &Connection, sql: &str, all: &[Vec<Value>]) -> rusqlite::Result<Vec<Row>> {
    let (mut statement, mut rows) = (connection.prepare_cached(sql)?, Vec::new());
    for args in all {
        collect(&mut statement, args, &mut rows)?;
    }
    Ok(rows)
}

fn collect(statement: &mut Statement<'_>, args: &[Value], rows: &mut Vec<Row>) -> rusqlite::Result<()> {
    let columns = statement.column_count();
    let mut found = statement.query(rusqlite::params_from_iter(args))?;
    while let Some(row) = found.next()? {
        let value = |at| match row.get_ref(at)? {
            ValueRef::Null => Ok(Value::Null),
            ValueRef::Integer(value) => Ok(Value::Int(value)),
            ValueRef::Text(text) => Ok(Value::Text(String::from_utf8_lossy(text).into_owned())),
            ValueRef::Blob(bytes) => Ok(Value::Bytes(bytes.to_vec())),
            other @ ValueRef::Real(_) => {
                Err(rusqlite::Error::InvalidColumnType(at, String::new(), other.data_type()))
            }
        };
        rows.push(Row((0..columns).map(value).collect::<rusqlite::Result<_>>()?));
    }
    Ok(())
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Value::Null => ToSqlOutput::Owned(SqlValue::Null),
            Value::Int(value) => ToSqlOutput::Owned(SqlValue::Integer(*value)),
            Value::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Value::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

impl Database for Sqlite {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let tx = self.lender.begin().await?;
            let begun: Box<dyn Transaction> =
                Box::new(Begun { tx, shared: Arc::clone(self.lender.shared()), confirms_clock: false });
            Ok(begun)
        })
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            if self.shared().lock().is_none() || sql == NOW {
                let mut tx = self.begin().await?;
                return tx.run(sql, args).await;
            }
            Ok(self.shared().look(|connection| query(connection, &dialect(sql), &args))?)
        })
    }

    fn now(&self) -> Asked<'_, i64> {
        let now = self.shared().time.now().millis();
        Box::pin(async move { Ok(now) })
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn ready(&self) -> Asked<'_, ()> {
        Box::pin(async move { Ok(self.lender.ready().await?) })
    }

    fn clock_ahead(&self) -> i64 {
        self.shared().time.jump().unwrap_or(0)
    }
}
