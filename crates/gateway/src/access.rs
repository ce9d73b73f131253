//! The access log: one JSON object for each request, written when its answer has ended. Never shows a key, a query's
//! values or a credential.

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum_core::body::Body;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body::{Frame, SizeHint};
use semel_contract::time::Timestamp;
use semel_gate::KeyHash;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Lines that wait to be written; more are dropped rather than hold requests up.
const WAITING_MAX: usize = 10_000;
/// How long the last lines may take.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// The longest path that is shown.
const PATH_BYTES_MAX: usize = 2048;

/// Where requests are written down.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<SyncSender<Entry>>);

/// What the writing thread is told.
#[derive(Debug)]
enum Entry {
    Line(String),
    /// Everything before this is written: say so.
    Flush(oneshot::Sender<()>),
}

impl AccessLog {
    /// Nowhere.
    pub fn off() -> Self {
        Self(None)
    }

    /// To standard error.
    pub fn stderr() -> Self {
        Self::to(std::io::stderr())
    }

    /// To the end of a file.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self::to(file))
    }

    /// To this writer, from a thread of its own, which ends with the last clone of the log.
    pub fn to(mut writer: impl Write + Send + 'static) -> Self {
        let (lines, waiting) = sync_channel::<Entry>(WAITING_MAX);
        let writing = move || {
            while let Ok(entry) = waiting.recv() {
                // A log that cannot be written is no reason to refuse requests, and nobody may wait any more.
                let _ = match entry {
                    Entry::Line(line) => writer.write_all(line.as_bytes()).is_ok(),
                    Entry::Flush(done) => done.send(()).is_ok(),
                };
            }
        };
        match std::thread::Builder::new().name("access-log".to_owned()).spawn(writing) {
            Ok(_) => Self(Some(lines)),
            Err(_) => Self(None),
        }
    }

    /// Waits until what was noted is written, but not for long.
    pub(crate) async fn flush(&self) {
        let Some(lines) = &self.0 else { return };
        let (done, written) = oneshot::channel();
        if lines.try_send(Entry::Flush(done)).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIME_MAX, written).await;
        }
    }

    /// Begins a line.
    pub(crate) fn line(&self, parts: &Parts, peer: IpAddr) -> Line {
        Line::begin(parts, peer, self.0.is_some())
    }

    /// Writes a line once the answer has ended.
    pub(crate) fn note(&self, line: Line, id: &HeaderValue, response: Response<Body>) -> Response<Body> {
        let Some(lines) = &self.0 else { return response };
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let ending = Ending {
            status: response.status().as_u16(),
            bytes: 0,
            request_id: id.to_str().unwrap_or_default().to_owned(),
            guarantee: header("semel-guarantee").map(str::to_owned),
            outcome: header("semel-outcome").map(str::to_owned),
            replayed: header("idempotency-replayed") == Some("true"),
            key: response.extensions().get::<KeyHash>().map(|KeyHash(hash)| hash.clone()),
            line,
            lines: lines.clone(),
        };
        response.map(|body| Body::new(Counted { body, ending }))
    }
}

/// What is known of a request when it begins.
#[derive(Debug)]
pub(crate) struct Line {
    began: Instant,
    peer: IpAddr,
    /// Method and path, where they are written down.
    asked: Option<(String, String)>,
}

impl Line {
    fn begin(parts: &Parts, peer: IpAddr, is_written: bool) -> Self {
        let asked = || (parts.method.to_string(), shown_path(parts.uri.path()));
        Self { began: Instant::now(), peer, asked: is_written.then(asked) }
    }

    /// How long ago that was.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A path as it is written down: without a key in it, and not too long.
pub(crate) fn shown_path(path: &str) -> String {
    let path = hide_key(path);
    path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned()
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
    path.to_ascii_lowercase().contains("semel/keys/").then_some(path.len())
}

/// What is known when it ends; written when dropped.
struct Ending {
    line: Line,
    status: u16,
    bytes: u64,
    request_id: String,
    guarantee: Option<String>,
    outcome: Option<String>,
    replayed: bool,
    key: Option<String>,
    lines: SyncSender<Entry>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Line { began, peer, asked: Some((method, path)) } = &self.line else { return };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
        let ms = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX) as f64 / 1000.0;
        let mut line = json!({
            "time": now.to_string(),
            "method": method,
            "path": path,
            "status": self.status,
            "bytes": self.bytes,
            "ms": ms,
            "request_id": self.request_id,
            "guarantee": self.guarantee.as_deref().unwrap_or("none"),
            "replayed": self.replayed,
            "peer": peer.to_string(),
        });
        if let Some(key) = &self.key {
            line["key"] = json!(key);
        }
        if let Some(outcome) = &self.outcome {
            line["outcome"] = json!(outcome);
        }
        // Full: dropped. Requests are not held up for their log.
        if self.lines.try_send(Entry::Line(format!("{line}\n"))).is_err() {
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
            self.ending.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
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
