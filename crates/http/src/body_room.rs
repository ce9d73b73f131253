//! Reads the bodies of requests into memory: each within a limit and within a time, and all of them together within one
//! bound, however many clients send however slowly.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use semel_contract::problem::{Kind, Problem, Retry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room is counted in pieces of this size.
const PIECE_BYTES: usize = 1024;
/// When to come back where there was no room.
const COME_BACK: Duration = Duration::from_secs(1);

/// How much room there is, and how long one body may take to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBounds {
    /// Bytes of all bodies that are in memory at a time.
    pub bytes_max: usize,
    /// How long one body may take.
    pub time_max: Duration,
}

impl Default for BodyBounds {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, time_max: Duration::from_secs(300) }
    }
}

/// Room for bodies.
#[derive(Debug)]
pub struct BodyRoom {
    room: Arc<Semaphore>,
    time_max: Duration,
}

/// A body that was not read. Nothing was done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadBody {
    /// It is larger than so many bytes.
    TooLarge(usize),
    /// There is no room for it now.
    NoRoom,
    /// It took longer than this, or was silent for so long.
    TooSlow(Duration),
    /// Its connection broke off.
    BrokeOff(String),
}

impl UnreadBody {
    /// What a client may do and is told, in the contract's words. Nothing was executed: where the body did not come, the same
    /// request may be sent again.
    pub fn problem(&self) -> Problem {
        match self {
            UnreadBody::TooLarge(limit) => {
                Problem::new(Kind::BodyTooLarge, format!("at most {limit} bytes are read here"))
            }
            UnreadBody::NoRoom => {
                Problem::new(Kind::Overloaded, "too many bodies of requests are being read")
                    .retry_after(COME_BACK)
            }
            UnreadBody::TooSlow(time_max) => {
                let why = format!("the body took longer than {time_max:?}");
                Problem::new(Kind::RequestMalformed, why).status(408).verdict(Retry::SameKey)
            }
            UnreadBody::BrokeOff(why) => {
                Problem::new(Kind::RequestMalformed, format!("the body broke off: {why}"))
                    .verdict(Retry::SameKey)
            }
        }
    }
}

/// A body broke off, or was given up.
#[derive(Debug)]
pub enum Ended {
    /// It was silent for too long.
    Silent(Duration),
    /// It broke off.
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Silent(patience) => write!(f, "nothing came for {patience:?}"),
            Ended::Broken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Ended {}

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

impl BodyRoom {
    /// Room within these bounds.
    pub fn new(bounds: BodyBounds) -> Self {
        let pieces = bounds.bytes_max.div_ceil(PIECE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(pieces)), time_max: bounds.time_max }
    }

    /// Reads a body of at most `limit` bytes. Nothing is read where there is no room for it. What is read takes its room until
    /// the last copy is dropped.
    ///
    /// # Errors
    /// It is too large, there is no room, or it did not come.
    pub async fn read(&self, body: Body, limit: usize) -> Result<Bytes, UnreadBody> {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        // What says that it is too large is not read first.
        if usize::try_from(body.size_hint().lower()).is_ok_and(|least| least > limit) {
            return Err(UnreadBody::TooLarge(limit));
        }
        let declared = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        let pieces = pieces_of(declared.unwrap_or(limit).min(limit));
        let Ok(mut room) = Arc::clone(&self.room).try_acquire_many_owned(pieces) else {
            return Err(UnreadBody::NoRoom);
        };
        let read = tokio::time::timeout(self.time_max, Limited::new(body, limit).collect());
        let bytes = match read.await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) => return Err(unread(error.as_ref(), limit)),
            Err(_) => return Err(UnreadBody::TooSlow(self.time_max)),
        };
        let unused = pieces.saturating_sub(pieces_of(bytes.len()));
        drop(room.split(unused as usize));
        Ok(Bytes::from_owner(Kept { bytes, _room: room }))
    }
}

fn unread(error: &(dyn Error + 'static), limit: usize) -> UnreadBody {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return UnreadBody::TooLarge(limit);
        }
        if let Some(Ended::Silent(patience)) = error.downcast_ref::<Ended>() {
            return UnreadBody::TooSlow(*patience);
        }
        cause = error.source();
    }
    UnreadBody::BrokeOff(error.to_string())
}

fn pieces_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PIECE_BYTES).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;

    use super::*;

    fn room(bytes_max: usize) -> BodyRoom {
        BodyRoom::new(BodyBounds { bytes_max, ..BodyBounds::default() })
    }

    /// A body that never ends.
    fn unfinished() -> Body {
        let frames = futures_util::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
        Body::new(StreamBody::new(frames))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_never_end_take_bounded_room_and_bounded_time() {
        let bodies = Arc::new(room(3 << 10));
        let reading = Arc::clone(&bodies);
        let slow = tokio::spawn(async move { reading.read(unfinished(), 2 << 10).await });
        tokio::task::yield_now().await;
        let small = bodies.read(Body::from("small"), 2 << 10).await.unwrap();
        let refused = bodies.read(Body::from("one more"), 2 << 10).await.unwrap_err();
        assert_eq!(refused, UnreadBody::NoRoom, "the room is taken by a body that is still being read");
        let refused = refused.problem();
        assert_eq!((refused.kind, refused.retry_after), (Kind::Overloaded, Some(COME_BACK)));
        drop(small);
        assert_eq!(bodies.read(Body::from("one more"), 2 << 10).await.unwrap(), "one more");
        let given_up = slow.await.unwrap().unwrap_err();
        assert_eq!(given_up, UnreadBody::TooSlow(Duration::from_secs(300)));
        let given_up = given_up.problem();
        assert_eq!((given_up.status, given_up.retry()), (Some(408), Retry::SameKey));
        assert_eq!(bodies.room.available_permits(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_falls_silent_is_as_slow_as_one_that_drips() {
        let silent = crate::Paced::new(unfinished(), Duration::from_secs(60));
        let given_up = room(4 << 10).read(Body::new(silent), 1 << 10).await.unwrap_err();
        assert_eq!(given_up, UnreadBody::TooSlow(Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn a_body_takes_the_room_that_it_has_and_not_what_it_might_have_had() {
        let bodies = room(4 << 10);
        let frames = [Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(b"x")))];
        let chunked = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
        let held = bodies.read(chunked, 4 << 10).await.unwrap();
        assert_eq!((held.as_ref(), bodies.room.available_permits()), (&b"x"[..], 3));
        let copy = held.clone();
        drop(held);
        assert_eq!(bodies.room.available_permits(), 3, "a copy still holds it");
        drop(copy);
        assert_eq!(bodies.room.available_permits(), 4);
        assert_eq!(bodies.read(Body::from("12345"), 4).await.unwrap_err(), UnreadBody::TooLarge(4));
        let frames = ["123", "45"].map(|text| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(text))));
        let chunked = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
        assert_eq!(bodies.read(chunked, 4).await.unwrap_err(), UnreadBody::TooLarge(4));
    }
}
