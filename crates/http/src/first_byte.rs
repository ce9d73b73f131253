//! The last moment before a request's first byte. Owns the question whether a request may still go out, which the
//! connection asks immediately before it writes, and the certainty that nothing is written once the request was given up.
//! Knows nothing of pools and answers.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use semel_contract::planted::{self, Bug};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a request may still be sent. Asked as late as can be: between connect and the first byte.
#[derive(Clone, Default)]
pub struct MaySend(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl MaySend {
    /// A request that may be sent at any time.
    pub fn always() -> Self {
        Self(None)
    }

    /// A request that may be sent while this says so. It is asked from the task of the connection, and must not block.
    pub fn when(is_allowed: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_allowed)))
    }

    /// Whether the first byte may be sent now.
    pub fn is_allowed(&self) -> bool {
        self.0.as_ref().is_none_or(|is_allowed| is_allowed())
    }
}

impl fmt::Debug for MaySend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "MaySend(when)" } else { "MaySend(always)" })
    }
}

/// Whatever is written passes.
const OPEN: u8 = 0;
/// A request was handed over, and nothing of it was written yet.
const ARMED: u8 = 1;
/// Something of the request was written, or is being written.
const PASSED: u8 = 2;
/// Nothing is written any more.
const SHUT: u8 = 3;

/// What of a request that was given up has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Not a byte, and none ever will be.
    Nothing,
    /// The first byte at least.
    Something,
}

/// What one connection knows of the request that it was given last. Shared by the two that act on it: the one that
/// waits for the answer, and the stream that writes.
#[derive(Debug)]
pub(crate) struct FirstByte {
    state: AtomicU8,
    may_send: Mutex<MaySend>,
}

impl FirstByte {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(OPEN), may_send: Mutex::default() })
    }

    /// Watches for the first byte of a request that is handed to the connection next.
    pub(crate) fn arm(&self, may_send: MaySend) {
        *self.may_send.lock().unwrap_or_else(PoisonError::into_inner) = may_send;
        // A connection that was shut stays shut.
        let armed = |state| (state != SHUT).then_some(ARMED);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, armed);
    }

    /// Gives the request up: from now on nothing is written on the connection. Says whether something was.
    pub(crate) fn give_up(&self) -> Written {
        match self.state.swap(SHUT, Ordering::AcqRel) {
            PASSED => Written::Something,
            // Shut by the stream itself, which was not allowed to write.
            OPEN | ARMED | SHUT => Written::Nothing,
            state => unreachable!("{state} is no state"),
        }
    }

    fn is_armed(&self) -> bool {
        self.state.load(Ordering::Acquire) == ARMED
    }

    /// Whether bytes of a request may be written now.
    fn admits(&self) -> bool {
        match self.state.load(Ordering::Acquire) {
            OPEN | PASSED => true,
            ARMED => {
                let may_send = self.may_send.lock().unwrap_or_else(PoisonError::into_inner);
                let is_allowed = may_send.is_allowed() || planted::is(Bug::FirstByteUnasked);
                let next = if is_allowed { PASSED } else { SHUT };
                // Given up at this very moment: then that stands.
                let decided = self.state.compare_exchange(ARMED, next, Ordering::AcqRel, Ordering::Acquire);
                is_allowed && decided.is_ok()
            }
            _ => false,
        }
    }

    fn is_shut(&self) -> bool {
        self.state.load(Ordering::Acquire) == SHUT
    }
}

/// A stream that asks before it writes the first byte of a request.
pub(crate) struct GuardedStream<S> {
    inner: S,
    first_byte: Arc<FirstByte>,
    /// HTTP/2 writes frames that belong to no request; HTTP/1.1 does not.
    frames: Option<Frames>,
}

impl<S> GuardedStream<S> {
    /// A stream on which HTTP/1.1 is spoken.
    pub(crate) fn http1(inner: S, first_byte: Arc<FirstByte>) -> Self {
        Self { inner, first_byte, frames: None }
    }

    /// A stream on which HTTP/2 is spoken.
    pub(crate) fn http2(inner: S, first_byte: Arc<FirstByte>) -> Self {
        Self { inner, first_byte, frames: Some(Frames::default()) }
    }

    /// How much of these bytes may be written now.
    fn admitted(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        let shut =
            || io::Error::new(io::ErrorKind::BrokenPipe, "the request was given up before it was sent");
        let head_at = match &self.frames {
            _ if self.first_byte.is_shut() => return Err(shut()),
            _ if !self.first_byte.is_armed() => return Ok(all),
            None => Some(0),
            Some(frames) => frames.find_head(slices),
        };
        match head_at {
            None => Ok(all),
            Some(0) if self.first_byte.admits() => Ok(all),
            Some(0) => Err(shut()),
            // What comes before the request goes first, so that the question is asked at its first byte.
            Some(before) => Ok(before),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let mut left = this.admitted(slices)?;
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        let written = if left == all {
            ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, slices))?
        } else {
            let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
            left = left.min(first.len());
            ready!(Pin::new(&mut this.inner).poll_write(cx, &first[..left]))?
        };
        if let Some(frames) = &mut this.frames {
            frames.pass(slices, written);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// What an HTTP/2 client writes before its first frame.
const PREFACE_BYTES: usize = 24;
/// The head of a frame: three bytes of length, one of type, one of flags, four of the stream's number.
const FRAME_HEAD_BYTES: usize = 9;
/// The type of the frame that begins a request.
const HEADERS: u8 = 1;

/// Where in its frames an HTTP/2 connection stands.
#[derive(Clone, Copy, Debug)]
struct Frames {
    /// Bytes until the next frame's head: of the preface, or of a payload.
    skip: usize,
    /// What was seen of that head.
    head: [u8; FRAME_HEAD_BYTES],
    seen: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { skip: PREFACE_BYTES, head: [0; FRAME_HEAD_BYTES], seen: 0 }
    }
}

impl Frames {
    /// Where in these bytes a request's head begins.
    fn find_head(&self, slices: &[IoSlice<'_>]) -> Option<usize> {
        let (mut frames, mut at) = (*self, 0);
        for slice in slices {
            if let Some(found) = frames.step(slice) {
                return Some((at + found).saturating_sub(3));
            }
            at += slice.len();
        }
        None
    }

    /// Notes that so many of these bytes were written.
    fn pass(&mut self, slices: &[IoSlice<'_>], mut written: usize) {
        for slice in slices {
            let count = written.min(slice.len());
            let mut bytes = &slice[..count];
            // Stops at every request's head, and goes on behind it.
            while let Some(found) = self.step(bytes) {
                bytes = &bytes[found + 1..];
            }
            written -= count;
        }
    }

    /// Reads these bytes, up to the byte that says that a frame begins a request. Returns where that was.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() - at);
                (self.skip, at) = (self.skip - skipped, at + skipped);
                continue;
            }
            self.head[self.seen] = bytes[at];
            self.seen += 1;
            at += 1;
            if self.seen == FRAME_HEAD_BYTES {
                let [high, middle, low, ..] = self.head;
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.seen = 0;
            } else if self.seen == 4 && self.head[3] == HEADERS {
                return Some(at - 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::io::AsyncWriteExt;

    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.extend(std::iter::repeat_n(7, usize::from(length)));
        frame
    }

    /// A stream into memory and what decides about it.
    fn guarded(is_http2: bool) -> (GuardedStream<Vec<u8>>, Arc<FirstByte>) {
        let first_byte = FirstByte::new();
        let guarded = Arc::clone(&first_byte);
        let stream = match is_http2 {
            true => GuardedStream::http2(Vec::new(), guarded),
            false => GuardedStream::http1(Vec::new(), guarded),
        };
        (stream, first_byte)
    }

    #[tokio::test]
    async fn what_may_be_sent_is_asked_at_the_first_byte_and_not_again() {
        let (mut stream, first_byte) = guarded(false);
        let allowed = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&allowed);
        first_byte.arm(MaySend::when(move || asked.load(Ordering::SeqCst)));
        stream.write_all(b"POST").await.unwrap();
        allowed.store(false, Ordering::SeqCst);
        stream.write_all(b" / HTTP/1.1").await.unwrap();
        assert_eq!(first_byte.give_up(), Written::Something);
        // The next request on the same connection would be asked again; this one was given up.
        assert!(stream.write_all(b"rest").await.is_err());
        assert_eq!(stream.inner, b"POST / HTTP/1.1");
    }

    #[tokio::test]
    async fn what_may_not_be_sent_is_not_written() {
        for is_http2 in [false, true] {
            let (mut stream, first_byte) = guarded(is_http2);
            if is_http2 {
                stream.write_all(&[0; PREFACE_BYTES]).await.unwrap();
            }
            let before = stream.inner.len();
            first_byte.arm(MaySend::when(|| false));
            assert!(stream.write_all(&frame(HEADERS, 3)).await.is_err());
            assert_eq!((stream.inner.len(), first_byte.give_up()), (before, Written::Nothing));
        }
    }

    #[tokio::test]
    async fn what_was_given_up_is_never_written() {
        let (mut stream, first_byte) = guarded(false);
        first_byte.arm(MaySend::always());
        assert_eq!(first_byte.give_up(), Written::Nothing);
        assert!(stream.write_all(b"POST").await.is_err());
        first_byte.arm(MaySend::always());
        assert!(stream.write_all(b"POST").await.is_err(), "a connection that was shut stays shut");
        assert!(stream.inner.is_empty());
    }

    #[tokio::test]
    async fn frames_of_no_request_pass_and_do_not_count_as_sent() {
        let (mut stream, first_byte) = guarded(true);
        stream.write_all(&[0; PREFACE_BYTES]).await.unwrap();
        first_byte.arm(MaySend::when(|| false));
        let (settings, ping) = (frame(4, 6), frame(6, 8));
        for byte in &settings {
            stream.write_all(&[*byte]).await.unwrap();
        }
        let both = [ping.clone(), frame(HEADERS, 20)].concat();
        assert!(stream.write_all(&both).await.is_err(), "the ping goes, the request does not");
        assert_eq!(stream.inner[PREFACE_BYTES..], [settings, ping].concat());
        assert_eq!(first_byte.give_up(), Written::Nothing);
    }

    #[tokio::test]
    async fn a_request_among_other_frames_is_found_however_they_are_cut() {
        let all =
            [vec![0; PREFACE_BYTES], frame(4, 6), frame(8, 4), frame(HEADERS, 30), frame(0, 9)].concat();
        for cut in 1..all.len() {
            let (mut stream, first_byte) = guarded(true);
            first_byte.arm(MaySend::always());
            let slices = [IoSlice::new(&all[..cut]), IoSlice::new(&all[cut..])];
            let mut done = 0;
            while done < all.len() {
                let mut left = slices;
                let mut rest: &mut [IoSlice<'_>] = &mut left;
                IoSlice::advance_slices(&mut rest, done);
                done += std::future::poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, rest))
                    .await
                    .unwrap();
            }
            assert_eq!((stream.inner, first_byte.give_up()), (all.clone(), Written::Something), "{cut}");
        }
    }
}
