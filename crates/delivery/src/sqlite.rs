//! The outbox's store on SQLite: one process, one file; or the same in memory, for simulations. One thread writes, in
//! batches that commit and sync as one: a batch is whatever came while the last one was syncing.

/// What may still be sent, in the words of the partial indexes: SQLite uses them only where a query says the same.
macro_rules! live {
    () => {
        "(status = 'pending' OR status = 'inflight' OR status = 'held')"
    };
}

mod accept;
mod audit;
mod claim;
mod events;
mod inbox;
mod look;
mod operate;
mod row;
mod schema;
mod settle;
mod store;
mod time;
mod turn;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use semel_contract::planted::{self, Bug};
use semel_store::clock::SystemClock;
use semel_store::sqlite::OpenError;
use semel_store::sqlite::engine::{self, Engine, Examine, Options};

use self::schema::SCHEMA;
use self::turn::{Counts, Fault, Turn};
use crate::operator::Operator;
use crate::store::{Reply, StoreError};

pub use semel_store::sqlite::engine::Faults;

/// Pages of the file that the writer keeps in memory.
const CACHE_KIBIBYTES: u32 = 16 << 10;
/// The pages of a new file.
const PAGE_BYTES: u32 = 4096;

/// A store in one file, or in memory.
#[derive(Debug)]
pub struct SqliteStore {
    engine: Arc<Engine<Counts>>,
    watch: tokio::sync::watch::Receiver<i64>,
    /// In whose name something is done by hand.
    operator: Option<Operator>,
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
        let (told, watch) = tokio::sync::watch::channel(0);
        let engine = Engine::open(path, options(), |_| Ok(()), |connection, _| counts(connection, told))?;
        Ok(Self { engine: Arc::new(engine), watch, operator: None })
    }

    /// The version of a file, 0 where there is none, and that of this release. Changes nothing, and does not ask who owns
    /// the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn version(path: &Path) -> Result<(i64, i64), OpenError> {
        let version = engine::version(path, &SCHEMA)?;
        Ok((version.found, version.known))
    }

    /// A store in memory. Nothing of it outlives it.
    ///
    /// # Errors
    /// The SQLite library refuses.
    pub fn memory() -> Result<Self, OpenError> {
        Self::inline(Connection::open_in_memory()?)
    }

    /// What a start finds after a crash that left this behind; see [`SqliteStore::image`].
    ///
    /// # Errors
    /// It is no image of a store in memory.
    #[cfg(feature = "conformance")]
    pub fn of_image(image: &[u8]) -> Result<Self, OpenError> {
        let mut connection = Connection::open_in_memory()?;
        connection.deserialize_read_exact("main", image, image.len(), false)?;
        Self::inline(connection)
    }

    /// What a crash now would leave behind of a store in memory: all that is committed, and nothing else. A store on a
    /// file has its file for that, and none here.
    #[cfg(feature = "conformance")]
    pub fn image(&self) -> Option<Vec<u8>> {
        let image = self.engine.with_memory(|connection| Some(connection.serialize("main").ok()?.to_vec()));
        image.flatten()
    }

    fn inline(connection: Connection) -> Result<Self, OpenError> {
        let (told, watch) = tokio::sync::watch::channel(0);
        let load = |connection: &Connection, _: &_| counts(connection, told);
        let engine = Engine::in_memory(connection, options(), |_| Ok(()), load)?;
        Ok(Self { engine: Arc::new(engine), watch, operator: None })
    }

    /// The same store, in the name of somebody: what they do stands in the trail.
    pub fn in_name_of(&self, operator: Operator) -> Self {
        let (engine, watch) = (Arc::clone(&self.engine), self.watch.clone());
        Self { engine, watch, operator: Some(operator) }
    }

    /// Hands work to the writer.
    fn write<'a, T: Send + 'static>(
        &self,
        mut work: impl FnMut(&Connection, &mut Turn) -> Result<T, Fault> + Send + 'static,
    ) -> Reply<'a, T> {
        let mut run =
            move |tx: &mut engine::BatchTx<'_, Counts>| -> Result<Result<T, StoreError>, engine::Fault> {
                let (connection, turn) = (tx.connection(), &mut tx.state.turn);
                let (before, written) = (*turn, connection.total_changes());
                match work(connection, turn) {
                    // It has written nothing, so the others of its batch go on beside it.
                    Err(Fault::Refused(error)) if connection.total_changes() == written => {
                        *turn = before;
                        Ok(Err(error))
                    }
                    worked => Ok(Ok(worked?)),
                }
            };
        if planted::is(Bug::OutboxAnswerBeforeSync) {
            // Says that it succeeded without asking the disk: a bug on purpose.
            let found = Arc::new(Mutex::new(None));
            let kept = Arc::clone(&found);
            let submitted = self.engine.submit(0, move |tx| {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(run(tx)?);
                Ok(())
            });
            return Box::pin(async move {
                let committed = submitted.await;
                let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
                found.unwrap_or_else(|| Err(committed.err().map_or_else(did_not_run, StoreError::from)))
            });
        }
        let submitted = self.engine.submit(0, run);
        Box::pin(async move { submitted.await? })
    }

    /// Reads, on a file by a thread for such things.
    fn look<'a, T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reply<'a, T> {
        let shared = self.engine.shared();
        if shared.lock().is_none() {
            let found = self.engine.look(read).map_err(StoreError::from);
            return Box::pin(std::future::ready(found));
        }
        let shared = Arc::clone(shared);
        let looking = tokio::task::spawn_blocking(move || shared.look(read));
        Box::pin(async move { Ok(looking.await.map_err(|error| StoreError::Failed(error.to_string()))??) })
    }

    /// Where the lock file is that says who owns the store's file.
    pub fn lock_file(&self) -> Option<PathBuf> {
        self.engine.shared().lock().map(|lock| lock.path().to_path_buf())
    }

    /// Faults on demand, for tests.
    pub fn faults(&self) -> &Faults {
        self.engine.shared().faults()
    }
}

fn options() -> Options {
    let clock = Arc::new(SystemClock);
    Options {
        schema: &SCHEMA,
        clock,
        cache_kibibytes: CACHE_KIBIBYTES,
        page_bytes: PAGE_BYTES,
        examine: Examine::Pages,
    }
}

fn counts(connection: &Connection, told: tokio::sync::watch::Sender<i64>) -> Result<Counts, OpenError> {
    let turn = Turn::start(connection)?;
    told.send_replace(turn.last_event);
    Ok(Counts::new(turn, told))
}

fn did_not_run() -> StoreError {
    StoreError::Failed("the work did not run".to_owned())
}
