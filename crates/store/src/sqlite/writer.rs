//! The writer: one thread, one connection, one batch after the other. A batch is whatever queued while the last commit
//! was syncing, and nobody is answered before the commit. Only a handler's closure has a savepoint of its own: one costs
//! a copy of every page that a member touches, and members of the store itself fail when something is broken.
//!
//! A commit has three ends. Committed: the changes are published, then everybody is answered. Not committed: nothing of
//! the batch is there, and its members run again one by one, so that one that breaks batches harms only itself.
//! Unknown: everybody is told so, and the store stops answering until it has recovered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use semel_contract::time::{Timestamp, millis_of};

use super::checkpoint::{LogBounds, checkpoint};
use super::error::Fault;
use super::faults::CommitFault;
use super::fences::Fences;
use super::hub::Hub;
use super::live::Staged;
use super::member::Member;
use super::queue::{BATCH_MEMBERS_MAX, Next};
use super::recover;
use super::timekeeping;
use super::turn::Turn;
use crate::claims::StoreError;

/// How far the time may run ahead of what is written down before a batch that writes anyway writes it down again.
const TIME_UNWRITTEN_MILLIS: i64 = 1000;
/// How far it may run ahead before it is written down for its own sake.
const TIME_UNWRITTEN_MAX: Duration = Duration::from_secs(60);
/// How often a file without room is tried again where nobody writes.
const FULL_TRIED_EVERY: Duration = Duration::from_secs(1);

/// The writer's own state.
pub(super) struct Writer {
    pub(super) hub: Arc<Hub>,
    pub(super) fences: Fences,
    pub(super) time_written: Timestamp,
}

/// Starts the writer's thread. However it ends, nobody waits for it in vain.
pub(super) fn start(writer: Writer, connection: Connection) -> std::io::Result<JoinHandle<()>> {
    let ended = Ended(Arc::clone(&writer.hub));
    let serve = move || {
        let _ended = ended;
        writer.serve(connection);
    };
    std::thread::Builder::new().name("semel-sqlite-writer".to_owned()).spawn(serve)
}

struct Ended(Arc<Hub>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.health.fail("the writer has stopped".to_owned());
        self.0.queue.close();
        drop(self.0.queue.drain());
    }
}

type Members = Vec<Box<dyn Member>>;

/// How an attempt to commit some members ended.
enum Attempt {
    /// Durable.
    Committed(Staged),
    /// Nothing of it is there. The culprit, if it is known that its own answer holds all the same.
    NotCommitted { fault: Fault, answered: Option<usize> },
    /// Nobody can say.
    Unknown(String),
}

/// Why the writer stopped serving.
enum End {
    Closed,
    Doubt(String),
}

/// The commit may or may not have happened.
struct Doubt(String);

impl Writer {
    /// Serves the queue until it is closed. Then the log is copied into the file.
    pub(super) fn serve(mut self, connection: Connection) {
        let mut connection = connection;
        loop {
            match self.batches(&connection) {
                End::Closed => break,
                End::Doubt(why) => {
                    drop(connection);
                    match recover::recover(&mut self, &why) {
                        Some(recovered) => connection = recovered,
                        None => return,
                    }
                }
            }
        }
        self.hub.readers.close();
        self.hub.checkpointer.close();
        // What cannot be copied now stays in the log, and the next start finds it there.
        let _ = checkpoint(&connection, "TRUNCATE");
    }

    fn batches(&mut self, connection: &Connection) -> End {
        let mut bounds = LogBounds::default();
        loop {
            self.hub.faults.apply_limit(connection);
            let patience = if self.hub.health.is_full() { FULL_TRIED_EVERY } else { TIME_UNWRITTEN_MAX };
            let members = match self.hub.queue.next(patience) {
                Next::Batch(members) => members,
                // An empty batch writes the time down, if it went on or there was no room.
                Next::Idle => Vec::new(),
                Next::Closed => return End::Closed,
            };
            if let Err(Doubt(why)) = self.batch(connection, members) {
                return End::Doubt(why);
            }
            bounds.keep(connection, &self.hub);
        }
    }

    fn batch(&mut self, connection: &Connection, mut members: Members) -> Result<(), Doubt> {
        match self.attempt(connection, &mut members) {
            Attempt::Committed(staged) => {
                self.publish(staged);
                members.into_iter().for_each(|member| member.answer(Ok(())));
                Ok(())
            }
            Attempt::NotCommitted { answered, .. } => self.singly(connection, members, answered),
            Attempt::Unknown(why) => {
                let unknown = || Err(StoreError::Unknown(why.clone()));
                members.into_iter().for_each(|member| member.answer(unknown()));
                Err(Doubt(why))
            }
        }
    }

    /// Runs the members of a batch that did not commit again, each in a transaction of its own.
    fn singly(
        &mut self,
        connection: &Connection,
        members: Members,
        answered: Option<usize>,
    ) -> Result<(), Doubt> {
        let mut doubt: Option<String> = None;
        for (at, mut member) in members.into_iter().enumerate() {
            if answered == Some(at) {
                member.answer(Ok(()));
                continue;
            }
            if let Some(why) = &doubt {
                // Nothing of this member was written: its batch was rolled back, and it did not run again.
                member.answer(Err(StoreError::Unavailable(why.clone())));
                continue;
            }
            match self.attempt(connection, std::slice::from_mut(&mut member)) {
                Attempt::Committed(staged) => {
                    self.publish(staged);
                    member.answer(Ok(()));
                }
                Attempt::NotCommitted { answered: Some(_), .. } => member.answer(Ok(())),
                Attempt::NotCommitted { fault, answered: None } => member.answer(Err(fault.into())),
                Attempt::Unknown(why) => {
                    member.answer(Err(StoreError::Unknown(why.clone())));
                    doubt = Some(why);
                }
            }
        }
        doubt.map_or(Ok(()), |why| Err(Doubt(why)))
    }

    /// Runs members one after the other in one transaction, and commits it.
    fn attempt(&mut self, connection: &Connection, members: &mut [Box<dyn Member>]) -> Attempt {
        let mut staged = Staged::default();
        let written_before = connection.total_changes();
        let (time, end) = match self.run_all(connection, members, &mut staged) {
            Ok(time) => (time, self.commit(connection)),
            Err((fault, answered)) => (self.time_written, Err(CommitError::NotCommitted(fault, answered))),
        };
        match end {
            Ok(()) => {
                self.fences.committed();
                self.time_written = time;
                if connection.total_changes() > written_before {
                    self.hub.health.note_room();
                }
                Attempt::Committed(staged)
            }
            Err(CommitError::NotCommitted(fault, answered)) => {
                if !connection.is_autocommit() {
                    // Where even this fails the connection is beyond use, and the next batch fails at its beginning.
                    let _ = connection.execute_batch("ROLLBACK");
                }
                staged.take_back(&self.hub.places);
                if let Fault::Full(why) = &fault {
                    self.hub.health.note_full(why);
                }
                Attempt::NotCommitted { fault, answered }
            }
            Err(CommitError::Unknown(why)) => {
                // Before anybody is told: whoever asks again must not be answered from what is read now.
                self.hub.health.fail(format!("a commit has an unknown result: {why}"));
                Attempt::Unknown(why)
            }
        }
    }

    /// Runs members in a transaction that is left open, and says what time is then written down. `Err`: the transaction is
    /// of no use, and whose answer holds all the same.
    fn run_all(
        &mut self,
        connection: &Connection,
        members: &mut [Box<dyn Member>],
        staged: &mut Staged,
    ) -> Result<Timestamp, (Fault, Option<usize>)> {
        let written_before = connection.total_changes();
        self.begin(connection).map_err(|error| (error.into(), None))?;
        for (at, member) in members.iter_mut().enumerate() {
            let mut turn = Turn::new(connection, &self.hub, staged, &mut self.fences);
            let run = catch_unwind(AssertUnwindSafe(|| member.run(&mut turn)));
            let left = turn.end();
            let answered = left.is_refused.then_some(at);
            // Also what a member that failed has left: it is taken back with everything else.
            staged.add(left, &self.hub.live());
            let result = run.unwrap_or_else(|_| Err(Fault::Failed("the store panicked".to_owned())));
            // Checked after every member: one whose statement rolled everything back must not go on alone.
            if connection.is_autocommit() {
                let early = || Fault::Failed("the transaction was rolled back".to_owned());
                return Err((result.err().unwrap_or_else(early), answered));
            }
            result.map_err(|fault| (fault, None))?;
        }
        let has_written = connection.total_changes() > written_before;
        let is_trial = members.is_empty() && self.hub.health.is_full();
        self.write_time(connection, has_written, is_trial).map_err(|error| (error.into(), None))
    }

    /// Opens the transaction, and sets fence numbers aside in it.
    fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        // A member that forgets a principal takes up to a thousand.
        self.fences.reserve(connection, 64 * BATCH_MEMBERS_MAX as u64)
    }

    /// Writes the time down where it is due, and says what is then written. A batch that writes nothing else needs no
    /// sync, and does not get one for the time's sake every second.
    fn write_time(
        &self,
        connection: &Connection,
        has_written: bool,
        is_trial: bool,
    ) -> rusqlite::Result<Timestamp> {
        let now = self.hub.now();
        let ahead = now.millis_since(self.time_written);
        let is_due = is_trial
            || ahead >= millis_of(TIME_UNWRITTEN_MAX)
            || (has_written && ahead > TIME_UNWRITTEN_MILLIS);
        if !is_due {
            return Ok(self.time_written);
        }
        timekeeping::write(connection, self.hub.time.mark(&*self.hub.clock))?;
        Ok(now)
    }

    fn commit(&self, connection: &Connection) -> Result<(), CommitError> {
        let commit =
            |sql| self.hub.guard.committing(|| connection.prepare_cached(sql)?.execute([]).map(drop));
        let lost = || Err(CommitError::Unknown("a fault was asked for".to_owned()));
        match self.hub.faults.next_commit() {
            CommitFault::None => commit("COMMIT").map_err(CommitError::of),
            CommitFault::After => commit("COMMIT").map_err(CommitError::of).and_then(|()| lost()),
            CommitFault::Before => commit("ROLLBACK").map_err(CommitError::of).and_then(|()| lost()),
        }
    }

    /// The changes are durable: they become visible, and whoever waits is woken.
    fn publish(&self, staged: Staged) {
        let woken = staged.publish(&mut self.hub.live(), &self.hub.places, &self.hub.recent);
        woken.into_iter().for_each(|hash| self.hub.hints.wake(hash));
    }
}

enum CommitError {
    /// Why, and whose answer holds all the same.
    NotCommitted(Fault, Option<usize>),
    Unknown(String),
}

impl CommitError {
    fn of(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // A veto, a broken reference and a lock are found before anything is written. A full disk cuts the log
            // before the frame that commits, so no restart takes it for a commit.
            Some(ErrorCode::ConstraintViolation | ErrorCode::DatabaseBusy | ErrorCode::DiskFull) => {
                CommitError::NotCommitted(error.into(), None)
            }
            Some(_) | None => CommitError::Unknown(error.to_string()),
        }
    }
}
