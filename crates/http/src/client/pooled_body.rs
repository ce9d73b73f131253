//! An answer's body and the connection that it comes on, which goes back to the pool with the body's end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::pool::Pool;

/// The body of an answer. Whoever drops it half read closes its connection.
pub(crate) struct Lent {
    body: Incoming,
    /// Nothing to give back where the connection takes many requests at once.
    due: Option<Due>,
    /// When the end was seen.
    ended: Option<Instant>,
}

/// What goes back.
struct Due {
    pool: Arc<Pool>,
    sender: SendRequest<Body>,
    permit: OwnedSemaphorePermit,
}

impl Lent {
    pub(super) fn shared(body: Incoming) -> Self {
        Self { body, due: None, ended: None }
    }

    pub(super) fn of(
        body: Incoming,
        pool: Arc<Pool>,
        sender: SendRequest<Body>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { body, due: Some(Due { pool, sender, permit }), ended: None }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(Due { pool, sender, permit }) = self.due.take() else { return };
        let ended = self.ended.or_else(|| self.body.is_end_stream().then(Instant::now));
        if let Some(ended) = ended {
            // A client that is slow to take what was read does not make the connection any younger.
            pool.take_back(sender, permit, ended);
        }
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if self.ended.is_none()
            && frame.is_ready()
            && (matches!(frame, Poll::Ready(None)) || self.body.is_end_stream())
        {
            self.ended = Some(Instant::now());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
