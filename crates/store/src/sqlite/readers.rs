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

/// Connections for look-ups.
const LOOK_UPS_AT_ONCE: usize = 2;
/// Lists that may wait.
const LISTS_WAITING_MAX: usize = 64;

/// Connections that only read. They are closed while the store recovers.
#[derive(Debug, Default)]
pub(super) struct Readers {
    look_ups: [Mutex<Option<Connection>>; LOOK_UPS_AT_ONCE],
    lists: Mutex<Option<Connection>>,
}

impl Readers {
    /// Opens every connection anew.
    pub(super) fn open(&self, path: &Path) -> Result<(), OpenError> {
        for slot in self.slots() {
            *locked(slot) = Some(connect::for_reading(path)?);
        }
        Ok(())
    }

    /// Closes every connection, once whoever uses it is done.
    pub(super) fn close(&self) {
        self.slots().for_each(|slot| drop(locked(slot).take()));
    }

    fn slots(&self) -> impl Iterator<Item = &Mutex<Option<Connection>>> {
        self.look_ups.iter().chain([&self.lists])
    }

    /// Reads on a free connection, in a transaction as short as the reading.
    pub(super) fn look<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let free = self.look_ups.iter().find_map(|slot| match slot.try_lock() {
            Ok(connection) => Some(connection),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        });
        reading(&free.unwrap_or_else(|| locked(&self.look_ups[0])), read)
    }

    /// Reads on the connection for lists.
    pub(super) fn list<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        reading(&locked(&self.lists), read)
    }
}

fn locked(slot: &Mutex<Option<Connection>>) -> MutexGuard<'_, Option<Connection>> {
    // A reader that panicked has changed nothing.
    slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn reading<T>(
    slot: &Option<Connection>,
    read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    let closed = || StoreError::Unavailable("the store is being recovered".to_owned());
    read(slot.as_ref().ok_or_else(closed)?).map_err(|error| Fault::from(error).into())
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
