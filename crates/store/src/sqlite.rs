//! The claim store on SQLite: one process, one file. An exclusive lock beside the file keeps others out; one thread
//! writes, in batches that commit and sync as one; reads have connections of their own.
//!
//! Because one process owns the file, the claim of an `atomic` route is a reservation in memory: nothing is written
//! before its settlement, which [`SqliteStore::transact`] commits together with the handler's own writes. A `fenced`
//! claim is durable before it is won, and a restart finds it as an unknown outcome.
//!
//! The records may live in the application's own file, whose tables then must not begin with `semel_`. The header fields
//! `application_id` and `user_version` stay the application's.

mod admin;
mod checkpoint;
mod connect;
mod error;
mod faults;
mod fences;
mod guard;
mod hub;
mod ledger;
mod live;
mod lock;
mod member;
mod migrate;
mod numbers;
mod operate;
mod places;
mod queue;
mod readers;
mod recent;
mod recover;
mod row;
mod store;
mod table;
mod timekeeping;
mod transact;
mod turn;
mod work;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::{Connection, TransactionBehavior};
use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

use self::fences::Fences;
use self::hub::{Health, Hub};
use self::lock::FileLock;
use self::readers::Lister;
use self::writer::Writer;
use crate::claims::{Id, Reply, Settlement, StoreError};
use crate::clock::{Clock, StoreClock, SystemClock};
use crate::hints::Hints;

pub use self::error::OpenError;
#[cfg(feature = "conformance")]
pub use self::faults::Faults;
pub use self::guard::WORK_TIME_MAX;
pub use self::lock::{Owner, owner};
pub use self::migrate::{Version, version};
pub use self::table::AuditRow;
pub use self::work::{TransactOutcome, Work, WorkError};
pub use rusqlite;

/// How a file of one owner is opened, for stores of other rooms that keep theirs by the same rules.
pub mod file {
    pub use super::connect::{canonical, check_version, create, for_reading, for_writing};
    pub use super::lock::FileLock;
}

/// A claim store in one file.
pub struct SqliteStore {
    hub: Arc<Hub>,
    writer: Option<JoinHandle<()>>,
    checkpoints: Option<JoinHandle<()>>,
    lister: Lister,
    // Given back last, when nothing of this store touches the file any more.
    lock: FileLock,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.hub.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a file as a store, or creates it.
    ///
    /// Before: no other store, of this process or another, has the file open. After: the schema is that of this release,
    /// and claims that an earlier process left open are unknown outcomes. Crash: opening again repeats what was not done.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with_clock(path, Arc::new(SystemClock))
    }

    /// Opens a file as [`open`](Self::open) does, with another clock than the system's: tests move theirs.
    pub fn open_with_clock(path: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        connect::check_version()?;
        let path = connect::canonical(path.as_ref())?;
        let lock = FileLock::take(&path)?;
        let mut connection = connect::for_writing(&path)?;
        migrate::migrate(&mut connection)?;
        let (time, time_written) = start_up(&mut connection, &*clock)?;
        let fences = Fences::load(&connection)?;
        let hub = Arc::new(Hub {
            clock,
            time,
            hints: Hints::default(),
            queue: queue::Queue::default(),
            guard: Arc::default(),
            readers: readers::Readers::default(),
            checkpointer: checkpoint::Checkpointer::default(),
            health: Health::default(),
            faults: faults::Faults::default(),
            held: Mutex::default(),
            places: places::Places::default(),
            recent: recent::Recent::default(),
            restores: Mutex::new(ledger::restores(&connection)?),
            path,
            database: lock.database(),
        });
        hub.places.fill(&connection, &hub.path)?;
        hub.guard.install(&mut connection)?;
        hub.readers.open(&hub.path)?;
        hub.checkpointer.open(&hub.path)?;
        let lister = Lister::start(Arc::clone(&hub))?;
        let checkpoints = checkpoint::start(Arc::clone(&hub))?;
        let writer = writer::start(Writer { hub: Arc::clone(&hub), fences, time_written }, connection)?;
        Ok(Self { hub, writer: Some(writer), checkpoints: Some(checkpoints), lister, lock })
    }

    /// Runs a handler's own writes and settles its claim, in one commit.
    ///
    /// Before: the caller was given `fence` by a claim. After [`TransactOutcome::Done`]: the closure's writes and the
    /// settlement are durable. After any other outcome: neither is there. After [`StoreError::Unknown`]: both are there
    /// or neither; the same call again tells, and runs the closure only if neither is.
    ///
    /// The closure runs on the writer's thread, and every other write waits for it: it may read and write the database
    /// and nothing else. It may run more than once, and only its last run counts. A closure that returns
    /// [`Settlement::Release`] says that it had no effect, and its writes are taken back. One that takes longer than
    /// [`WORK_TIME_MAX`] is interrupted in its next statement.
    ///
    /// Crash: both are there or neither.
    pub fn transact<T, W>(
        &self,
        id: &Id,
        fence: Fence,
        lifetime: &Lifetime,
        work: W,
    ) -> Reply<'_, TransactOutcome<T>>
    where
        T: Send + 'static,
        W: Fn(&Work<'_>) -> Result<(T, Settlement), WorkError> + Send + 'static,
    {
        let (id, lifetime) = (id.clone(), lifetime.clone());
        self.submit(0, move |turn| transact::transact(turn, &id, fence, &lifetime, &work))
    }

    /// Writes into the lock file where this process can be asked about the store, so that a command finds it.
    pub fn publish_admin(&self, address: &str) -> std::io::Result<()> {
        self.lock.publish(address)
    }

    /// Where the lock file is that says who owns the store's file.
    pub fn lock_file(&self) -> &Path {
        self.lock.path()
    }

    /// Commits so far that wrote something. Fewer than writes, because writes that come together share one.
    pub fn commits(&self) -> u64 {
        self.hub.guard.commits()
    }

    /// The latest rows of the audit trail, oldest first.
    pub fn audit(&self, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.hub.health.check()?;
        self.hub.look(|connection| table::audited(connection, limit))
    }

    /// By how many milliseconds the wall clock has jumped ahead, while nobody has confirmed it.
    pub fn clock_frozen(&self) -> Option<i64> {
        self.hub.time.frozen()
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm_clock(&self) {
        self.hub.time.confirm(self.hub.clock.read());
    }

    /// Faults on demand, for tests.
    #[cfg(feature = "conformance")]
    pub fn faults(&self) -> &Faults {
        &self.hub.faults
    }
}

impl Drop for SqliteStore {
    /// Does what waits, copies the log into the file and gives the file back. The calling thread waits for it.
    fn drop(&mut self) {
        self.lister.stop();
        self.hub.queue.close();
        // A panic of a thread was reported where it happened.
        let _ = self.writer.take().map(JoinHandle::join);
        self.hub.checkpointer.stop();
        let _ = self.checkpoints.take().map(JoinHandle::join);
    }
}

/// Starts the clock no earlier than it ever was, and ends the claims of the process before.
fn start_up(
    connection: &mut Connection,
    clock: &dyn Clock,
) -> Result<(StoreClock, Timestamp), rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let time = timekeeping::resume(&transaction, clock)?;
    let mark = time.mark(clock);
    let now = mark.time;
    table::orphan(&transaction, now)?;
    timekeeping::write(&transaction, mark)?;
    transaction.commit()?;
    Ok((time, now))
}
