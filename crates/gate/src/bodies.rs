//! Reads the bodies of keyed requests into memory: each within its route's limit and within a time, and all of them
//! together within one bound, however many clients send however slowly.

use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use semel_contract::problem::{Kind, Problem, Retry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of all bodies that are in memory at a time, where nothing else is said.
pub(crate) const BYTES_MAX: usize = 256 << 20;
/// How long one body may take, where nothing else is said.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(300);
/// Room is counted in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// Room for bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    time_max: Duration,
}

/// A body that was read, and the room that it takes until the last that holds it lets go.
struct Kept {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    pub(crate) fn new(bytes_max: usize, time_max: Duration) -> Self {
        let pieces = bytes_max.div_ceil(PIECE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(pieces)), time_max }
    }

    /// Reads a body of at most `limit` bytes. Nothing is read where there is no room for it.
    pub(crate) async fn read(&self, body: Body, limit: usize) -> Result<Bytes, Problem> {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let declared = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        let pieces = pieces_of(declared.unwrap_or(limit).min(limit));
        let Ok(mut room) = Arc::clone(&self.room).try_acquire_many_owned(pieces) else {
            return Err(Problem::new(Kind::Overloaded, "too many bodies of requests are being read"));
        };
        let read = tokio::time::timeout(self.time_max, Limited::new(body, limit).collect());
        let bytes = match read.await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => {
                return Err(too_large(limit));
            }
            Ok(Err(error)) => return Err(broke_off(&format!("the body broke off: {error}"))),
            Err(_) => return Err(broke_off(&format!("the body took longer than {:?}", self.time_max))),
        };
        let unused = pieces.saturating_sub(pieces_of(bytes.len()));
        drop(room.split(unused as usize));
        Ok(Bytes::from_owner(Kept { bytes, _room: room }))
    }
}

/// Nothing was executed: a client whose connection was bad may send it again.
fn broke_off(why: &str) -> Problem {
    Problem::new(Kind::RequestMalformed, why.to_owned()).verdict(Retry::SameKey)
}

/// A body beyond its route's limit.
pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(Kind::BodyTooLarge, format!("at most {limit} bytes are read here"))
}

fn pieces_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE_BYTES).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;

    use super::*;

    /// A body that never ends.
    fn unfinished() -> Body {
        let frames = futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
        Body::new(StreamBody::new(frames))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_never_end_take_bounded_room_and_bounded_time() {
        let bodies = Arc::new(Bodies::new(3 << 10, Duration::from_secs(300)));
        let reading = Arc::clone(&bodies);
        let slow = tokio::spawn(async move { reading.read(unfinished(), 2 << 10).await });
        tokio::task::yield_now().await;
        let small = bodies.read(Body::from("small"), 2 << 10).await.unwrap();
        let refused = bodies.read(Body::from("one more"), 2 << 10).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Overloaded, "the room is taken by a body that is still being read");
        drop(small);
        assert_eq!(bodies.read(Body::from("one more"), 2 << 10).await.unwrap(), "one more");
        let given_up = slow.await.unwrap().unwrap_err();
        assert!(given_up.detail.contains("longer than 300s"), "{given_up:?}");
        assert_eq!(bodies.room.available_permits(), 3);
    }

    #[tokio::test]
    async fn a_body_takes_the_room_that_it_has_and_not_what_it_might_have_had() {
        let bodies = Bodies::new(4 << 10, TIME_MAX);
        let frames = [Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(b"x")))];
        let chunked = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
        let held = bodies.read(chunked, 4 << 10).await.unwrap();
        assert_eq!((held.as_ref(), bodies.room.available_permits()), (&b"x"[..], 3));
        let copy = held.clone();
        drop(held);
        assert_eq!(bodies.room.available_permits(), 3, "a copy still holds it");
        drop(copy);
        assert_eq!(bodies.room.available_permits(), 4);
        assert_eq!(bodies.read(Body::from("12345"), 4).await.unwrap_err().kind, Kind::BodyTooLarge);
    }
}
