//! Reads an answer for keeping. What is too large, or never ends, is handed on as it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum_core::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::BodyExt;

/// What became of an answer's body.
pub(crate) enum Captured {
    /// It is read in full.
    Whole(Bytes),
    /// It is too large to keep, or a stream: it passes on, from its first byte.
    Passing(Body),
    /// It broke off.
    Broken(axum_core::Error),
}

/// Reads a body of at most `max` bytes.
pub(crate) async fn capture(headers: &HeaderMap, mut body: Body, max: u64) -> Captured {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream")) {
        return Captured::Passing(body);
    }
    let mut read = BytesMut::new();
    let mut only: Option<Bytes> = None;
    loop {
        match body.frame().await {
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                // Most answers are one piece, which is kept without copying it.
                match only.take() {
                    None if read.is_empty() => only = Some(data),
                    first => {
                        read.extend_from_slice(&first.unwrap_or_default());
                        read.extend_from_slice(&data);
                    }
                }
                if only.as_ref().map_or(read.len(), Bytes::len) as u64 > max {
                    let first = only.unwrap_or_else(|| read.freeze());
                    return Captured::Passing(Body::new(Prefixed { first: Some(first), rest: body }));
                }
            }
            None => return Captured::Whole(only.unwrap_or_else(|| read.freeze())),
            Some(Err(error)) => return Captured::Broken(error),
        }
    }
}

/// What was already read of a body, then its rest.
struct Prefixed {
    first: Option<Bytes>,
    rest: Body,
}

impl http_body::Body for Prefixed {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    async fn captured(pieces: Vec<&'static str>, max: u64) -> Captured {
        let pieces =
            pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece.as_bytes())));
        capture(
            &HeaderMap::new(),
            Body::new(http_body_util::StreamBody::new(stream::iter(
                pieces.map(|piece| piece.map(Frame::data)),
            ))),
            max,
        )
        .await
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_read_in_full() {
        for pieces in [vec![], vec!["abc"], vec!["a", "b", "c"], vec!["", "abc", ""]] {
            let whole: String = pieces.concat();
            assert!(matches!(captured(pieces, 3).await, Captured::Whole(bytes) if bytes == whole));
        }
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_passes_from_its_first_byte() {
        for pieces in [vec!["abcd"], vec!["a", "b", "c", "d"], vec!["ab", "cd", "ef"]] {
            let whole: String = pieces.concat();
            let Captured::Passing(body) = captured(pieces, 3).await else {
                panic!("it is too large to keep")
            };
            assert_eq!(body.collect().await.unwrap().to_bytes(), whole);
        }
    }

    #[tokio::test]
    async fn a_stream_of_events_passes_at_once() {
        let headers = HeaderMap::from_iter([(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("text/event-stream; charset=utf-8"),
        )]);
        assert!(matches!(capture(&headers, Body::from("data: 1\n\n"), 1000).await, Captured::Passing(_)));
    }
}
