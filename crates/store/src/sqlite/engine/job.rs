//! One job of a batch: work that runs in the batch's transaction, perhaps more than once, and is answered only when the
//! batch is durable.

use std::sync::Arc;

use rusqlite::Connection;
use semel_contract::time::Timestamp;
use tokio::sync::oneshot;

use super::error::{EngineError, Fault};
use super::guard::Guard;
use super::shared::Shared;
use crate::inbox::{self, Deliver, Inbox};

/// What a small job is taken to write, in bytes.
const JOB_BYTES_LEAST: usize = 1024;

/// What a job works on: the tables as of the jobs before it, and what the store keeps in memory. Nothing that it does is
/// true before the batch commits.
#[derive(Debug)]
pub struct BatchTx<'a, S> {
    connection: &'a Connection,
    shared: &'a Shared,
    /// What the store keeps in memory.
    pub state: &'a mut S,
    answer_stands: bool,
}

impl<'a, S> BatchTx<'a, S> {
    pub(super) fn new(connection: &'a Connection, shared: &'a Shared, state: &'a mut S) -> Self {
        Self { connection, shared, state, answer_stands: false }
    }

    /// The writer's connection, inside the batch's transaction.
    pub fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// What watches over the connection.
    pub(crate) fn guard(&self) -> &'a Guard {
        &self.shared.guard
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.shared.time.now()
    }

    /// Whether the clock is frozen, as of the last look at it.
    pub fn is_frozen(&self) -> bool {
        self.shared.time.jump().is_some()
    }

    /// The answer says that nothing was written, and holds even if the batch does not commit.
    pub(crate) fn let_answer_stand(&mut self) {
        self.answer_stands = true;
    }

    pub(super) fn answer_stands(&self) -> bool {
        self.answer_stands
    }
}

/// Something that the writer does for a caller.
pub(super) trait WriteJob<S>: Send {
    /// Roughly what it writes.
    fn bytes(&self) -> usize;
    /// Does it. The answer of an earlier run is forgotten.
    fn run(&mut self, tx: &mut BatchTx<'_, S>) -> Result<(), Fault>;
    /// Tells the caller what came of the last run, or why nothing did.
    fn answer(self: Box<Self>, verdict: Result<(), EngineError>);
}

struct Job<T, F> {
    bytes: usize,
    work: F,
    found: Option<T>,
    caller: oneshot::Sender<Result<T, EngineError>>,
    /// Where the caller's thread looks for answers, if not everywhere.
    inbox: Option<Arc<Inbox>>,
    /// What is told, once it was decided.
    verdict: Result<(), EngineError>,
}

/// Where the answer to a job will come.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, EngineError>>;

/// A job, and where its answer will come. A caller that no longer listens does not take the work back.
pub(super) fn job<S, T, F>(bytes: usize, work: F) -> (Box<dyn WriteJob<S>>, Answer<T>)
where
    T: Send + 'static,
    F: FnMut(&mut BatchTx<'_, S>) -> Result<T, Fault> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let bytes = bytes + JOB_BYTES_LEAST;
    (Box::new(Job { bytes, work, found: None, caller, inbox: inbox::here(), verdict: Ok(()) }), answer)
}

impl<S, T, F> WriteJob<S> for Job<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut BatchTx<'_, S>) -> Result<T, Fault> + Send + 'static,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(&mut self, tx: &mut BatchTx<'_, S>) -> Result<(), Fault> {
        self.found = None;
        self.found = Some((self.work)(tx)?);
        Ok(())
    }

    fn answer(mut self: Box<Self>, verdict: Result<(), EngineError>) {
        self.verdict = verdict;
        match self.inbox.take() {
            Some(inbox) => inbox.put(self),
            None => self.deliver(),
        }
    }
}

impl<T, F> Deliver for Job<T, F>
where
    T: Send + 'static,
    F: Send + 'static,
{
    fn deliver(self: Box<Self>) {
        let Job { found, caller, verdict, .. } = *self;
        let answer = verdict.map(|()| found.expect("a job that succeeded has an answer"));
        // The caller may listen no more.
        let _ = caller.send(answer);
    }
}
