//! Who runs the work: one thread on a file, in batches; or the caller itself, in memory. Work is answered only after its
//! batch is on disk.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use semel_contract::planted::{self, Bug};
use semel_store::sqlite::{OpenError, file};
use tokio::sync::{oneshot, watch};

use super::batch::{self, Faults};
use super::checkpoint::Checkpoints;
use super::turn::{Fault, Turn};
use crate::store::{Reply, StoreError};

/// Work that one batch takes at most.
const BATCH_MAX: usize = 512;
/// Connections that are kept for reading.
const READERS_KEPT_MAX: usize = 4;

/// A member of a batch.
pub(super) trait Member: Send {
    /// Runs it. May run again after the transaction was rolled back.
    fn run(&mut self, connection: &Connection, turn: &mut Turn) -> Result<(), Fault>;
    /// Tells the caller.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// A read, which answers by itself.
type Look = Box<dyn FnOnce(Result<&Connection, StoreError>) + Send>;

/// Who runs the work.
pub(super) trait Run: Send + Sync {
    /// Runs a member and answers it.
    fn write(&self, member: Box<dyn Member>);
    /// Runs a read.
    fn look(&self, look: Look);
    /// Faults on demand.
    fn faults(&self) -> &Faults;
    /// What a crash would leave behind, where that is not a file.
    #[cfg(feature = "conformance")]
    fn image(&self) -> Option<Vec<u8>> {
        None
    }
}

struct Work<T, W> {
    work: W,
    value: Option<T>,
    fault: Option<Fault>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, W: FnMut(&Connection, &mut Turn) -> Result<T, Fault> + Send> Member for Work<T, W> {
    fn run(&mut self, connection: &Connection, turn: &mut Turn) -> Result<(), Fault> {
        (self.value, self.fault) = (None, None);
        match (self.work)(connection, turn) {
            Ok(value) => self.value = Some(value),
            Err(fault) => {
                self.fault = Some(fault.clone());
                return Err(fault);
            }
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let answer = match (committed, self.fault, self.value) {
            (Err(error), _, _) => Err(error),
            (Ok(()), Some(fault), _) => Err(fault.into()),
            (Ok(()), None, Some(value)) => Ok(value),
            (Ok(()), None, None) => Err(StoreError::Failed("the work did not run".to_owned())),
        };
        // The caller may have gone.
        let _ = self.reply.send(answer);
    }
}

/// Hands work to whoever runs it.
pub(super) fn write<'a, T: Send + 'static>(
    run: &dyn Run,
    work: impl FnMut(&Connection, &mut Turn) -> Result<T, Fault> + Send + 'static,
) -> Reply<'a, T> {
    let (reply, answer) = oneshot::channel();
    run.write(Box::new(Work { work, value: None, fault: None, reply }));
    Box::pin(async {
        answer.await.unwrap_or_else(|_| Err(StoreError::Failed("the store has ended".to_owned())))
    })
}

/// Hands a read to whoever runs it.
pub(super) fn look<'a, T: Send + 'static>(
    run: &dyn Run,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Reply<'a, T> {
    let (reply, answer) = oneshot::channel();
    run.look(Box::new(move |connection| {
        let found =
            connection.and_then(|connection| work(connection).map_err(|error| Fault::from(error).into()));
        let _ = reply.send(found);
    }));
    Box::pin(async {
        answer.await.unwrap_or_else(|_| Err(StoreError::Failed("the store has ended".to_owned())))
    })
}

/// In memory: the caller runs the work itself.
pub(super) struct Inline {
    inner: Mutex<(Connection, Turn)>,
    told: watch::Sender<i64>,
    faults: Faults,
}

impl Inline {
    pub(super) fn new(connection: Connection, turn: Turn, told: watch::Sender<i64>) -> Self {
        Self { inner: Mutex::new((connection, turn)), told, faults: Faults::default() }
    }
}

impl Run for Inline {
    fn write(&self, member: Box<dyn Member>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, turn) = &mut *inner;
        let member: Box<dyn Member> =
            if planted::is(Bug::OutboxAnswerBeforeSync) { Box::new(Hasty(member)) } else { member };
        // What is in memory alone is in no doubt: the next batch finds what is there.
        let _ = batch::run(connection, turn, vec![member], &self.faults, &mut |turn| tell(&self.told, turn));
    }

    fn look(&self, look: Look) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        look(Ok(&inner.0));
    }

    fn faults(&self) -> &Faults {
        &self.faults
    }

    #[cfg(feature = "conformance")]
    fn image(&self) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let image = inner.0.serialize("main").ok()?;
        Some(image.to_vec())
    }
}

/// Says that it succeeded without asking the disk: a bug on purpose.
struct Hasty(Box<dyn Member>);

impl Member for Hasty {
    fn run(&mut self, connection: &Connection, turn: &mut Turn) -> Result<(), Fault> {
        self.0.run(connection, turn)
    }

    fn answer(self: Box<Self>, _: Result<(), StoreError>) {
        self.0.answer(Ok(()));
    }
}

fn tell(told: &watch::Sender<i64>, turn: &Turn) {
    told.send_if_modified(|last| {
        let is_new = *last != turn.last_event;
        *last = turn.last_event;
        is_new
    });
}

/// On a file: a thread of its own.
pub(super) struct Threaded {
    queue: Option<Sender<Box<dyn Member>>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    readers: Mutex<Vec<Connection>>,
    /// Set when a commit failed in a way that leaves open what is on disk.
    failed: Mutex<Option<String>>,
    faults: Faults,
}

impl Threaded {
    pub(super) fn start(
        mut connection: Connection,
        turn: Turn,
        path: PathBuf,
        told: watch::Sender<i64>,
    ) -> Result<Self, OpenError> {
        let checkpoints = Checkpoints::start(&mut connection, &path)?;
        let (queue, work) = channel();
        let shared = Arc::new(Shared {
            path,
            readers: Mutex::default(),
            failed: Mutex::default(),
            faults: Faults::default(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("outbox-writer".to_owned())
            .spawn(move || of_thread.run(&connection, turn, &work, &told, checkpoints))
            .map_err(OpenError::Io)?;
        Ok(Self { queue: Some(queue), thread: Some(thread), shared })
    }
}

impl Shared {
    fn run(
        &self,
        connection: &Connection,
        mut turn: Turn,
        work: &Receiver<Box<dyn Member>>,
        told: &watch::Sender<i64>,
        mut checkpoints: Checkpoints,
    ) {
        while let Ok(first) = work.recv() {
            let mut members = vec![first];
            while members.len() < BATCH_MAX {
                let Ok(member) = work.try_recv() else { break };
                members.push(member);
            }
            if let Some(why) = self.failure() {
                members.into_iter().for_each(|member| member.answer(Err(StoreError::Failed(why.clone()))));
                continue;
            }
            let mut told = |turn: &Turn| tell(told, turn);
            if let Err(why) = batch::run(connection, &mut turn, members, &self.faults, &mut told) {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
            checkpoints.keep(connection);
        }
        drop(checkpoints);
        // What is in the log stays there: the next start copies it.
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }

    fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reader(&self, path: &Path) -> Result<Connection, StoreError> {
        if let Some(why) = self.failure() {
            return Err(StoreError::Failed(why));
        }
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(
            || file::for_reading(path).map_err(|error| StoreError::Failed(error.to_string())),
            Ok,
        )
    }
}

impl Run for Threaded {
    fn write(&self, member: Box<dyn Member>) {
        match self.queue.as_ref().map(|queue| queue.send(member)) {
            Some(Ok(())) => {}
            Some(Err(unsent)) => unsent.0.answer(Err(StoreError::Failed("the store has ended".to_owned()))),
            None => {}
        }
    }

    fn look(&self, look: Look) {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || match shared.reader(&shared.path) {
            Ok(connection) => {
                look(Ok(&connection));
                let mut readers = shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
                if readers.len() < READERS_KEPT_MAX {
                    readers.push(connection);
                }
            }
            Err(error) => look(Err(error)),
        });
    }

    fn faults(&self) -> &Faults {
        &self.shared.faults
    }
}

impl Drop for Threaded {
    /// Does what waits and gives the file back.
    fn drop(&mut self) {
        self.queue = None;
        self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // A panic of the thread was reported where it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
