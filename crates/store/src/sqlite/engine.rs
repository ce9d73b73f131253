//! The embedded engine: one process, one file, one writer. Every store that semel keeps in SQLite is on it: claims, outbox
//! and relay. It owns the file and its lock, connections and their settings, migrations, batches, readers, checkpoints,
//! the clock, and the one answer to a sync that failed: unknown, then not ready, then recovered. It knows no table but the
//! one in which a store keeps numbers about itself.

mod checkpoint;
mod core;
mod error;
mod faults;
mod file;
mod guard;
mod health;
mod job;
mod lender;
mod lock;
mod open;
mod queue;
mod readers;
mod schema;
mod shared;
mod time;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;

use self::queue::{Queue, Refused};
use self::writer::Writer;

pub(crate) use self::error::is_full;
pub use self::error::{EngineError, Fault, OpenError};
pub use self::faults::Faults;
pub(crate) use self::file::for_reading;
pub use self::file::{canonical, version};
pub use self::guard::WORK_TIME_MAX;
pub use self::health::Health;
pub use self::job::BatchTx;
pub use self::lender::{Lender, LentTx};
pub use self::lock::{FileLock, Owner, owner};
pub use self::open::{Examine, Options, StartUp};
pub use self::queue::BATCH_JOBS_MAX;
pub use self::schema::{Migration, Schema, TimeRows, Version};
pub use self::shared::Shared;
pub use self::time::{Absence, StoreTime};
pub use self::writer::BatchState;

/// A store whose writes are jobs, in batches that commit and sync as one.
pub struct Engine<S: BatchState> {
    run: Run<S>,
    shared: Arc<Shared>,
}

/// Who runs the jobs.
enum Run<S> {
    /// A thread of its own, on a file.
    Thread { queue: Arc<Queue<S>>, writer: Option<JoinHandle<()>>, checkpoints: Option<JoinHandle<()>> },
    /// The caller itself, in memory.
    Caller(Box<Mutex<Writer<S>>>),
}

impl<S: BatchState> std::fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl<S: BatchState> Engine<S> {
    /// Opens a file, or creates it. `start_up` runs in one transaction with the start of the clock; `load` then reads what
    /// the store keeps in memory.
    ///
    /// Before: no other store, of this process or another, has the file open. After: the schema is that of this release,
    /// and everything that was acknowledged is there. Crash: opening again repeats what was not done.
    ///
    /// # Errors
    /// Another store owns the file, it is damaged, a later release wrote it, or it cannot be written.
    pub fn open(
        path: &Path,
        options: Options,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
        load: impl FnOnce(&Connection, &Arc<Shared>) -> Result<S, OpenError>,
    ) -> Result<Self, OpenError> {
        let (core, state) = open::open_file(path, options, start_up, load)?;
        let shared = Arc::clone(&core.shared);
        let queue = Arc::new(Queue::default());
        let (checkpointer, readers) = (Arc::clone(&shared.checkpointer), Arc::clone(&shared.readers));
        let writer = Some(writer::start(Writer { core, state }, Arc::clone(&queue))?);
        let mut engine = Self { run: Run::Thread { queue, writer, checkpoints: None }, shared };
        // Where this fails, the engine is dropped, which closes what is open before the file is given back.
        let started = checkpoint::start(checkpointer, readers)?;
        if let Run::Thread { checkpoints, .. } = &mut engine.run {
            *checkpoints = Some(started);
        }
        Ok(engine)
    }

    /// The same on a connection to a database in memory. The caller of a write runs it.
    ///
    /// # Errors
    /// SQLite refuses.
    pub fn in_memory(
        connection: Connection,
        options: Options,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
        load: impl FnOnce(&Connection, &Arc<Shared>) -> Result<S, OpenError>,
    ) -> Result<Self, OpenError> {
        let (core, state) = open::open_memory(connection, options, start_up, load)?;
        let shared = Arc::clone(&core.shared);
        Ok(Self { run: Run::Caller(Box::new(Mutex::new(Writer { core, state }))), shared })
    }

    /// What the threads of the store share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Hands a job to the writer; `bytes` is roughly what it writes beside a row's usual content. The call itself queues
    /// it: dropping what is returned does not take it back.
    ///
    /// After `Ok`: what it wrote is durable. After [`EngineError::Unknown`]: it is there or not, whole. After any other
    /// error: nothing of it is there. It may run more than once, and only its last run counts.
    pub fn submit<T, F>(
        &self,
        bytes: usize,
        work: F,
    ) -> impl Future<Output = Result<T, EngineError>> + Send + use<S, T, F>
    where
        T: Send + 'static,
        F: FnMut(&mut BatchTx<'_, S>) -> Result<T, Fault> + Send + 'static,
    {
        let queued = self.queue(bytes, work);
        async move {
            let stopped = || EngineError::Unknown("the writer stopped before it answered".to_owned());
            queued?.await.unwrap_or_else(|_| Err(stopped()))
        }
    }

    fn queue<T, F>(&self, bytes: usize, work: F) -> Result<job::Answer<T>, EngineError>
    where
        T: Send + 'static,
        F: FnMut(&mut BatchTx<'_, S>) -> Result<T, Fault> + Send + 'static,
    {
        self.shared.health.check()?;
        let (job, answer) = job::job(bytes, work);
        match &self.run {
            Run::Thread { queue, .. } => {
                queue.push(job).map_err(|Refused(why)| EngineError::Unavailable(why.to_owned()))?;
            }
            Run::Caller(writer) => writer.lock().unwrap_or_else(PoisonError::into_inner).run_one(job),
        }
        Ok(answer)
    }

    /// Reads on the calling thread. It sees everything that was committed when it was called.
    ///
    /// # Errors
    /// The store must not answer, or SQLite refuses.
    pub fn look<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, EngineError> {
        match &self.run {
            Run::Thread { .. } => self.shared.look(read),
            Run::Caller(writer) => {
                let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(read(writer.core.connection())?)
            }
        }
    }

    /// Works on the connection of a store in memory.
    #[cfg(feature = "conformance")]
    pub fn with_memory<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        match &self.run {
            Run::Thread { .. } => None,
            Run::Caller(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                Some(work(writer.core.connection_mut()))
            }
        }
    }
}

impl<S: BatchState> Drop for Engine<S> {
    /// Does what waits, copies the log into the file and gives the file back. The calling thread waits for it.
    fn drop(&mut self) {
        let Run::Thread { queue, writer, checkpoints } = &mut self.run else { return };
        queue.close();
        self.shared.closing.begin();
        // A panic of a thread was reported where it happened.
        let _ = writer.take().map(JoinHandle::join);
        self.shared.checkpointer.stop();
        let _ = checkpoints.take().map(JoinHandle::join);
    }
}
