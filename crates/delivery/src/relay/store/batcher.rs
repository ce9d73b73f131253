//! Who is taken in together: requests that come while others are being written share the next transaction, and nobody waits
//! for company.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::RelayStore;
use super::accept::{Accepted, Locks, NotDone, Submission};
use super::sql::StoreError;

/// Requests of one transaction.
const TOGETHER_MAX: usize = 256;
/// Their items, after which no other request is taken along.
const ITEMS_TOGETHER: usize = 512;
/// Requests that are tried by themselves at a time, in haste: with those that are patient fewer than there are connections,
/// which others need as well.
const ALONE_AT_ONCE: usize = 2;
/// Requests that wait at a time for what another transaction has locked.
const PATIENT_AT_ONCE: usize = 1;
/// How long one of either waits for its turn.
const ALONE_WAIT: Duration = Duration::from_secs(5);

/// Where those wait who are to be taken in. Each of them takes in whoever waits, once it has its turn.
#[derive(Debug)]
pub(super) struct AcceptBatcher {
    waiting: Mutex<VecDeque<Waiting>>,
    turns: Semaphore,
    alone: Semaphore,
    patient: Semaphore,
}

#[derive(Debug)]
struct Waiting {
    submission: Arc<Submission>,
    tell: oneshot::Sender<Told>,
    is_taken: Arc<AtomicBool>,
}

/// The other end of [`Waiting`].
struct Waits {
    told: oneshot::Receiver<Told>,
    /// Somebody takes it in, this one or another: now there is only to wait for what is told.
    is_taken: Arc<AtomicBool>,
}

/// What somebody who waits is told.
#[derive(Debug)]
enum Told {
    /// What became of it.
    End(Result<Accepted, StoreError>),
    /// It was refused, with others or in haste, and nothing was changed: it is to be tried by itself.
    Alone,
}

impl AcceptBatcher {
    /// So many may take in at a time.
    pub(super) fn new(turns: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            turns: Semaphore::new(turns),
            alone: Semaphore::new(ALONE_AT_ONCE),
            patient: Semaphore::new(PATIENT_AT_ONCE),
        }
    }

    fn wait(&self, submission: &Arc<Submission>) -> Waits {
        let (tell, told) = oneshot::channel();
        let is_taken = Arc::new(AtomicBool::new(false));
        let one = Waiting { submission: Arc::clone(submission), tell, is_taken: Arc::clone(&is_taken) };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(one);
        Waits { told, is_taken }
    }

    /// Those who wait longest. Whoever has gone away meanwhile is left out: nothing was sent yet.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut next, mut items) = (Vec::new(), 0);
        while next.len() < TOGETHER_MAX
            && items < ITEMS_TOGETHER
            && let Some(one) = waiting.pop_front()
        {
            if !one.tell.is_closed() {
                one.is_taken.store(true, Ordering::SeqCst);
                items += one.submission.items.len();
                next.push(one);
            }
        }
        next
    }
}

impl RelayStore {
    /// Takes a request in, or finds it.
    ///
    /// Before: nothing is assumed. After: all items are in their lanes, or none. Two transactions on one lane commit in the
    /// order of their numbers. Crash: before the commit nothing is known of the request; the same request sent again is
    /// then new. `Unknown`: sent again, it is found or new, never both.
    pub async fn accept(&self, submission: &Submission) -> Result<Accepted, StoreError> {
        let submission = Arc::new(submission.clone());
        let mut waits = self.batcher.wait(&submission);
        loop {
            let is_taken = waits.is_taken.load(Ordering::SeqCst);
            tokio::select! {
                biased;
                told = &mut waits.told => match told {
                    Ok(Told::End(end)) => return end,
                    Ok(Told::Alone) => return self.accept_alone(&submission).await,
                    // Whoever took it along went away in the middle. Sent again, it is found or new.
                    Err(_) => waits = self.batcher.wait(&submission),
                },
                turn = self.batcher.turns.acquire(), if !is_taken => {
                    let _turn = turn.map_err(|_| StoreError::Failed("the store is closed".to_owned()))?;
                    self.take_in().await;
                }
            }
        }
    }

    /// Takes in whoever waits, in one transaction.
    async fn take_in(&self) {
        let waiting = self.batcher.next();
        if waiting.is_empty() {
            return;
        }
        let submissions: Vec<&Submission> = waiting.iter().map(|one| &*one.submission).collect();
        let together = match self.accept_all(&submissions, Locks::AtOnce).await {
            // Some are new, or not where they were looked for: all of them anew, in their order.
            Err(NotDone::Lanes) => self.accept_all(&submissions, Locks::InTurn).await,
            other => other,
        };
        let ends = match together {
            Ok(all) => all.into_iter().map(|one| Told::End(Ok(one))).collect(),
            // It may be one of them that is refused, or that waits for what another transaction has locked.
            Err(NotDone::Refused(StoreError::Failed(_)) | NotDone::Lanes) => {
                waiting.iter().map(|_| Told::Alone).collect()
            }
            Err(error) => told_all(&waiting, &error.into()),
        };
        for (one, end) in waiting.into_iter().zip(ends) {
            // Whoever is gone asks again, or not.
            let _ = one.tell.send(end);
        }
    }

    /// Tries one submission by itself. The first try does not wait for locks: a submission that shared a batch with a locked
    /// lane, and does not need that lane, is accepted at once.
    async fn accept_alone(&self, submission: &Submission) -> Result<Accepted, StoreError> {
        let hasty = {
            let _turn = in_turn(&self.batcher.alone).await?;
            self.accept_all(&[submission], Locks::InTurn).await
        };
        let accepted = match hasty {
            Err(NotDone::Refused(StoreError::Failed(_)) | NotDone::Lanes) => {
                let _turn = in_turn(&self.batcher.patient).await?;
                self.accept_all(&[submission], Locks::Patiently).await?
            }
            other => other?,
        };
        accepted.into_iter().next().ok_or_else(|| StoreError::Failed("nothing was accepted".to_owned()))
    }
}

/// While the store is away each waits for it in turn; whoever is late does not.
async fn in_turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, StoreError> {
    match tokio::time::timeout(ALONE_WAIT, turns.acquire()).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) | Err(_) => Err(StoreError::Failed("others wait for the store as well".to_owned())),
    }
}

fn told_all(waiting: &[Waiting], error: &StoreError) -> Vec<Told> {
    waiting.iter().map(|_| Told::End(Err(error.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::super::sql::{Asked, Database, Transaction};
    use super::*;
    use crate::relay::debounce::{Debounce, Mode};

    /// A database that never begins.
    struct Slow;

    impl Database for Slow {
        fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
            Box::pin(std::future::pending())
        }

        fn now(&self) -> Asked<'_, i64> {
            Box::pin(std::future::pending())
        }

        fn is_owned(&self) -> bool {
            false
        }
    }

    #[test]
    fn whoever_is_taken_along_waits_quietly() {
        let store = RelayStore::new(Arc::new(Slow));
        let submission = Submission {
            target: "t".to_owned(),
            principal: "alice".to_owned(),
            key: "1".to_owned(),
            fingerprint: String::new(),
            mode: Mode::Background,
            debounce: Debounce::default(),
            groups: false,
            items: vec![],
            age: None,
        };
        let mut context = Context::from_waker(Waker::noop());
        let turns = store.batcher.turns.try_acquire_many(2).expect("nobody has a turn");
        let mut one = pin!(store.accept(&submission));
        assert!(matches!(one.as_mut().poll(&mut context), Poll::Pending));
        // Somebody else takes it along, and is not done; meanwhile there are turns enough.
        let taken = store.batcher.next();
        drop(turns);
        for _ in 0..3 {
            assert!(matches!(one.as_mut().poll(&mut context), Poll::Pending));
        }
        assert_eq!(store.batcher.turns.available_permits(), 2, "it needs none");
        // That one goes away in the middle: it is taken in by itself.
        drop(taken);
        assert!(matches!(one.as_mut().poll(&mut context), Poll::Pending));
        assert_eq!(store.batcher.turns.available_permits(), 1);
    }
}
