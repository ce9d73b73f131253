//! A body that does not go out once its request's time is over.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// A body whose pieces are given only in time. Whoever waits for the rest sees it break off.
pub(crate) struct InTime<F> {
    pub(crate) body: Body,
    pub(crate) in_time: F,
}

/// The time was over.
#[derive(Clone, Copy, Debug)]
struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the claim's lease ended before the request could be sent")
    }
}

impl std::error::Error for Late {}

impl<F: Fn() -> bool + Unpin> http_body::Body for InTime<F> {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !(self.in_time)() {
            return Poll::Ready(Some(Err(axum_core::Error::new(Late))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
