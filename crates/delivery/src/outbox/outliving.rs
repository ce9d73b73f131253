//! Work that goes on by itself when whoever waited for it has gone away. Owns nothing else.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that was begun and ends, whether or not somebody waits.
pub(super) struct Outliving<T: Send + 'static> {
    work: Option<Work<T>>,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Outliving<T> {
    /// This work. Outside a runtime it ends when nobody waits, since nothing could carry it on.
    pub(super) fn of(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::try_current().ok() }
    }
}

impl<T: Send + 'static> Future for Outliving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("it is not polled after its end");
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            runtime.spawn(work);
        }
    }
}
