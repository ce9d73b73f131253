//! What the threads of one store share: its file, its time, its readers and its health. Decides nothing.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use super::checkpoint::Checkpointer;
use super::error::EngineError;
use super::faults::Faults;
use super::guard::Guard;
use super::health::Health;
use super::lock::FileLock;
use super::readers::Readers;
use super::schema::Schema;
use super::time::StoreTime;

/// What they share.
#[derive(Debug)]
pub struct Shared {
    pub(super) path: PathBuf,
    pub(super) schema: &'static Schema,
    /// Pages of the file that the writer keeps in memory.
    pub(super) cache_kibibytes: u32,
    /// The store's time.
    pub time: StoreTime,
    /// Whether it may answer.
    pub health: Health,
    pub(super) guard: Arc<Guard>,
    pub(super) readers: Arc<Readers>,
    pub(super) checkpointer: Arc<Checkpointer>,
    pub(super) faults: Faults,
    pub(super) closing: Closing,
    // Given back last, when nothing of this store touches the file any more. In memory there is none.
    pub(super) lock: Option<FileLock>,
}

impl Shared {
    /// Looks something up. It sees everything that was committed when it was called.
    ///
    /// # Errors
    /// The store must not answer, or SQLite refuses.
    pub fn look<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, EngineError> {
        self.health.check()?;
        self.readers.look(self.guard.commits(), read)
    }

    /// Reads on the one connection that is set aside for long lists.
    ///
    /// # Errors
    /// SQLite refuses.
    pub fn list<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, EngineError> {
        self.readers.list(read)
    }

    /// Reads a little at a time, on a connection of its own.
    ///
    /// # Errors
    /// SQLite refuses.
    pub fn read_aside<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, EngineError> {
        self.readers.read_aside(read)
    }

    /// There is nothing more to read so.
    pub fn end_aside(&self) {
        self.readers.end_aside();
    }

    /// Where the file is; empty in memory.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Commits so far that wrote something.
    pub fn commits(&self) -> u64 {
        self.guard.commits()
    }

    /// The lock of the file; none in memory.
    pub fn lock(&self) -> Option<&FileLock> {
        self.lock.as_ref()
    }

    /// Faults on demand, for tests.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// Whether the store is being closed, which ends every pause.
#[derive(Debug, Default)]
pub(super) struct Closing {
    is_closing: Mutex<bool>,
    came: Condvar,
}

impl Closing {
    pub(super) fn begin(&self) {
        *self.is_closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.came.notify_all();
    }

    /// Waits so long, or until the store is closed. Says whether it is.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        let is_closing = self.is_closing.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.came.wait_timeout_while(is_closing, pause, |is_closing| !*is_closing);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
