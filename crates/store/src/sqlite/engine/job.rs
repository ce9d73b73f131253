//! One member of a batch: work that runs in a savepoint of its own, perhaps more than once, and is answered only when
//! its batch is durable.

use tokio::sync::oneshot;

use super::error::Fault;
use super::turn::Turn;
use crate::claims::StoreError;

/// What a small member is taken to write, in bytes.
const MEMBER_BYTES_LEAST: usize = 1024;

/// Something that the writer does for a caller.
pub(super) trait Member: Send {
    /// Roughly what it writes.
    fn bytes(&self) -> usize;
    /// Does it. The answer of an earlier run is forgotten.
    fn run(&mut self, turn: &mut Turn<'_>) -> Result<(), Fault>;
    /// Tells the caller what came of the last run, or why nothing did.
    fn answer(self: Box<Self>, verdict: Result<(), StoreError>);
}

struct Job<T, F> {
    bytes: usize,
    work: F,
    found: Option<T>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

/// A member, and where its answer will come. A caller that no longer listens does not take the work back.
pub(super) fn member<T, F>(
    bytes: usize,
    work: F,
) -> (Box<dyn Member>, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnMut(&mut Turn<'_>) -> Result<T, Fault> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    (Box::new(Job { bytes: bytes + MEMBER_BYTES_LEAST, work, found: None, caller }), answer)
}

impl<T, F> Member for Job<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Turn<'_>) -> Result<T, Fault> + Send + 'static,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn run(&mut self, turn: &mut Turn<'_>) -> Result<(), Fault> {
        self.found = None;
        self.found = Some((self.work)(turn)?);
        Ok(())
    }

    fn answer(self: Box<Self>, verdict: Result<(), StoreError>) {
        let Job { found, caller, .. } = *self;
        let answer = verdict.map(|()| found.expect("a member that succeeded has an answer"));
        // Nobody may be listening any more.
        let _ = caller.send(answer);
    }
}
