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
mod admin_rows;
mod claim_tx;
pub mod engine;
mod fence_table;
mod fences;
mod key_index;
mod key_reader;
mod key_search;
mod lister;
mod open_claims;
mod recent;
mod row;
mod schema;
mod shared;
mod statements;
mod store;
mod transact;
mod transitions;
mod work;

use std::path::Path;
use std::sync::Arc;

use semel_contract::profile::Lifetime;
use semel_contract::record::Fence;

use self::claim_tx::ClaimState;
use self::engine::{Engine, Examine, Options};
use self::fences::Fences;
use self::key_reader::KeyReader;
use self::lister::Lister;
use self::schema::SCHEMA;
use self::shared::StoreShared;
use crate::claims::{Id, Reply, Settlement, StoreError};
use crate::clock::{Clock, SystemClock};

#[cfg(feature = "conformance")]
pub use self::engine::Faults;
pub use self::engine::{OpenError, Owner, Version, WORK_TIME_MAX, owner};
pub use self::schema::schema_version as version;
pub use self::statements::AuditRow;
pub use self::work::{TransactOutcome, Work, WorkError};
pub use rusqlite;

/// Pages of the file that the writer keeps in memory.
const CACHE_KIBIBYTES: u32 = 2000;
/// The pages of a new file. A commit of few requests writes the last page of each table, hardly filled: of smaller pages that
/// is less.
const PAGE_BYTES: u32 = 2048;

/// A claim store in one file.
pub struct SqliteStore {
    lister: Lister,
    key_reader: KeyReader,
    engine: Engine<ClaimState>,
    shared: Arc<StoreShared>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("engine", &self.engine).finish_non_exhaustive()
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
        let options = Options {
            schema: &SCHEMA,
            clock,
            cache_kibibytes: CACHE_KIBIBYTES,
            page_bytes: PAGE_BYTES,
            examine: Examine::Nothing,
        };
        let mut shared = None;
        let engine = Engine::open(
            path.as_ref(),
            options,
            |start| statements::orphan(start.connection, start.now).map(drop),
            |connection, engine| {
                let restores = admin_rows::restores(connection)?;
                let store = Arc::new(StoreShared::new(Arc::clone(engine), restores));
                store.index.fill(connection, engine.path())?;
                shared = Some(Arc::clone(&store));
                Ok(ClaimState::new(store, Fences::load(connection)?))
            },
        )?;
        let shared = shared.ok_or_else(|| OpenError::Sqlite("nothing was loaded".to_owned()))?;
        let lister = Lister::start(Arc::clone(&shared))?;
        Ok(Self { lister, key_reader: KeyReader::start(Arc::clone(&shared))?, engine, shared })
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
        self.submit(0, move |tx| transact::transact(tx, &id, fence, &lifetime, &work))
    }

    /// Writes into the lock file where this process can be asked about the store, so that a command finds it.
    pub fn publish_admin(&self, address: &str) -> std::io::Result<()> {
        self.shared.engine.lock().map_or(Ok(()), |lock| lock.publish(address))
    }

    /// Where the lock file is that says who owns the store's file.
    pub fn lock_file(&self) -> &Path {
        self.shared.engine.lock().map_or(Path::new(""), |lock| lock.path())
    }

    /// Commits so far that wrote something. Fewer than writes, because writes that come together share one.
    pub fn commits(&self) -> u64 {
        self.shared.engine.commits()
    }

    /// The latest rows of the audit trail, oldest first.
    pub fn audit(&self, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.shared.look(|connection| statements::audited(connection, limit))
    }

    /// By how many milliseconds the wall clock has jumped ahead, while nobody has confirmed it.
    pub fn clock_frozen(&self) -> Option<i64> {
        self.shared.engine.time.jump()
    }

    /// An operator confirms that the wall clock is right.
    pub fn confirm_clock(&self) {
        self.shared.engine.time.confirm();
    }

    /// Faults on demand, for tests.
    #[cfg(feature = "conformance")]
    pub fn faults(&self) -> &Faults {
        self.shared.engine.faults()
    }
}

impl Drop for SqliteStore {
    /// Ends the lists, and what is read in the background. Then the engine does what waits and gives the file back; the calling thread waits for it.
    fn drop(&mut self) {
        self.lister.stop();
        self.key_reader.stop();
    }
}
