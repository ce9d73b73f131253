//! Work that outlives whoever waits for it. While somebody waits it is done in the waiting task, where its memory is at hand;
//! when nobody does any more it goes on in a task of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::Instrument;

/// Work that is under way.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Waits for work that goes on without the one who waits.
pub(crate) struct Outliving<T: Send + 'static> {
    /// What is left of it: nothing once it has ended or has panicked.
    rest: Option<Work<T>>,
    /// Where it goes on: whoever lets go of it may do so outside of any runtime.
    runtime: Handle,
}

/// Does work to its end, whether or not anybody waits for that.
pub(crate) fn outlive<T: Send>(work: Work<T>) -> Outliving<T> {
    Outliving { rest: Some(work), runtime: Handle::current() }
}

impl<T: Send> Future for Outliving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Not there while it is polled: work that panics must not go on.
        let mut work = self.rest.take().expect("nobody waits for what has ended");
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.rest = Some(work);
        }
        polled
    }
}

impl<T: Send> Drop for Outliving<T> {
    fn drop(&mut self) {
        if let Some(work) = self.rest.take() {
            self.runtime.spawn(work.in_current_span());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::outlive;

    #[tokio::test]
    async fn work_that_somebody_waits_for_is_done_in_the_same_task() {
        let done = tokio::spawn(async {
            let by = outlive(Box::pin(async { tokio::task::id() })).await;
            by == tokio::task::id()
        });
        assert!(done.await.expect("no panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_nobody_waits_for_any_more_is_done_all_the_same() {
        let (done, is_done) = oneshot::channel();
        let work = outlive(Box::pin(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let _ = done.send("done");
        }));
        assert!(tokio::time::timeout(Duration::from_secs(1), work).await.is_err());
        assert_eq!(is_done.await, Ok("done"));
    }

    #[test]
    fn it_goes_on_even_where_it_is_let_go_outside_of_any_runtime() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let (go, may_go) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let entered = runtime.enter();
        let mut work = outlive(Box::pin(async {
            drop(may_go.await);
            let _ = done.send("done");
        }));
        assert!((&mut work).now_or_never().is_none());
        drop(entered);
        drop(work);
        drop(go);
        assert_eq!(is_done.blocking_recv(), Ok("done"));
    }

    #[tokio::test]
    async fn work_that_panicked_does_not_go_on() {
        let polls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&polls);
        let work = std::future::poll_fn(move |_| -> std::task::Poll<()> {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("as asked");
        });
        assert!(AssertUnwindSafe(outlive(Box::pin(work))).catch_unwind().await.is_err());
        tokio::task::yield_now().await;
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    }
}
