//! Connections that only read: several for look-ups, one for lists, one for what is read in the background. A look-up by index takes some ten microseconds, less
//! than handing it to another thread would; a list may read a lot.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};

use rusqlite::Connection;

use super::error::{EngineError, OpenError};
use super::file;

/// Connections for look-ups, at least.
const LOOK_UPS_AT_ONCE_MIN: usize = 2;
/// Connections for look-ups, at most.
const LOOK_UPS_AT_ONCE_MAX: usize = 16;

/// Connections that only read. They are closed while the store recovers.
#[derive(Debug)]
pub(super) struct Readers {
    look_ups: Vec<Mutex<Option<Reader>>>,
    lists: Mutex<Option<Connection>>,
    background: Mutex<Background>,
}

/// The connection for the background: opened when it is first needed, and closed when there is nothing more to read.
#[derive(Debug, Default)]
struct Background {
    /// The file; none while everything is closed.
    path: Option<PathBuf>,
    connection: Option<Connection>,
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
        Self {
            look_ups: (0..at_once).map(|_| Mutex::default()).collect(),
            lists: Mutex::default(),
            background: Mutex::default(),
        }
    }
}

impl Readers {
    /// Opens every connection again.
    pub(super) fn open(&self, path: &Path) -> Result<(), OpenError> {
        for slot in &self.look_ups {
            *locked(slot) = Some(Reader { connection: file::for_reading(path)?, as_of: None });
        }
        *locked(&self.lists) = Some(file::for_reading(path)?);
        locked(&self.background).path = Some(path.to_owned());
        Ok(())
    }

    /// Closes every connection, once its user is done.
    pub(super) fn close(&self) {
        self.look_ups.iter().for_each(|slot| drop(locked(slot).take()));
        drop(locked(&self.lists).take());
        drop(std::mem::take(&mut *locked(&self.background)));
    }

    /// Looks up on a free connection, at a moment after so many commits, all of it at one moment.
    pub(super) fn look<T>(
        &self,
        commits: u64,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, EngineError> {
        let free = self.look_ups.iter().find_map(try_locked);
        let mut slot = free.unwrap_or_else(|| locked(&self.look_ups[0]));
        let reader = slot.as_mut().ok_or_else(closed)?;
        let seen = reader.see(commits).and_then(|()| read(&reader.connection));
        if seen.is_err() {
            // Whatever went wrong, the next one begins again.
            let _ = reader.end();
        }
        seen.map_err(EngineError::from)
    }

    /// Reads on the connection for lists.
    pub(super) fn list<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, EngineError> {
        let slot = locked(&self.lists);
        read(slot.as_ref().ok_or_else(closed)?).map_err(EngineError::from)
    }

    /// Reads on the connection for the background.
    pub(super) fn read_aside<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, EngineError> {
        let mut slot = locked(&self.background);
        let background = &mut *slot;
        let path = background.path.as_ref().ok_or_else(closed)?;
        let opened = match background.connection.take() {
            Some(connection) => connection,
            None => file::for_reading(path).map_err(|error| EngineError::Unavailable(error.to_string()))?,
        };
        read(background.connection.insert(opened)).map_err(EngineError::from)
    }

    /// There is nothing more to read in the background.
    pub(super) fn end_aside(&self) {
        drop(locked(&self.background).connection.take());
    }

    /// Ends the transactions of look-ups, so that none of them stands in the way of a checkpoint. They begin again as
    /// soon as what this returns is dropped.
    pub(super) fn stand_aside(&self) -> Aside<'_> {
        let mut look_ups: Vec<_> = self.look_ups.iter().map(locked).collect();
        for reader in look_ups.iter_mut().filter_map(|slot| slot.as_mut()) {
            // One that cannot be ended only makes the checkpoint shorter.
            let _ = reader.end();
        }
        Aside {
            _look_ups: look_ups,
            lists: try_locked(&self.lists),
            background: try_locked(&self.background),
        }
    }
}

/// Nobody looks up while this lives.
pub(super) struct Aside<'a> {
    _look_ups: Vec<MutexGuard<'a, Option<Reader>>>,
    lists: Option<MutexGuard<'a, Option<Connection>>>,
    background: Option<MutexGuard<'a, Background>>,
}

impl Aside<'_> {
    /// Whether nobody reads anything else either.
    pub(super) fn is_complete(&self) -> bool {
        self.lists.is_some() && self.background.is_some()
    }
}

fn closed() -> EngineError {
    EngineError::Unavailable("the store is being recovered".to_owned())
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
