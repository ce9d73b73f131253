//! Batches without a timer: a batch is whatever queued while the last ones ran. Owns the queue and the workers; what a
//! batch does is the caller's.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::claims::StoreError;

/// Batches of one kind that are in flight at once, each on its own connection.
const BATCHES_MAX: usize = 2;
/// Requests that are worth a second batch beside one in flight; fewer wait for it to end and share one commit.
const SECOND_BATCH_ITEMS_MIN: usize = 16;
/// Requests in one batch.
const BATCH_ITEMS_MAX: usize = 256;
/// Requests that wait for a batch; more wait at the door.
const QUEUE_ITEMS_MAX: usize = 4096;

/// Somebody who waits for the outcome of a request.
pub(super) type Waiting<A> = oneshot::Sender<Result<A, StoreError>>;

/// The door to a kind of batch.
#[derive(Debug)]
pub(super) struct Queue<R, A>(mpsc::Sender<(R, Waiting<A>)>);

impl<R: Send + 'static, A: Send + 'static> Queue<R, A> {
    /// Opens the queue. Its task ends when the queue is dropped and everything in it was run.
    pub(super) fn start<F, W>(run: F) -> Self
    where
        F: Fn(Vec<(R, Waiting<A>)>) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let (door, queue) = mpsc::channel(QUEUE_ITEMS_MAX);
        tokio::spawn(work(queue, run));
        Self(door)
    }

    /// Hands a request in and waits for its outcome.
    pub(super) async fn ask(&self, request: R) -> Result<A, StoreError> {
        let (waiting, answer) = oneshot::channel();
        let closed = || StoreError::Unavailable("the store is shutting down".to_owned());
        self.0.send((request, waiting)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| StoreError::Unknown("the batch of this request was lost".to_owned()))?
    }
}

async fn work<R, A, F, W>(mut queue: mpsc::Receiver<(R, Waiting<A>)>, run: F)
where
    F: Fn(Vec<(R, Waiting<A>)>) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let mut pending = Vec::new();
    // Each batch is a task, so that one that panics takes nothing else along.
    let mut running = JoinSet::new();
    let mut open = true;
    while open || !pending.is_empty() || !running.is_empty() {
        if starts(pending.len(), running.len()) {
            let mut batch = std::mem::take(&mut pending);
            // Nobody waits for these any more, and nothing was sent yet.
            batch.retain(|(_, waiting): &(R, Waiting<A>)| !waiting.is_closed());
            running.spawn(run(batch));
        }
        let room = BATCH_ITEMS_MAX - pending.len();
        tokio::select! {
            taken = queue.recv_many(&mut pending, room), if open && room > 0 => open = taken > 0,
            Some(_) = running.join_next() => {}
            else => {}
        }
    }
}

fn starts(pending: usize, running: usize) -> bool {
    match running {
        0 => pending > 0,
        _ => running < BATCHES_MAX && pending >= SECOND_BATCH_ITEMS_MIN,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_queues_while_batches_run_becomes_one_batch() {
        let batches = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(Queue::start({
            let batches = Arc::clone(&batches);
            move |batch: Vec<(u32, Waiting<u32>)>| {
                batches.fetch_add(1, Ordering::SeqCst);
                async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    batch.into_iter().for_each(|(number, waiting)| drop(waiting.send(Ok(number + 1))));
                }
            }
        }));
        let asked: Vec<_> = (0..100)
            .map(|number| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.ask(number).await })
            })
            .collect();
        for (number, asked) in (0..).zip(asked) {
            assert_eq!(asked.await.expect("no panic"), Ok(number + 1));
        }
        assert!(batches.load(Ordering::SeqCst) <= 4, "{batches:?}");
    }

    #[tokio::test]
    async fn a_batch_that_panics_leaves_its_requests_unknown_and_the_queue_alive() {
        let queue = Queue::start(|batch: Vec<(bool, Waiting<()>)>| async move {
            for (panics, waiting) in batch {
                assert!(!panics, "on purpose");
                drop(waiting.send(Ok(())));
            }
        });
        for _ in 0..4 {
            assert!(matches!(queue.ask(true).await, Err(StoreError::Unknown(_))));
        }
        assert_eq!(queue.ask(false).await, Ok(()));
    }
}
