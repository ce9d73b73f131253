//! The writes that wait for the writer, in order and bounded in number and in bytes. A batch is whatever waits when the
//! writer comes back; nobody waits for a batch to fill.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::member::Member;

/// Writes that may wait.
const QUEUE_MEMBERS_MAX: usize = 8192;
/// Answers and the like that may wait, in bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Members of one batch.
pub(super) const BATCH_MEMBERS_MAX: usize = 1024;
/// What one batch writes, roughly, in bytes; a single larger member is a batch of its own.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The queue.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    members: VecDeque<Box<dyn Member>>,
    bytes: usize,
    is_closed: bool,
    /// The writer sleeps until it is woken. Waking one that does not sleep is a system call for nothing.
    is_asleep: bool,
}

/// What the writer finds.
pub(super) enum Next {
    /// These, at least one.
    Batch(Vec<Box<dyn Member>>),
    /// Nothing came for a while.
    Idle,
    /// Nothing will come any more.
    Closed,
}

/// The queue is full, or nobody serves it any more. The member was not queued.
#[derive(Debug)]
pub(super) struct Refused(pub(super) &'static str);

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("queueing does not panic")
    }

    /// Adds a member, or refuses it.
    pub(super) fn push(&self, member: Box<dyn Member>) -> Result<(), Refused> {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(Refused("the writer has stopped"));
        }
        let bytes = waiting.bytes + member.bytes();
        if waiting.members.len() >= QUEUE_MEMBERS_MAX
            || (bytes > QUEUE_BYTES_MAX && !waiting.members.is_empty())
        {
            return Err(Refused("too many writes wait"));
        }
        waiting.bytes = bytes;
        waiting.members.push_back(member);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        if is_asleep {
            self.came.notify_one();
        }
        Ok(())
    }

    /// Takes what waits, up to the bounds of a batch; waits itself where nothing does.
    pub(super) fn next(&self, patience: Duration) -> Next {
        let waiting = self.waiting();
        let nothing = |waiting: &mut Waiting| {
            waiting.is_asleep = waiting.members.is_empty() && !waiting.is_closed;
            waiting.is_asleep
        };
        let (mut waiting, _) =
            self.came.wait_timeout_while(waiting, patience, nothing).expect("queueing does not panic");
        waiting.is_asleep = false;
        if waiting.members.is_empty() {
            return if waiting.is_closed { Next::Closed } else { Next::Idle };
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(member) = waiting.members.front() {
            let more = bytes + member.bytes();
            if batch.len() == BATCH_MEMBERS_MAX || (more > BATCH_BYTES_MAX && !batch.is_empty()) {
                break;
            }
            bytes = more;
            batch.extend(waiting.members.pop_front());
        }
        waiting.bytes -= bytes;
        Next::Batch(batch)
    }

    /// Takes everything that waits.
    pub(super) fn drain(&self) -> Vec<Box<dyn Member>> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        std::mem::take(&mut waiting.members).into()
    }

    /// Nothing more is accepted.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.came.notify_all();
    }

    /// Whether nothing more is accepted.
    pub(super) fn is_closed(&self) -> bool {
        self.waiting().is_closed
    }
}
