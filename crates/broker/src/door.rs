//! Who is taken in together: messages that come while others are being written share the next transaction, and no message
//! waits for company. The work outlives the request that brought it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_delivery::relay::store::sql::StoreError;
use tokio::sync::{Semaphore, oneshot};

use crate::limits::{TOGETHER_BYTES, TOGETHER_MAX, WAITING_MAX};
use crate::published::{Published, Refusal};
use crate::store::Store;
use crate::store::accept::{Decided, Job, NotDone, Terms};

/// How often a transaction begins again because another broker took an id in between.
const RACES_MAX: usize = 8;
/// Messages that are tried by themselves at a time.
const ALONE_AT_ONCE: usize = 2;
/// How long one of them waits for its turn.
const ALONE_WAIT: Duration = Duration::from_secs(5);

/// Told of lines that have new messages, after the commit.
pub(crate) type Tell = Arc<dyn Fn(&[Decided], &[Arc<Job>]) + Send + Sync>;

/// Where messages wait for their transaction.
#[derive(Clone)]
pub(crate) struct Door(Arc<Inner>);

struct Inner {
    store: Store,
    tell: Tell,
    waiting: Mutex<VecDeque<Waiting>>,
    /// Transactions that run, and how many may.
    running: AtomicUsize,
    at_once: usize,
    alone: Semaphore,
}

/// Messages that came in one request: they are taken in together, in their order.
struct Waiting {
    jobs: Vec<Arc<Job>>,
    terms: Terms,
    answer: oneshot::Sender<Vec<Published>>,
}

impl Door {
    pub(crate) fn new(store: Store, tell: Tell) -> Self {
        // A second transaction is of use where one can be written while another waits for the disk.
        let at_once = if store.db.is_owned() { 1 } else { 2 };
        let (waiting, running, alone) =
            (Mutex::default(), AtomicUsize::new(0), Semaphore::new(ALONE_AT_ONCE));
        Self(Arc::new(Inner { store, tell, waiting, running, at_once, alone }))
    }

    /// Takes messages of one request in, numbered in their order.
    pub(crate) async fn submit(&self, jobs: Vec<Job>, terms: Terms) -> Vec<Published> {
        let count = jobs.len();
        let (answer, answered) = oneshot::channel();
        let is_queued = {
            let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = waiting.len() < WAITING_MAX;
            if has_room {
                waiting.push_back(Waiting { jobs: jobs.into_iter().map(Arc::new).collect(), terms, answer });
            }
            has_room
        };
        if !is_queued {
            return vec![refused(&StoreError::Failed("too many messages wait".to_owned())); count];
        }
        self.work();
        let gone = || refused(&StoreError::Unknown("the broker stopped before it answered".to_owned()));
        answered.await.unwrap_or_else(|_| vec![gone(); count])
    }

    /// Sees that somebody works, as long as anything waits.
    fn work(&self) {
        let may = |running| (running < self.0.at_once).then_some(running + 1);
        if self.0.running.fetch_update(Ordering::SeqCst, Ordering::SeqCst, may).is_err() {
            return;
        }
        let door = self.clone();
        tokio::spawn(async move {
            let _running = Running(&door.0.running);
            loop {
                let batch = door.0.next();
                if batch.is_empty() {
                    break;
                }
                door.0.take_in(batch).await;
            }
            drop(_running);
            // What came between the last look and the end finds nobody at work.
            if !door.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                door.work();
            }
        });
    }
}

/// A transaction that runs; a panic ends it too.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut batch, mut messages, mut bytes) = (Vec::new(), 0, 0);
        while messages < TOGETHER_MAX
            && bytes < TOGETHER_BYTES
            && let Some(one) = waiting.pop_front()
        {
            messages += one.jobs.len();
            bytes += one.jobs.iter().map(|job| job.draft.payload.as_bytes().len()).sum::<usize>();
            batch.push(one);
        }
        batch
    }

    /// Takes in all of these, in one transaction where that can be.
    async fn take_in(self: &Arc<Self>, batch: Vec<Waiting>) {
        let jobs: Vec<Arc<Job>> = batch.iter().flat_map(|one| one.jobs.iter().map(Arc::clone)).collect();
        let Some(terms) = batch.first().map(|one| one.terms) else { return };
        match self.accept(&jobs, Terms { is_patient: jobs.len() == 1, ..terms }).await {
            Ok(decided) => {
                let mut decided = decided.into_iter().map(|decided| decided.published);
                for one in batch {
                    let answers = decided.by_ref().take(one.jobs.len()).collect();
                    // Where nobody listens any more, the retry is told.
                    let _ = one.answer.send(answers);
                }
            }
            // It may be one of them that is refused, or that waits for what another transaction has locked.
            Err(StoreError::Failed(_)) if jobs.len() > 1 => {
                for one in batch {
                    let inner = Arc::clone(self);
                    tokio::spawn(async move { inner.take_in_alone(one).await });
                }
            }
            Err(error) => {
                for one in batch {
                    let _ = one.answer.send(vec![refused(&error); one.jobs.len()]);
                }
            }
        }
    }

    /// Takes in the messages of one request, each in a transaction of its own, in their order.
    async fn take_in_alone(&self, one: Waiting) {
        let turn = tokio::time::timeout(ALONE_WAIT, self.alone.acquire()).await;
        let mut answers = Vec::with_capacity(one.jobs.len());
        for job in &one.jobs {
            let decided = match &turn {
                Ok(Ok(_)) => {
                    self.accept(std::slice::from_ref(job), Terms { is_patient: true, ..one.terms }).await
                }
                Ok(Err(_)) | Err(_) => {
                    Err(StoreError::Failed("others wait for the store as well".to_owned()))
                }
            };
            answers.push(match decided.map(|decided| decided.into_iter().next()) {
                Ok(Some(decided)) => decided.published,
                Ok(None) => refused(&StoreError::Failed("no answer".to_owned())),
                Err(error) => refused(&error),
            });
        }
        let _ = one.answer.send(answers);
    }

    async fn accept(&self, jobs: &[Arc<Job>], terms: Terms) -> Result<Vec<Decided>, StoreError> {
        if planted::is(Bug::BrokerPushBeforeCommit) {
            (self.tell)(&[], jobs);
        }
        for _ in 0..RACES_MAX {
            match self.store.accept(jobs, terms).await {
                Ok(decided) => {
                    (self.tell)(&decided, &[]);
                    return Ok(decided);
                }
                Err(NotDone::Raced) => {}
                Err(NotDone::Store(error)) => return Err(error),
            }
        }
        Err(StoreError::Failed("other brokers took its ids again and again".to_owned()))
    }
}

fn refused(error: &StoreError) -> Published {
    Published::Refused(Refusal::Unavailable(error.to_string()))
}
