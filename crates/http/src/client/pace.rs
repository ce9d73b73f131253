//! Bodies under observation: when their last piece passed, and an end to those that fall silent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::body_room::Ended;

/// When something last happened.
#[derive(Clone, Debug)]
pub struct Activity {
    began: Instant,
    /// Milliseconds after the beginning.
    last: Arc<AtomicU64>,
}

impl Default for Activity {
    fn default() -> Self {
        Self { began: Instant::now(), last: Arc::default() }
    }
}

impl Activity {
    fn note(&self) {
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(passed, Ordering::Relaxed);
    }

    /// Ends when nothing has happened for this long.
    pub async fn idle_for(&self, patience: Duration) {
        // Begun again for every try.
        self.note();
        loop {
            let last = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed));
            let due = last + patience;
            tokio::time::sleep_until(due).await;
            let noted = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed));
            if noted == last {
                return;
            }
        }
    }
}

/// A body that is given up when it is silent for too long while somebody waits for it.
#[derive(Debug)]
pub struct Paced<B> {
    inner: B,
    patience: Duration,
    activity: Option<Activity>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    /// Gives `inner` up after this much silence.
    pub fn new(inner: B, patience: Duration) -> Self {
        Self { inner, patience, activity: None, alarm: None }
    }

    /// The same, noting when pieces pass.
    pub fn noting(inner: B, patience: Duration, activity: Activity) -> Self {
        Self { activity: Some(activity), ..Self::new(inner, patience) }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Ended;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Ended>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            this.alarm = None;
            if let Some(activity) = &this.activity {
                activity.note();
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| Ended::Broken(error.into()))));
        }
        let patience = this.patience;
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        alarm.as_mut().poll(cx).map(|()| Some(Err(Ended::Silent(patience))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
