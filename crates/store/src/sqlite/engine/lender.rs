//! The writer's connection, lent to one transaction at a time: for a store whose transactions are made of several steps
//! with work in between. What is not committed is rolled back; a commit of unknown result is recovered from by a thread of
//! its own, and until then nothing is lent.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::checkpoint;
use super::core::Core;
use super::error::{CommitError, EngineError, OpenError};
use super::open::{Options, StartUp, open_file, open_memory};
use super::shared::Shared;

/// Who has the connection; none while the file is recovered.
type Slot = Arc<AsyncMutex<Option<Core>>>;

/// A store whose transactions are made of several steps.
#[derive(Debug)]
pub struct Lender {
    slot: Slot,
    recovering: Recovering,
    checkpoints: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// The thread that recovers, if one does.
type Recovering = Arc<Mutex<Option<JoinHandle<()>>>>;

impl Lender {
    /// Opens a file, or creates it. `start_up` runs in one transaction with the start of the clock.
    ///
    /// # Errors
    /// Another store owns the file, it is damaged, a later release wrote it, or it cannot be written.
    pub fn open(
        path: &Path,
        options: Options,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, OpenError> {
        let core = open_file(path, options, start_up, |_, _| Ok(()))?.0;
        let shared = Arc::clone(&core.shared);
        let (checkpointer, readers) = (Arc::clone(&shared.checkpointer), Arc::clone(&shared.readers));
        let checkpoints = Some(checkpoint::start(checkpointer, readers)?);
        Ok(Self {
            slot: Arc::new(AsyncMutex::new(Some(core))),
            recovering: Arc::default(),
            checkpoints,
            shared,
        })
    }

    /// The same on a connection to a database in memory.
    ///
    /// # Errors
    /// SQLite refuses.
    pub fn in_memory(
        connection: Connection,
        options: Options,
        start_up: impl FnOnce(&StartUp<'_>) -> rusqlite::Result<()>,
    ) -> Result<Self, OpenError> {
        let core = open_memory(connection, options, start_up, |_, _| Ok(()))?.0;
        let shared = Arc::clone(&core.shared);
        let slot = Arc::new(AsyncMutex::new(Some(core)));
        Ok(Self { slot, recovering: Arc::default(), checkpoints: None, shared })
    }

    /// What the threads of the store share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Begins a transaction, once no other one is open.
    ///
    /// # Errors
    /// The store must not answer, or SQLite refuses. Nothing was begun.
    pub async fn begin(&self) -> Result<LentTx, EngineError> {
        self.shared.health.check()?;
        let mut slot = Arc::clone(&self.slot).lock_owned().await;
        let Some(core) = slot.as_mut() else {
            self.shared.health.check()?;
            return Err(EngineError::Unavailable("the file is being recovered".to_owned()));
        };
        core.begin()?;
        Ok(LentTx { slot: Some(slot), of: Arc::clone(&self.slot), recovering: Arc::clone(&self.recovering) })
    }

    /// Whether the store can serve. Where there was no room, it is tried whether there is now.
    ///
    /// # Errors
    /// It cannot.
    pub async fn ready(&self) -> Result<(), EngineError> {
        if !self.shared.health.is_full() {
            return self.shared.health.ready();
        }
        self.shared.health.check()?;
        let slot = Arc::clone(&self.slot).lock_owned().await;
        let (of, recovering) = (Arc::clone(&self.slot), Arc::clone(&self.recovering));
        let tried = move || end(slot, of, &recovering, Core::tick);
        // Whatever came of it, the health tells.
        let _ = tokio::task::spawn_blocking(tried).await;
        self.shared.health.ready()
    }

    /// Works on the connection of a store in memory, where no transaction is open.
    #[cfg(feature = "conformance")]
    pub fn with_memory<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let mut slot = self.slot.try_lock().ok()?;
        slot.as_mut().map(|core| work(core.connection_mut()))
    }
}

impl Drop for Lender {
    /// Copies the log into the file and gives the file back. The calling thread waits for it.
    fn drop(&mut self) {
        self.shared.closing.begin();
        let recovering = self.recovering.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of a thread was reported where it happened.
        let _ = recovering.map(JoinHandle::join);
        if let Ok(mut slot) = self.slot.try_lock()
            && let Some(mut core) = slot.take()
        {
            core.close();
        }
        self.shared.checkpointer.stop();
        let _ = self.checkpoints.take().map(JoinHandle::join);
    }
}

/// A transaction. Dropped without [`LentTx::commit`] it changes nothing.
#[derive(Debug)]
pub struct LentTx {
    // Taken at the commit.
    slot: Option<OwnedMutexGuard<Option<Core>>>,
    of: Slot,
    recovering: Recovering,
}

impl LentTx {
    /// The connection.
    ///
    /// # Errors
    /// The transaction has ended.
    pub fn connection(&self) -> Result<&Connection, EngineError> {
        let core = self.slot.as_ref().and_then(|slot| slot.as_ref());
        core.map(Core::connection).ok_or_else(has_ended)
    }

    /// Commits. The sync runs on a thread for such things; in memory there is none.
    ///
    /// # Errors
    /// `Unknown`: it may or may not have been committed. Any other: nothing of it was.
    pub async fn commit(mut self) -> Result<(), EngineError> {
        let slot = self.slot.take().ok_or_else(has_ended)?;
        let (of, recovering) = (Arc::clone(&self.of), Arc::clone(&self.recovering));
        let is_file = slot.as_ref().is_some_and(|core| core.shared.lock.is_some());
        let commit = move || end(slot, of, &recovering, Core::commit);
        if !is_file {
            return commit();
        }
        let committed = tokio::task::spawn_blocking(commit).await;
        committed.unwrap_or_else(|error| Err(EngineError::Unknown(error.to_string())))
    }
}

impl Drop for LentTx {
    fn drop(&mut self) {
        if let Some(core) = self.slot.as_mut().and_then(|slot| slot.as_mut()) {
            core.roll_back(None);
        }
    }
}

fn has_ended() -> EngineError {
    EngineError::Unavailable("the transaction has ended".to_owned())
}

/// Ends a transaction, and recovers where nobody can say how it ended.
fn end(
    mut slot: OwnedMutexGuard<Option<Core>>,
    of: Slot,
    recovering: &Recovering,
    commit: fn(&mut Core) -> Result<(), CommitError>,
) -> Result<(), EngineError> {
    let core = slot.as_mut().ok_or_else(has_ended)?;
    match commit(core) {
        Ok(()) => {
            core.keep_log();
            Ok(())
        }
        Err(CommitError::NotCommitted(fault)) => Err(fault.into()),
        Err(CommitError::Unknown(why)) => {
            if core.shared.lock.is_none() {
                core.recover(&why, &mut |_| Ok(()), &|_| {});
            } else if let Some(core) = slot.take() {
                drop(slot);
                recover_aside(core, &why, of, recovering);
            }
            Err(EngineError::Unknown(why))
        }
    }
}

/// Recovers on a thread of its own, so that those who wait are refused meanwhile.
fn recover_aside(mut core: Core, why: &str, of: Slot, recovering: &Recovering) {
    let (shared, why) = (Arc::clone(&core.shared), why.to_owned());
    let recover = move || {
        if core.recover(&why, &mut |_| Ok(()), &|_| {}) {
            *of.blocking_lock() = Some(core);
        }
    };
    match std::thread::Builder::new().name("semel-sqlite-recover".to_owned()).spawn(recover) {
        Ok(thread) => *recovering.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
        Err(error) => shared.health.fail(format!("the file could not be recovered, start again: {error}")),
    }
}
