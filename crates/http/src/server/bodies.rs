//! Bodies as they come off a connection and as they go back onto it: given up when silent, and read to their end where a
//! request was refused half way.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use super::liveness::Busy;
use crate::client::Paced;

/// How much of a refused body is read, so that its client gets to read the refusal.
const UNREAD_BYTES_MAX: usize = 256 << 10;
/// How long that may take.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(2);

/// Bodies that are one side of a talk, and may be silent while the other side speaks.
const TALK: &[u8] = b"application/grpc";
/// How long such a body may be silent.
const TALK_IDLE_MAX: Duration = Duration::from_secs(3600);

/// Why a body broke off.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A request whose body is given up after so much silence, and read on for a little where its reader turns away, so that its
/// client gets to read why.
pub fn receive<B>(request: Request<B>, patience: Duration) -> Request<Body>
where
    B: http_body::Body<Data = Bytes, Error: Into<Cause>> + Send + Unpin + 'static,
{
    let (parts, body) = request.into_parts();
    // A client that waits for leave to send its body gets none when it is refused.
    let is_announced = parts.headers.contains_key(header::EXPECT);
    if http_body::Body::is_end_stream(&body) {
        return Request::from_parts(parts, Body::empty());
    }
    let is_talk =
        parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(TALK));
    let body = Paced::new(body, if is_talk { patience.max(TALK_IDLE_MAX) } else { patience });
    Request::from_parts(parts, Body::new(Read { body: Some(body), is_announced }))
}

/// An answer that keeps its connection busy until its end.
pub(super) fn give_back(response: Response<Body>, busy: Busy) -> Response<Body> {
    response.map(|body| Body::new(Held { body, _busy: busy }))
}

/// A request's body. Where its reader turns away, a little more of it is read: a connection that is closed with bytes
/// unread may take the answer with it.
struct Read<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<Cause>> + Send + Unpin + 'static,
{
    body: Option<Paced<B>>,
    is_announced: bool,
}

impl<B> http_body::Body for Read<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<Cause>> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(axum_core::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl<B> Drop for Read<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<Cause>> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let Some(mut body) = self.body.take() else { return };
        if self.is_announced || http_body::Body::is_end_stream(&body) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(UNREAD_TIME_MAX, async move {
            let mut left = UNREAD_BYTES_MAX;
            while let Some(Ok(frame)) = body.frame().await {
                let read = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(read) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        }));
    }
}

/// An answer's body, and the note that its connection is busy with it.
struct Held {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
