//! Checkpoints: the write-ahead log is copied into the file by a thread of its own, beside the writer. While the writer
//! is busy that alone never ends, because the log begins anew only when all of it is copied: so past a bound the writer
//! copies the rest, which is little by then. Neither waits for a reader.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use semel_store::sqlite::OpenError;
use semel_store::sqlite::file;

/// Bytes of one page in the log, with its header.
const LOG_PAGE_BYTES: u64 = 4096 + 24;
/// So much new log starts a checkpoint.
const PASSIVE_BYTES: u64 = 4 << 20;
/// So much log makes the writer copy the rest of it, unless the thread is at it.
const REST_BYTES: u64 = 16 << 20;
/// So much log makes the writer wait for the thread.
const WAIT_BYTES: u64 = 48 << 20;

/// The thread, as the writer sees it. Dropping this ends it.
pub(super) struct Checkpoints {
    log_pages: Arc<AtomicU64>,
    /// Held by whoever copies: two at once would only stand in each other's way.
    copying: Arc<Mutex<()>>,
    orders: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    asked_at_bytes: u64,
    rest_at_bytes: u64,
}

impl Checkpoints {
    /// Starts the thread, with a connection of its own, and watches the log of the writer's.
    pub(super) fn start(writer: &mut Connection, path: &Path) -> Result<Self, OpenError> {
        let log_pages = Arc::new(AtomicU64::new(0));
        let pages = Arc::clone(&log_pages);
        writer.wal_hook(Some(move |_: &mut Wal, count: i32| {
            pages.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let connection = file::for_writing(path)?;
        let copying = Arc::new(Mutex::new(()));
        let of_thread = Arc::clone(&copying);
        // One order that waits is enough: a checkpoint copies all that is there when it begins.
        let (orders, ordered) = sync_channel::<()>(1);
        let serve = move || {
            while ordered.recv().is_ok() {
                let _copying = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                copy(&connection);
            }
        };
        let thread = std::thread::Builder::new()
            .name("outbox-checkpoint".to_owned())
            .spawn(serve)
            .map_err(OpenError::Io)?;
        Ok(Self {
            log_pages,
            copying,
            orders: Some(orders),
            thread: Some(thread),
            asked_at_bytes: 0,
            rest_at_bytes: REST_BYTES,
        })
    }

    /// After a commit: keeps the log within its bounds.
    pub(super) fn keep(&mut self, writer: &Connection) {
        let bytes = self.log_pages.load(Ordering::Relaxed) * LOG_PAGE_BYTES;
        if bytes < self.asked_at_bytes {
            // The log has begun anew.
            (self.asked_at_bytes, self.rest_at_bytes) = (0, REST_BYTES);
        }
        if bytes >= self.rest_at_bytes && self.copy_rest(writer, bytes) {
            return;
        }
        if bytes >= self.asked_at_bytes + PASSIVE_BYTES {
            self.asked_at_bytes = bytes;
            match self.orders.as_ref().map(|orders| orders.try_send(())) {
                Some(Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(()))) | None => {}
            }
        }
    }

    /// Copies what the thread has not, unless the thread is at it. Says whether it did.
    fn copy_rest(&mut self, writer: &Connection, bytes: u64) -> bool {
        let _copying = if bytes >= self.rest_at_bytes + (WAIT_BYTES - REST_BYTES) {
            self.copying.lock().unwrap_or_else(PoisonError::into_inner)
        } else {
            match self.copying.try_lock() {
                Ok(copying) => copying,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            }
        };
        copy(writer);
        // With everything copied the next commit begins the log anew. A reader may have stood in the way: trying again at
        // every batch would slow each of them down.
        self.rest_at_bytes = bytes + PASSIVE_BYTES;
        true
    }
}

/// Copies what it can without waiting for anybody. What it does not manage stays in the log for the next one.
fn copy(connection: &Connection) {
    let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.orders = None;
        // A panic of the thread was reported where it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
