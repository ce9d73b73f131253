//! A client that does not give up: it sends a request again with the same key until it is answered, more and more seldom,
//! and remembers every answer on the way.

use std::hash::{Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// The pause before the second attempt; it doubles. Clients that come back at once keep a server down that just came up.
const PAUSE_FIRST: Duration = Duration::from_millis(400);
/// The longest pause.
const PAUSE_LONGEST: Duration = Duration::from_millis(6400);
/// The least time between two attempts that are not first ones, of all clients together. Clients that keep the machine
/// busy with being refused would be all that is measured.
const RETRY_EVERY: Duration = Duration::from_micros(1500);

/// One attempt and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) name: String,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
    pub(crate) status: u16,
    /// The last word of the problem's type; empty where the handler answered.
    pub(crate) problem: String,
    pub(crate) says_when_to_retry: bool,
    pub(crate) says_unknown: bool,
    pub(crate) body: String,
}

/// What the client knows in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It took effect.
    Acknowledged,
    /// Nobody knows; asking again would not help.
    Unknown,
    /// The client's own patience ended.
    Unanswered,
}

/// Everything that became of one key.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) key: String,
    pub(crate) verdict: Verdict,
    pub(crate) attempts: Vec<Attempt>,
}

/// Sends one request.
pub(crate) async fn attempt(app: &Router, path: &str, key: &str) -> Attempt {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{key}#{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let request = Request::post(path)
        .header("x-user", "alice")
        .header("x-attempt", &name)
        .header("idempotency-key", key)
        .body(Body::from(format!("{{\"order\":\"{key}\"}}")))
        .expect("a request");
    let sent = Instant::now();
    let response = app.clone().oneshot(request).await.expect("the gate answers");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Attempt {
        name,
        sent,
        answered: Instant::now(),
        status: parts.status.as_u16(),
        problem: problem(&body),
        says_when_to_retry: parts.headers.contains_key("retry-after"),
        says_unknown: says_unknown(&parts.headers),
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

fn problem(body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    body["type"].as_str().and_then(|text| text.rsplit(':').next()).unwrap_or("").to_owned()
}

fn says_unknown(headers: &HeaderMap) -> bool {
    headers.get("semel-outcome").is_some_and(|value| value == "unknown")
}

/// Sends a request until it is answered, or until the client's patience ends.
pub(crate) async fn insist(app: &Router, path: &str, key: &str, until: Instant) -> Story {
    insist_until(app, path, key, move || until).await
}

/// The same where the end of its patience is not known from the beginning.
pub(crate) async fn insist_until(app: &Router, path: &str, key: &str, until: impl Fn() -> Instant) -> Story {
    let mut attempts = Vec::new();
    let mut pause = PAUSE_FIRST;
    let verdict = loop {
        let attempt = attempt(app, path, key).await;
        let verdict = judge(&attempt, path, key);
        attempts.push(attempt);
        match verdict {
            Some(verdict) => break verdict,
            None if Instant::now() >= until() => break Verdict::Unanswered,
            None => {
                tokio::time::sleep(spread(pause, attempts.len(), key)).await;
                tokio::time::sleep_until(next_retry().min(until()).into()).await;
            }
        }
        pause = (pause * 2).min(PAUSE_LONGEST);
    };
    Story { key: key.to_owned(), verdict, attempts }
}

/// Between half and all of a pause: a different part for each key and each attempt, and the same in every run.
fn spread(pause: Duration, attempt: usize, key: &str) -> Duration {
    let mut hash = std::hash::DefaultHasher::new();
    (attempt, key).hash(&mut hash);
    pause / 2 + pause.mul_f64((hash.finish() % 1000) as f64 / 2000.0)
}

/// When the next attempt that is not a first one may be made.
fn next_retry() -> Instant {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().expect("no panic");
    let now = Instant::now();
    let next = last.map_or(now, |last| now.max(last + RETRY_EVERY));
    *last = Some(next);
    next
}

/// What an answer means; `None` asks again. Whatever should never be said ends the test.
fn judge(attempt: &Attempt, path: &str, key: &str) -> Option<Verdict> {
    let is_atomic = path != "/fenced";
    match (attempt.status, attempt.problem.as_str()) {
        (201, _) => {
            assert_eq!(attempt.body, key, "an answer belongs to its key");
            Some(Verdict::Acknowledged)
        }
        (409, "in-flight" | "superseded" | "too-many-waiters") => None,
        (409, "outcome-unknown") if !is_atomic => Some(Verdict::Unknown),
        // A fenced handler that does not know says so, and so does its record.
        (500 | 502, _) if !is_atomic && attempt.says_unknown => Some(Verdict::Unknown),
        // An atomic attempt that broke off was rolled back, and may be made again.
        (409, "") if is_atomic => None,
        (500, "") | (502, "upstream-reset") if is_atomic => None,
        // The route's deadline was up while an earlier attempt still held the key.
        (504, "handler-timeout") if path == "/in-time" => None,
        (503, _) => None,
        _ => panic!("{path}: nobody expects {attempt:?}"),
    }
}
