//! The one connection that writes: it begins, commits and takes back transactions, keeps the log within its bounds, and
//! recovers.
//!
//! A commit has three ends. Committed. Not committed: nothing of it is there. Unknown: when a sync fails, the operating
//! system may keep pages in memory that never reached the disk, so nothing that is read then is evidence. The store stops
//! answering. Recovery closes every connection (the next one reads the log again, by its checksums), copies the log into
//! the file, syncs the whole file, and only then lets anything be read.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel_contract::time::{Timestamp, millis_of};

use super::checkpoint::{Log, LogBounds, Reached, checkpoint};
use super::error::{CommitError, Fault, OpenError};
use super::faults::CommitFault;
use super::file;
use super::shared::Shared;

/// How far the time may run ahead of what is written down before a transaction that writes anyway writes it down again.
const TIME_UNWRITTEN_MILLIS: i64 = 1000;
/// How far it may run ahead before it is written down for its own sake.
pub(super) const TIME_UNWRITTEN_MAX: Duration = Duration::from_secs(60);
/// The number that is written to see whether there is room again.
const ROOM_TRIED: &str = "room_tried";
/// The first pause between two tries to recover.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause between two tries to recover.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The connection and what goes with it.
#[derive(Debug)]
pub(super) struct Core {
    // None only where recovery was given up.
    connection: Option<Connection>,
    bounds: LogBounds,
    time_written: Timestamp,
    changes_before: u64,
    pub(super) shared: Arc<Shared>,
}

/// What a store reads again once the file has told what was committed.
pub(super) type Rebuild<'a> = &'a mut dyn FnMut(&Connection) -> rusqlite::Result<()>;

impl Core {
    pub(super) fn new(connection: Connection, time_written: Timestamp, shared: Arc<Shared>) -> Self {
        Self {
            connection: Some(connection),
            bounds: LogBounds::default(),
            time_written,
            changes_before: 0,
            shared,
        }
    }

    /// The connection.
    pub(super) fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("a store that was given up serves no more")
    }

    #[cfg(feature = "conformance")]
    pub(super) fn connection_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a store that was given up serves no more")
    }

    /// Begins a transaction.
    pub(super) fn begin(&mut self) -> rusqlite::Result<()> {
        let connection = self.connection();
        let changes = connection.total_changes();
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.changes_before = changes;
        Ok(())
    }

    /// Commits. Where nothing of it is there, it is rolled back; where that is not known, the store answers no more.
    pub(super) fn commit(&mut self) -> Result<(), CommitError> {
        let ended = self.try_commit();
        match &ended {
            Ok(()) => {}
            Err(CommitError::NotCommitted(fault)) => self.roll_back(Some(fault)),
            // Before anybody is told: a second question must not be answered from what is read now.
            Err(CommitError::Unknown(why)) => {
                self.shared.health.fail(format!("a commit has an unknown result: {why}"));
            }
        }
        ended
    }

    fn try_commit(&mut self) -> Result<(), CommitError> {
        let has_written = self.connection().total_changes() > self.changes_before;
        let time = self.write_time(has_written)?;
        let faults = &self.shared.faults;
        if faults.is_disk_full() {
            return Err(CommitError::NotCommitted(Fault::Full("a fault was asked for".to_owned())));
        }
        let end = |sql| {
            let connection = self.connection();
            let end = || connection.prepare_cached(sql)?.execute([]).map(drop);
            self.shared.guard.committing(end).map_err(CommitError::from)
        };
        let lost = || Err(CommitError::Unknown("a fault was asked for".to_owned()));
        match faults.next_commit() {
            CommitFault::None => end("COMMIT")?,
            CommitFault::After => end("COMMIT").and_then(|()| lost())?,
            CommitFault::Before => end("ROLLBACK").and_then(|()| lost())?,
        }
        self.time_written = time;
        if has_written {
            self.shared.health.note_room();
        }
        Ok(())
    }

    /// Writes the time down where it is due, and says what is then written. A transaction that writes nothing else needs
    /// no sync, and does not get one for the time's sake every second.
    fn write_time(&self, has_written: bool) -> rusqlite::Result<Timestamp> {
        let Shared { time, schema, .. } = &*self.shared;
        let now = time.now();
        let ahead = now.millis_since(self.time_written);
        let is_due = ahead >= millis_of(TIME_UNWRITTEN_MAX) || (has_written && ahead > TIME_UNWRITTEN_MILLIS);
        if !is_due {
            return Ok(self.time_written);
        }
        time.write(self.connection(), schema)?;
        Ok(now)
    }

    /// Takes back what was not committed; a fault may say that there is no room.
    pub(super) fn roll_back(&mut self, fault: Option<&Fault>) {
        if let Some(connection) = self.connection.as_ref().filter(|connection| !connection.is_autocommit()) {
            // Where even this fails the connection is beyond use, and the next transaction fails at its beginning.
            let _ = connection.execute_batch("ROLLBACK");
        }
        if let Some(Fault::Full(why)) = fault {
            self.shared.health.note_full(why);
        }
    }

    /// Where nothing is written for a while: writes the time down, and tries whether there is room again.
    pub(super) fn tick(&mut self) -> Result<(), CommitError> {
        self.begin()?;
        if self.shared.health.is_full() {
            let now = self.shared.time.now().millis();
            if let Err(error) = self.shared.schema.set_number(self.connection(), ROOM_TRIED, now) {
                let fault = error.into();
                self.roll_back(Some(&fault));
                return Err(CommitError::NotCommitted(fault));
            }
        }
        self.commit()
    }

    /// After a commit: keeps the log within its bounds.
    pub(super) fn keep_log(&mut self) {
        let Shared { guard, readers, checkpointer, .. } = &*self.shared;
        if let Some(connection) = &self.connection {
            self.bounds.keep(connection, &Log { guard, readers, checkpointer });
        }
    }

    /// Recovers, however long it takes. `false`: the store was closed meanwhile.
    pub(super) fn recover(&mut self, why: &str, rebuild: Rebuild<'_>, refuse: &dyn Fn(&str)) -> bool {
        let shared = Arc::clone(&self.shared);
        let why = format!("a commit has an unknown result, and the file is being recovered: {why}");
        shared.health.fail(why.clone());
        let mut pause = PAUSE_FIRST;
        loop {
            refuse(&why);
            match self.reopen(rebuild) {
                Ok(()) => {
                    shared.health.restore();
                    return true;
                }
                Err(error) => shared.health.fail(format!("the file could not be recovered: {error}")),
            }
            if shared.closing.wait(pause) {
                refuse(&why);
                return false;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn reopen(&mut self, rebuild: Rebuild<'_>) -> Result<(), OpenError> {
        let shared = Arc::clone(&self.shared);
        if !shared.faults.recovers() {
            return Err(OpenError::Sqlite("recovery is held up".to_owned()));
        }
        let Some(lock) = &shared.lock else {
            // What is in memory alone is in no doubt: what is read is there.
            self.roll_back(None);
            return Ok(rebuild(self.connection())?);
        };
        // Also what an earlier try has opened: the file is synced while nothing of this store has it open.
        self.connection = None;
        shared.readers.close();
        shared.checkpointer.close();
        let connection = file::for_writing(&shared.path, shared.schema)?;
        if checkpoint(&connection, "TRUNCATE")? == Reached::Part {
            return Err(OpenError::Sqlite("a reader stands in the way of a checkpoint".to_owned()));
        }
        drop(connection);
        file::sync(&lock.database(), &shared.path)?;
        let mut connection = writing(&shared)?;
        shared.readers.open(&shared.path)?;
        shared.checkpointer.open(&shared.path, shared.schema)?;
        rebuild(&connection)?;
        shared.guard.install(&mut connection)?;
        self.connection = Some(connection);
        self.bounds = LogBounds::default();
        Ok(())
    }

    /// Copies the log into the file. Nothing is written after it.
    pub(super) fn close(&mut self) {
        self.shared.readers.close();
        self.shared.checkpointer.close();
        if let Some(connection) = self.connection.take() {
            // What cannot be copied now stays in the log, and the next start finds it there.
            let _ = checkpoint(&connection, "TRUNCATE");
        }
    }
}

/// The connection that writes, without its guard.
pub(super) fn writing(shared: &Shared) -> Result<Connection, OpenError> {
    let connection = file::for_writing(&shared.path, shared.schema)?;
    connection.pragma_update(None, "cache_size", -i64::from(shared.cache_kibibytes))?;
    Ok(connection)
}
