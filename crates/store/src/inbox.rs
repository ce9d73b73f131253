//! Where the answers to the requests of one thread are put, so that those of a whole batch wake it once. Without it each
//! answer wakes the thread by itself, which is a system call and, where the thread runs elsewhere, an interrupt. Owns nothing
//! but the way: what an answer says, and that it is given once, is the store's.
//!
//! No answer is kept from anybody: what cannot be put into an inbox any more is given at once, and what lies in one that ends
//! is given then.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Answers that are given before other tasks of the thread have their turn.
const GIVEN_AT_ONCE_MAX: usize = 256;

thread_local! {
    static HERE: RefCell<Option<Arc<Inbox>>> = const { RefCell::new(None) };
}

/// An answer on its way.
pub(crate) trait Deliver: Send {
    /// Gives it to who waits for it.
    fn deliver(self: Box<Self>);
}

/// The answers that were put down for a thread.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<State>);

#[derive(Default)]
struct State {
    answers: Vec<Box<dyn Deliver>>,
    /// Who is woken by the first of them.
    reader: Option<Waker>,
    is_closed: bool,
}

/// The inbox of this thread, if it has one.
pub(crate) fn here() -> Option<Arc<Inbox>> {
    HERE.with_borrow(Clone::clone)
}

/// Gives this thread an inbox, and gives the answers in it for as long as this is polled, which only this thread may do. Meant
/// for a thread that runs the tasks of many requests and nothing else; runs until it is dropped.
pub async fn receive() {
    let inbox = Arc::new(Inbox::default());
    HERE.set(Some(Arc::clone(&inbox)));
    let open = Open(inbox);
    let mut round = Vec::new();
    poll_fn(|cx| open.0.give(&mut round, cx)).await
}

/// An inbox that is emptied for the last time when this is dropped.
struct Open(Arc<Inbox>);

impl Drop for Open {
    fn drop(&mut self) {
        HERE.with_borrow_mut(|here| here.take_if(|here| Arc::ptr_eq(here, &self.0)));
        let rest = {
            let mut state = self.0.state();
            state.is_closed = true;
            std::mem::take(&mut state.answers)
        };
        rest.into_iter().for_each(Deliver::deliver);
    }
}

impl Inbox {
    /// Puts an answer down, and wakes the thread if it is the first.
    pub(crate) fn put(&self, answer: Box<dyn Deliver>) {
        let mut state = self.state();
        if state.is_closed {
            drop(state);
            return answer.deliver();
        }
        state.answers.push(answer);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn give(&self, round: &mut Vec<Box<dyn Deliver>>, cx: &mut Context<'_>) -> Poll<()> {
        let has_more = {
            let mut state = self.state();
            let taken = state.answers.len().min(GIVEN_AT_ONCE_MAX);
            round.extend(state.answers.drain(..taken));
            let has_more = !state.answers.is_empty();
            if !has_more {
                state.reader = Some(cx.waker().clone());
            }
            has_more
        };
        round.drain(..).for_each(Deliver::deliver);
        if has_more {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics; a list of answers is whole in any case.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::sync::oneshot;

    use super::*;

    struct Number(usize, oneshot::Sender<usize>);

    impl Deliver for Number {
        fn deliver(self: Box<Self>) {
            let _ = self.1.send(self.0);
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_batch_of_answers_wakes_the_thread_once() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let mut receiving = Box::pin(receive());
        for batch in 1..=3 {
            assert!(receiving.as_mut().poll(&mut cx).is_pending());
            let inbox = here().expect("this thread receives");
            let answers: Vec<_> = (0..100)
                .map(|number| {
                    let (sender, answer) = oneshot::channel();
                    inbox.put(Box::new(Number(number, sender)));
                    answer
                })
                .collect();
            assert_eq!(wakes.0.load(Ordering::SeqCst), batch);
            assert!(receiving.as_mut().poll(&mut cx).is_pending());
            for (number, answer) in answers.into_iter().enumerate() {
                assert_eq!(answer.blocking_recv(), Ok(number));
            }
        }
    }

    #[test]
    fn more_answers_than_are_given_at_once_are_given_all_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let receiving = receive();
            let given = async {
                let inbox = here().expect("polled after the inbox was made");
                let (senders, answers): (Vec<_>, Vec<_>) = (0..1000).map(|_| oneshot::channel()).unzip();
                let putting = std::thread::spawn(move || {
                    for (number, sender) in senders.into_iter().enumerate() {
                        inbox.put(Box::new(Number(number, sender)));
                    }
                });
                for (number, answer) in answers.into_iter().enumerate() {
                    assert_eq!(answer.await, Ok(number));
                }
                putting.join().unwrap();
            };
            tokio::select! {
                biased;
                () = receiving => unreachable!("it has no end"),
                () = given => {}
            }
        });
        assert!(here().is_none());
    }

    #[test]
    fn an_inbox_that_ends_gives_what_lies_in_it_and_what_comes_later() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut receiving = Box::pin(receive());
        assert!(receiving.as_mut().poll(&mut cx).is_pending());
        let inbox = here().unwrap();
        let (sender, first) = oneshot::channel();
        inbox.put(Box::new(Number(1, sender)));
        drop(receiving);
        assert_eq!(first.blocking_recv(), Ok(1));
        let (sender, second) = oneshot::channel();
        inbox.put(Box::new(Number(2, sender)));
        assert_eq!(second.blocking_recv(), Ok(2));
        assert!(here().is_none());
    }
}
