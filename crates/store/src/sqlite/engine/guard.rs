//! What watches over the writer's connection: no commit but the writer's own, no transaction control and none of the
//! store's own tables for a handler's closure, and an end to closures that run too long. Installed once; a flag says
//! when a closure runs, because statements that were prepared before are not asked again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

/// How long a handler's closure may take.
pub const WORK_TIME_MAX: Duration = Duration::from_secs(5);
/// Instructions of SQLite's machine between two looks at the clock.
const LOOK_EVERY_STEPS: i32 = 1000;
/// What stands before each page in the log.
const LOG_HEADER_BYTES: u64 = 24;
/// How the names of the store's own tables and indexes begin.
const OWN_PREFIX: &str = "semel_";

/// The state that the hooks of one connection share with the writer.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    may_commit: AtomicBool,
    deadline: Mutex<Option<Instant>>,
    at_work: AtomicBool,
    log_bytes: AtomicU64,
    commits: AtomicU64,
}

impl Guard {
    /// Sets the hooks of a connection.
    pub(super) fn install(self: &Arc<Self>, connection: &mut Connection) -> rusqlite::Result<()> {
        let guard = Arc::clone(self);
        connection.commit_hook(Some(move || !guard.may_commit.load(Ordering::SeqCst)))?;
        let guard = Arc::clone(self);
        connection.authorizer(Some(move |asked: AuthContext<'_>| guard.authorize(asked.action)))?;
        let guard = Arc::clone(self);
        connection.progress_handler(LOOK_EVERY_STEPS, Some(move || guard.is_too_slow()))?;
        let guard = Arc::clone(self);
        let page_bytes: u64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            let bytes = u64::try_from(pages).unwrap_or(0) * (page_bytes + LOG_HEADER_BYTES);
            guard.log_bytes.store(bytes, Ordering::SeqCst);
            guard.commits.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }))
    }

    /// Runs the one statement that may commit.
    pub(super) fn committing<T>(&self, commit: impl FnOnce() -> T) -> T {
        self.may_commit.store(true, Ordering::SeqCst);
        let committed = commit();
        self.may_commit.store(false, Ordering::SeqCst);
        committed
    }

    /// Begins a closure's time; it ends when the answer is dropped, also by a panic.
    pub(crate) fn work(&self) -> AtWork<'_> {
        let deadline = Instant::now() + WORK_TIME_MAX;
        *self.deadline.lock().expect("looking at a deadline does not panic") = Some(deadline);
        self.at_work.store(true, Ordering::SeqCst);
        AtWork { guard: self, deadline }
    }

    /// Commits that wrote something.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// How long the write-ahead log is, as of the last commit.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::SeqCst)
    }

    fn is_too_slow(&self) -> bool {
        self.at_work.load(Ordering::SeqCst)
            && self
                .deadline
                .lock()
                .expect("looking at a deadline does not panic")
                .is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn authorize(&self, action: AuthAction<'_>) -> Authorization {
        if !self.at_work.load(Ordering::SeqCst) || is_allowed(action) {
            Authorization::Allow
        } else {
            Authorization::Deny
        }
    }
}

/// A closure is running.
#[derive(Debug)]
pub(crate) struct AtWork<'a> {
    guard: &'a Guard,
    deadline: Instant,
}

impl AtWork<'_> {
    /// Whether its time is over.
    pub(crate) fn is_too_slow(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.guard.at_work.store(false, Ordering::SeqCst);
    }
}

/// Whether a handler's closure may do this.
fn is_allowed(action: AuthAction<'_>) -> bool {
    match action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Pragma { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Unknown { .. } => false,
        AuthAction::Select | AuthAction::Recursive | AuthAction::Function { .. } => true,
        AuthAction::CreateTable { table_name: name }
        | AuthAction::CreateTempTable { table_name: name }
        | AuthAction::CreateView { view_name: name }
        | AuthAction::CreateTempView { view_name: name }
        | AuthAction::DropTable { table_name: name }
        | AuthAction::DropTempTable { table_name: name }
        | AuthAction::DropView { view_name: name }
        | AuthAction::DropTempView { view_name: name }
        | AuthAction::Insert { table_name: name }
        | AuthAction::Delete { table_name: name }
        | AuthAction::Read { table_name: name, .. }
        | AuthAction::Update { table_name: name, .. }
        | AuthAction::AlterTable { table_name: name, .. }
        | AuthAction::Analyze { table_name: name }
        | AuthAction::Reindex { index_name: name }
        | AuthAction::CreateVtable { table_name: name, .. }
        | AuthAction::DropVtable { table_name: name, .. } => !is_own(name),
        AuthAction::CreateIndex { index_name: name, table_name }
        | AuthAction::CreateTempIndex { index_name: name, table_name }
        | AuthAction::DropIndex { index_name: name, table_name }
        | AuthAction::DropTempIndex { index_name: name, table_name }
        | AuthAction::CreateTrigger { trigger_name: name, table_name }
        | AuthAction::CreateTempTrigger { trigger_name: name, table_name }
        | AuthAction::DropTrigger { trigger_name: name, table_name }
        | AuthAction::DropTempTrigger { trigger_name: name, table_name } => {
            !is_own(name) && !is_own(table_name)
        }
        // What a later SQLite can do is not allowed until somebody has looked at it.
        _ => false,
    }
}

/// Whether a name is one of the store's own; SQLite does not tell upper from lower case.
fn is_own(name: &str) -> bool {
    name.get(..OWN_PREFIX.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(OWN_PREFIX))
}
