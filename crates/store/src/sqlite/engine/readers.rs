//! Reads: look-ups on the calling thread, lists on a thread of their own. A look-up by index takes some ten
//! microseconds, less than handing it to another thread would; a list may read a lot and must not stand in the way of
//! the caller's other work.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::connect;
use super::error::{Fault, OpenError};
use super::hub::Hub;
use crate::claims::StoreError;

/// Connections for look-ups, at least.
const LOOK_UPS_AT_ONCE_MIN: usize = 2;
/// Connections for look-ups, at most.
const LOOK_UPS_AT_ONCE_MAX: usize = 16;
/// Lists that may wait.
const LISTS_WAITING_MAX: usize = 64;

/// Connections that only read. They are closed while the store recovers.
#[derive(Debug)]
pub(super) struct Readers {
    look_ups: Vec<Mutex<Option<Reader>>>,
    lists: Mutex<Option<Connection>>,
}

/// A connection for look-ups. It stays in one transaction as long as nothing is committed: to begin and to end one costs
/// more than to read a row.
#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// The number of commits that its transaction sees, at least; none: it is in no transaction.
    as_of: Option<u64>,
}

impl Reader {
    /// Makes sure that it sees so many commits.
    fn see(&mut self, commits: u64) -> rusqlite::Result<()> {
        if self.as_of == Some(commits) {
            return Ok(());
        }
        self.end()?;
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        self.as_of = Some(commits);
        Ok(())
    }

    fn end(&mut self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.connection.prepare_cached("COMMIT")?.execute([])?;
        }
        self.as_of = None;
        Ok(())
    }
}

impl Default for Readers {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(LOOK_UPS_AT_ONCE_MIN, usize::from);
        let at_once = threads.clamp(LOOK_UPS_AT_ONCE_MIN, LOOK_UPS_AT_ONCE_MAX);
        Self { look_ups: (0..at_once).map(|_| Mutex::default()).collect(), lists: Mutex::default() }
    }
}

impl Readers {
    /// Opens every connection anew.
    pub(super) fn open(&self, path: &Path) -> Result<(), OpenError> {
        for slot in &self.look_ups {
            *locked(slot) = Some(Reader { connection: connect::for_reading(path)?, as_of: None });
        }
        *locked(&self.lists) = Some(connect::for_reading(path)?);
        Ok(())
    }

    /// Closes every connection, once whoever uses it is done.
    pub(super) fn close(&self) {
        self.look_ups.iter().for_each(|slot| drop(locked(slot).take()));
        drop(locked(&self.lists).take());
    }

    /// Looks up on a free connection, at a moment after so many commits, all of it at one moment.
    pub(super) fn look<T>(
        &self,
        commits: u64,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let free = self.look_ups.iter().find_map(try_locked);
        let mut slot = free.unwrap_or_else(|| locked(&self.look_ups[0]));
        let reader = slot.as_mut().ok_or_else(closed)?;
        let seen = reader.see(commits).and_then(|()| read(&reader.connection));
        if seen.is_err() {
            // Whatever went wrong, the next one begins anew.
            let _ = reader.end();
        }
        seen.map_err(|error| Fault::from(error).into())
    }

    /// Reads on the connection for lists.
    pub(super) fn list<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let slot = locked(&self.lists);
        read(slot.as_ref().ok_or_else(closed)?).map_err(|error| Fault::from(error).into())
    }

    /// Ends the transactions of look-ups, so that none of them stands in the way of a checkpoint. They begin anew as
    /// soon as what this returns is dropped.
    pub(super) fn stand_aside(&self) -> Aside<'_> {
        let mut look_ups: Vec<_> = self.look_ups.iter().map(locked).collect();
        for reader in look_ups.iter_mut().filter_map(|slot| slot.as_mut()) {
            // One that cannot be ended only makes the checkpoint shorter.
            let _ = reader.end();
        }
        Aside { _look_ups: look_ups, lists: try_locked(&self.lists) }
    }
}

/// Nobody looks up while this lives.
pub(super) struct Aside<'a> {
    _look_ups: Vec<MutexGuard<'a, Option<Reader>>>,
    lists: Option<MutexGuard<'a, Option<Connection>>>,
}

impl Aside<'_> {
    /// Whether nobody lists either.
    pub(super) fn is_complete(&self) -> bool {
        self.lists.is_some()
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is being recovered".to_owned())
}

// A reader that panicked has changed nothing.
fn locked<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn try_locked<T>(slot: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match slot.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
    }
}

type Task = Box<dyn FnOnce(&Hub) + Send>;

/// The thread that lists.
#[derive(Debug)]
pub(super) struct Lister {
    tasks: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Lister {
    /// Starts it.
    pub(super) fn start(hub: Arc<Hub>) -> std::io::Result<Self> {
        let (tasks, waiting) = sync_channel(LISTS_WAITING_MAX);
        let serve = move |waiting: Receiver<Task>| waiting.iter().for_each(|task| task(&hub));
        let thread =
            std::thread::Builder::new().name("semel-sqlite-list".to_owned()).spawn(move || serve(waiting))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Hands it a task, or refuses.
    pub(super) fn ask(&self, task: Task) -> Result<(), StoreError> {
        match self.tasks.as_ref().map(|tasks| tasks.try_send(task)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => {
                Err(StoreError::Unavailable("too many lists wait".to_owned()))
            }
            Some(Err(TrySendError::Disconnected(_))) | None => {
                Err(StoreError::Unavailable("the store has stopped".to_owned()))
            }
        }
    }

    /// Ends it, once it has done what waits.
    pub(super) fn stop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; a panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}
