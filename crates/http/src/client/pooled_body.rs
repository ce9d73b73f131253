//! An answer's body and the connection that it comes on, which goes back to the pool with the body's end.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::pool::{Pool, PooledConnection};

/// The body of an answer. To drop it half read is to close its connection.
pub struct PooledBody {
    body: Incoming,
    /// What goes back.
    due: Option<(Arc<Pool>, PooledConnection)>,
    /// When the end was seen.
    ended: Option<Instant>,
    /// No other request follows on the connection.
    is_last: bool,
}

impl fmt::Debug for PooledBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBody").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl PooledBody {
    pub(super) fn new(body: Incoming, pool: Arc<Pool>, connection: PooledConnection) -> Self {
        Self { body, due: Some((pool, connection)), ended: None, is_last: false }
    }

    /// Makes it the last answer of its connection, which does not go back to the pool.
    pub(super) fn last(mut self) -> Self {
        self.is_last = true;
        self
    }

    /// Leaves the connection to what it became: it changed its protocol.
    pub(super) fn detach(mut self) -> Self {
        if let Some((_, connection)) = self.due.take() {
            connection.detach();
        }
        self
    }
}

impl Drop for PooledBody {
    fn drop(&mut self) {
        let Some((pool, connection)) = self.due.take() else { return };
        let ended = self.ended.or_else(|| self.body.is_end_stream().then(Instant::now));
        if let Some(ended) = ended.filter(|_| !self.is_last) {
            // A client that is slow to take what was read does not make the connection any younger.
            pool.take_back(connection, ended);
        }
    }
}

impl HttpBody for PooledBody {
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
