//! The access log: one line for each request, noted when its answer has ended and written by a thread of its own
//! (`writer`). Never shows a key, a query's values or a credential.

mod writer;

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::SyncSender;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum_core::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use http_body::{Frame, SizeHint};
use semel_gate::KeyHash;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use writer::LineForm;
use writer::{Ended, Entry};

/// How long the last lines may take.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// The longest path that is shown.
const PATH_BYTES_MAX: usize = 2048;

/// Where requests are written down.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: Option<SyncSender<Entry>>,
    /// One in so many requests is written down.
    one_in: NonZeroU32,
}

thread_local! {
    /// Requests of this thread since one was written down.
    static PASSED_OVER: Cell<u32> = const { Cell::new(0) };
}

impl AccessLog {
    /// Nowhere.
    pub fn off() -> Self {
        Self { lines: None, one_in: NonZeroU32::MIN }
    }

    /// To standard error.
    pub fn stderr(form: LineForm) -> Self {
        Self::to(std::io::stderr(), form)
    }

    /// To the end of a file, as JSON.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self::to(file, LineForm::Json))
    }

    /// To this writer, from a thread of its own, which ends with the last clone of the log. Where the system has no thread
    /// for it, nowhere.
    pub fn to(writer: impl Write + Send + 'static, form: LineForm) -> Self {
        Self { lines: writer::start(writer, form), ..Self::off() }
    }

    /// Writes down one in so many requests, of each thread.
    pub fn one_in(self, one_in: NonZeroU32) -> Self {
        Self { one_in, ..self }
    }

    /// Whether the next request is written down.
    fn takes_next(&self) -> bool {
        let has_turn = |one_in: u32| {
            let next = PASSED_OVER.get() + 1;
            PASSED_OVER.set(if next >= one_in { 0 } else { next });
            next >= one_in
        };
        self.lines.is_some() && (self.one_in == NonZeroU32::MIN || has_turn(self.one_in.get()))
    }

    /// Waits until what was noted is written, but not for long.
    pub(crate) async fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, written) = oneshot::channel();
        if lines.try_send(Entry::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIME_MAX, written).await;
        }
    }

    /// Begins a line.
    pub(crate) fn line(&self, parts: &Parts, peer: IpAddr) -> Line {
        Line::begin(parts, peer, self.takes_next())
    }

    /// Writes a line once the answer has ended.
    pub(crate) fn note(&self, line: Line, id: &HeaderValue, response: Response<Body>) -> Response<Body> {
        let Some(lines) = &self.lines else { return response };
        let header = |name| response.headers().get(name);
        let Some((method, path)) = line.asked else { return response };
        let ended = Ended {
            at: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            method,
            path,
            peer: line.peer,
            status: response.status().as_u16(),
            bytes: 0,
            request_id: id.clone(),
            guarantee: header("semel-guarantee").cloned(),
            outcome: header("semel-outcome").cloned(),
            is_replayed: header("idempotency-replayed").is_some_and(|value| value == "true"),
            key: response.extensions().get::<KeyHash>().map(|KeyHash(hash)| hash.clone()),
        };
        let ending = Ending { began: line.began, ended: Some(Box::new(ended)), lines: lines.clone() };
        response.map(|body| Body::new(Counted { body, ending }))
    }
}

/// What is known of a request when it begins.
#[derive(Debug)]
pub(crate) struct Line {
    began: Instant,
    peer: IpAddr,
    /// Method and path, where they are written down. The path is as it was asked: what is hidden of it is hidden when it is
    /// written.
    asked: Option<(Method, String)>,
}

impl Line {
    fn begin(parts: &Parts, peer: IpAddr, is_written: bool) -> Self {
        let asked = || (parts.method.clone(), parts.uri.path().to_owned());
        Self { began: Instant::now(), peer, asked: is_written.then(asked) }
    }

    /// How long ago that was.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A path as it is written down: without a key in it, and not too long.
pub(crate) fn shown_path(path: &str) -> Cow<'_, str> {
    match hide_key(path) {
        Cow::Borrowed(path) => Cow::Borrowed(&path[..path.floor_char_boundary(PATH_BYTES_MAX)]),
        Cow::Owned(mut path) => {
            path.truncate(path.floor_char_boundary(PATH_BYTES_MAX));
            Cow::Owned(path)
        }
    }
}

/// Where clients ask about their keys. The key is the part behind it.
const KEYS: &str = "/.well-known/semel/keys/";

/// A path without the key in it. With some identities the key is the only secret.
fn hide_key(path: &str) -> Cow<'_, str> {
    let Some(behind) = find_keys(path) else { return Cow::Borrowed(path) };
    let rest = path[behind..].find('/').map_or("", |slash| &path[behind + slash..]);
    Cow::Owned(format!("{KEYS}{{key}}{rest}"))
}

/// Where in a path a key begins. What only looks like a question about a key is not answered as one, but was meant as one:
/// nothing of it is shown.
fn find_keys(path: &str) -> Option<usize> {
    if path.starts_with(KEYS) {
        return Some(KEYS.len());
    }
    const NAME: &[u8] = b"semel/keys/";
    path.as_bytes().windows(NAME.len()).any(|part| part.eq_ignore_ascii_case(NAME)).then_some(path.len())
}

/// An answer that has not ended yet: noted when it is dropped.
struct Ending {
    began: Instant,
    ended: Option<Box<Ended>>,
    lines: SyncSender<Entry>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(mut ended) = self.ended.take() else { return };
        ended.at = SystemTime::now();
        ended.took = self.began.elapsed();
        // Full: dropped. Requests are not held up for their log.
        if self.lines.try_send(Entry::Request(ended)).is_err() {
            metrics::counter!("semel_gateway_access_lines_dropped_total").increment(1);
        }
    }
}

/// A body whose bytes are counted.
struct Counted {
    body: Body,
    ending: Ending,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            if let Some(ended) = &mut self.ending.ended {
                ended.bytes += bytes;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_without_the_key_in_it() {
        for (path, shown) in [
            ("/.well-known/semel/keys/f92701a0", "/.well-known/semel/keys/{key}"),
            ("/.well-known/semel/keys/f92701a0/seal", "/.well-known/semel/keys/{key}/seal"),
            ("/.well-known/semel/keys/", "/.well-known/semel/keys/{key}"),
            ("/.WELL-KNOWN/semel/keys/f92701a0", "/.well-known/semel/keys/{key}"),
            ("/orders/1", "/orders/1"),
        ] {
            assert_eq!(hide_key(path), shown, "{path}");
        }
    }
}
