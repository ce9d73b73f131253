//! Checkpoints: the write-ahead log is copied into the file by a thread of its own, which never stops the writer. That
//! alone lets the log grow while the writer is busy, because the log begins again only when all of it is copied. So past a
//! bound the writer copies the rest, which is little once the thread has done its part. Neither waits for a reader, and
//! the log keeps its length on disk: writing over it needs no new blocks, and a sync of it has less to do.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;

use rusqlite::{Connection, Row};

use super::error::OpenError;
use super::file;
use super::guard::Guard;
use super::readers::Readers;
use super::schema::Schema;

/// So much new log starts a passive checkpoint.
const PASSIVE_BYTES: u64 = 4 << 20;
/// So much log makes the writer copy the rest of it, unless the thread is at it.
const REST_BYTES: u64 = 16 << 20;
/// So much log makes the writer wait for the thread.
const WAIT_BYTES: u64 = 48 << 20;

/// The checkpoint thread's connection and its orders.
#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    connection: Mutex<Option<Connection>>,
    order: Mutex<Order>,
    came: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Wait,
    Run,
    Stop,
}

impl Checkpointer {
    /// Opens its connection again.
    pub(super) fn open(&self, path: &Path, schema: &Schema) -> Result<(), OpenError> {
        *self.connection() = Some(file::for_writing(path, schema)?);
        Ok(())
    }

    /// Closes its connection, once a running checkpoint is done.
    pub(super) fn close(&self) {
        drop(self.connection().take());
    }

    fn connection(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Its connection, unless a checkpoint is running.
    fn free_connection(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        match self.connection.try_lock() {
            Ok(connection) => Some(connection),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }

    fn give(&self, order: Order) {
        let mut current = self.order.lock().expect("giving an order does not panic");
        if *current != Order::Stop {
            *current = order;
        }
        drop(current);
        self.came.notify_one();
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.give(Order::Stop);
    }

    fn next(&self) -> Order {
        let current = self.order.lock().expect("giving an order does not panic");
        let waits = |order: &mut Order| *order == Order::Wait;
        let mut current = self.came.wait_while(current, waits).expect("giving an order does not panic");
        let order = *current;
        if order == Order::Run {
            *current = Order::Wait;
        }
        order
    }
}

/// Starts the thread.
pub(super) fn start(
    checkpointer: Arc<Checkpointer>,
    readers: Arc<Readers>,
) -> std::io::Result<JoinHandle<()>> {
    let serve = move || {
        while checkpointer.next() == Order::Run {
            if let Some(connection) = checkpointer.connection().as_ref() {
                drop(readers.stand_aside());
                // What a checkpoint does not manage stays in the log, and the next one copies it again.
                let _ = checkpoint(connection, "PASSIVE");
            }
        }
    };
    std::thread::Builder::new().name("semel-sqlite-checkpoint".to_owned()).spawn(serve)
}

/// How far a checkpoint came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// Everything that it was to do.
    End,
    /// A reader or a writer stood in the way.
    Part,
}

/// Copies the log into the file and syncs the file.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<Reached> {
    let told = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let (busy, pages, copied): (i64, i64, i64) =
        connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], told)?;
    Ok(if busy == 0 && pages == copied { Reached::End } else { Reached::Part })
}

/// The writer's view of the log: when to have it copied, when to copy the rest.
#[derive(Debug)]
pub(super) struct LogBounds {
    asked_at_bytes: u64,
    rest_at_bytes: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { asked_at_bytes: 0, rest_at_bytes: REST_BYTES }
    }
}

/// Who has to do with the log.
pub(super) struct Log<'a> {
    pub(super) guard: &'a Guard,
    pub(super) readers: &'a Readers,
    pub(super) checkpointer: &'a Checkpointer,
}

impl LogBounds {
    /// After a commit: keeps the log within its bounds.
    pub(super) fn keep(&mut self, connection: &Connection, log: &Log<'_>) {
        let bytes = log.guard.log_bytes();
        if bytes < self.asked_at_bytes {
            // The log has begun anew.
            *self = Self::default();
        }
        if bytes >= self.rest_at_bytes && self.copy_rest(connection, log, bytes) {
            return;
        }
        if bytes >= self.asked_at_bytes + PASSIVE_BYTES {
            self.asked_at_bytes = bytes;
            log.checkpointer.give(Order::Run);
        }
    }

    /// Copies what the thread has not, unless the thread is at it. Says whether it did.
    fn copy_rest(&mut self, connection: &Connection, log: &Log<'_>, bytes: u64) -> bool {
        // Two checkpoints at once would only stand in each other's way.
        let other = if bytes >= self.rest_at_bytes + (WAIT_BYTES - REST_BYTES) {
            Some(log.checkpointer.connection())
        } else {
            log.checkpointer.free_connection()
        };
        let Some(other) = other else { return false };
        // Nobody who looks at an older moment holds the copy back, and nobody waits while the disk works.
        drop(log.readers.stand_aside());
        let copied = checkpoint(connection, "PASSIVE");
        // With everything copied, beginning anew writes nothing. Whoever lists is not waited for: then it begins anew
        // another time.
        let aside = log.readers.stand_aside();
        let reached = match copied {
            Ok(Reached::End) if aside.is_complete() => checkpoint(connection, "RESTART"),
            other => other,
        };
        drop((aside, other));
        self.rest_at_bytes = match reached {
            Ok(Reached::End) => bytes + PASSIVE_BYTES,
            // Trying again at every batch would slow each of them down.
            Ok(Reached::Part) | Err(_) => bytes + REST_BYTES,
        };
        true
    }
}
