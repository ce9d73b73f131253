//! The writes that wait for the writer, in order and bounded in number and in bytes. A batch is whatever waits when the
//! writer comes back; no write waits for a batch to fill.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::job::WriteJob;

/// Writes that may wait.
const QUEUE_JOBS_MAX: usize = 8192;
/// Answers and the like that may wait, in bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Jobs of one batch.
pub const BATCH_JOBS_MAX: usize = 1024;
/// What one batch writes, roughly, in bytes; a single larger job is a batch of its own.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The queue.
pub(super) struct Queue<S> {
    waiting: Mutex<Waiting<S>>,
    came: Condvar,
}

struct Waiting<S> {
    jobs: VecDeque<Box<dyn WriteJob<S>>>,
    bytes: usize,
    is_closed: bool,
    /// The writer sleeps until it is woken. Waking one that does not sleep is a system call for nothing.
    is_asleep: bool,
}

impl<S> Default for Queue<S> {
    fn default() -> Self {
        let waiting = Waiting { jobs: VecDeque::new(), bytes: 0, is_closed: false, is_asleep: false };
        Self { waiting: Mutex::new(waiting), came: Condvar::new() }
    }
}

/// What the writer finds.
pub(super) enum Next<S> {
    /// These, at least one.
    Batch(Vec<Box<dyn WriteJob<S>>>),
    /// Nothing came for a while.
    Idle,
    /// Nothing will come any more.
    Closed,
}

/// The queue is full, or no writer serves it any more. The job was not queued.
#[derive(Debug)]
pub(super) struct Refused(pub(super) &'static str);

impl<S> Queue<S> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<S>> {
        self.waiting.lock().expect("queueing does not panic")
    }

    /// Adds a job, or refuses it.
    pub(super) fn push(&self, job: Box<dyn WriteJob<S>>) -> Result<(), Refused> {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(Refused("the writer has stopped"));
        }
        let bytes = waiting.bytes + job.bytes();
        if waiting.jobs.len() >= QUEUE_JOBS_MAX || (bytes > QUEUE_BYTES_MAX && !waiting.jobs.is_empty()) {
            return Err(Refused("too many writes wait"));
        }
        waiting.bytes = bytes;
        waiting.jobs.push_back(job);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        if is_asleep {
            self.came.notify_one();
        }
        Ok(())
    }

    /// Takes what waits, up to the bounds of a batch; waits itself where nothing does.
    pub(super) fn next(&self, patience: Duration) -> Next<S> {
        let waiting = self.waiting();
        let nothing = |waiting: &mut Waiting<S>| {
            waiting.is_asleep = waiting.jobs.is_empty() && !waiting.is_closed;
            waiting.is_asleep
        };
        let (mut waiting, _) =
            self.came.wait_timeout_while(waiting, patience, nothing).expect("queueing does not panic");
        waiting.is_asleep = false;
        if waiting.jobs.is_empty() {
            return if waiting.is_closed { Next::Closed } else { Next::Idle };
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(job) = waiting.jobs.front() {
            let more = bytes + job.bytes();
            if batch.len() == BATCH_JOBS_MAX || (more > BATCH_BYTES_MAX && !batch.is_empty()) {
                break;
            }
            bytes = more;
            batch.extend(waiting.jobs.pop_front());
        }
        waiting.bytes -= bytes;
        Next::Batch(batch)
    }

    /// Takes everything that waits.
    pub(super) fn drain(&self) -> Vec<Box<dyn WriteJob<S>>> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        std::mem::take(&mut waiting.jobs).into()
    }

    /// Nothing more is accepted.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.came.notify_all();
    }
}
