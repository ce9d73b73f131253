//! Opens a file, or a database in memory, as a store: lock, settings, schema, clock, in this order.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};
use semel_contract::time::Timestamp;

use super::checkpoint::{Reached, checkpoint};
use super::core::{Core, writing};
use super::error::OpenError;
use super::file;
use super::lock::FileLock;
use super::schema::Schema;
use super::shared::Shared;
use super::time::{Absence, StoreTime};
use crate::clock::Clock;

/// How long a reader of another program is waited for when a file is opened.
const LOG_IN_USE_MAX: Duration = Duration::from_secs(5);
/// The pause between two tries.
const LOG_IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// How a store is opened.
pub struct Options {
    /// Its schema.
    pub schema: &'static Schema,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Pages of the file that the writer keeps in memory.
    pub cache_kibibytes: u32,
    /// How large the pages of a new file are: a power of two from 512.
    pub page_bytes: u32,
    /// Whether its pages are looked at before anything is written.
    pub examine: Examine,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// Whether the pages of a file are looked at before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examine {
    /// Every page: a damaged file is refused and left as it is. Takes as long as the file is large.
    Pages,
    /// What is needed.
    Nothing,
}

/// What a store does at its start, in one transaction with the start of the clock.
#[derive(Debug)]
pub struct StartUp<'a> {
    /// The transaction.
    pub connection: &'a Connection,
    /// The store's time.
    pub now: Timestamp,
    /// Whether it is known how long no process was here.
    pub absence: Absence,
}

/// Opens a file. `load` then reads what the store keeps in memory.
pub(super) fn open_file<S>(
    path: &Path,
    options: Options,
    start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    load: impl FnOnce(&Connection, &Arc<Shared>) -> Result<S, OpenError>,
) -> Result<(Core, S), OpenError> {
    file::check_version()?;
    let path = file::canonical(path)?;
    let lock = FileLock::take(&path)?;
    let mut connection = file::for_creating(&path, options.schema, options.page_bytes)?;
    if options.examine == Examine::Pages {
        refuse_damage(&connection)?;
    }
    copy_log(&connection)?;
    options.schema.migrate(&mut connection)?;
    let (time, now) = start(&mut connection, &options, start_up)?;
    drop(connection);
    let shared = Arc::new(shared(path, &options, time, Some(lock)));
    let mut connection = writing(&shared)?;
    let loaded = load(&connection, &shared)?;
    shared.guard.install(&mut connection)?;
    shared.readers.open(&shared.path)?;
    shared.checkpointer.open(&shared.path, shared.schema)?;
    Ok((Core::new(connection, now, shared), loaded))
}

/// The same in memory.
pub(super) fn open_memory<S>(
    mut connection: Connection,
    options: Options,
    start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    load: impl FnOnce(&Connection, &Arc<Shared>) -> Result<S, OpenError>,
) -> Result<(Core, S), OpenError> {
    file::keep_statements(&connection)?;
    options.schema.migrate(&mut connection)?;
    let (time, now) = start(&mut connection, &options, start_up)?;
    let shared = Arc::new(shared(Default::default(), &options, time, None));
    let loaded = load(&connection, &shared)?;
    shared.guard.install(&mut connection)?;
    Ok((Core::new(connection, now, shared), loaded))
}

fn shared(path: std::path::PathBuf, options: &Options, time: StoreTime, lock: Option<FileLock>) -> Shared {
    Shared {
        path,
        schema: options.schema,
        cache_kibibytes: options.cache_kibibytes,
        time,
        health: Default::default(),
        guard: Arc::default(),
        readers: Arc::default(),
        checkpointer: Arc::default(),
        faults: Default::default(),
        closing: Default::default(),
        lock,
    }
}

/// A process before may have seen a sync fail: what its log says is written into the file and synced first. A log that is
/// copied in part alone would hide newer pages of the file behind older ones of its own after a loss of power.
fn copy_log(connection: &Connection) -> Result<(), OpenError> {
    let started = Instant::now();
    loop {
        if checkpoint(connection, "TRUNCATE")? == Reached::End {
            return Ok(());
        }
        if started.elapsed() >= LOG_IN_USE_MAX {
            return Err(OpenError::LogInUse { waited: LOG_IN_USE_MAX });
        }
        std::thread::sleep(LOG_IN_USE_PAUSE);
    }
}

/// A file that is not a database, or a damaged one, is left as it is.
fn refuse_damage(connection: &Connection) -> Result<(), OpenError> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(OpenError::Corrupt(found)) }
}

/// Starts the clock no earlier than it ever was, and does what the store does at its start.
fn start(
    connection: &mut Connection,
    options: &Options,
    start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<(StoreTime, Timestamp)> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (time, absence) = StoreTime::resume(&transaction, options.schema, Arc::clone(&options.clock))?;
    let now = time.now();
    start_up(&StartUp { connection: &transaction, now, absence })?;
    time.write(&transaction, options.schema)?;
    transaction.commit()?;
    Ok((time, now))
}
