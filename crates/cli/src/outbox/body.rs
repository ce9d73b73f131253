//! What a handler of the outbox's surface works on, and how it reads a request's body: within bounds, as JSON that says so.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::middleware::Next;
use http_body_util::BodyExt;
use semel_delivery::credentials::Wallet;
use semel_delivery::receive::Receiving;
use semel_delivery::{Invalid, Operator, Outbox, Settings};
use semel_http::{BodyRoom, UnreadBody};
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Refusal, refusal};
use super::mesh::Mesh;

/// How much, and how long, of a body that is too large is read before the answer.
const DRAIN_BYTES_MAX: usize = 16 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// What the handlers work on.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) outbox: Outbox,
    pub(crate) wallet: Arc<Wallet>,
    /// Where messages for topics and members go.
    pub(crate) mesh: Option<Arc<Mesh>>,
    /// The lines that are followed; a command that opened the file follows none.
    pub(crate) receiving: Option<Arc<Receiving>>,
    /// Room for what callers send.
    pub(crate) bodies: Arc<BodyRoom>,
}

pub(super) type Answered = Result<Response<Body>, Refusal>;

/// The largest envelope: a body may double in size as base64 or escapes.
pub(crate) fn envelope_bytes_max(settings: &Settings) -> usize {
    settings.payload_bytes_max * 2 + (64 << 10)
}

/// Reads the whole body before the handlers. Refuses one that says that it is too large or no JSON, one for which there is no
/// room, and one that does not come.
pub(super) async fn read_first(State(api): State<Api>, request: Request, next: Next) -> Response<Body> {
    match read(&api, request).await {
        Ok((head, body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(refused) => *refused,
    }
}

/// A request's head and its whole body, or what is said instead.
pub(super) async fn read(api: &Api, request: Request) -> Result<(Parts, Bytes), Box<Response<Body>>> {
    let body_bytes_max = envelope_bytes_max(api.outbox.settings());
    let request = semel_http::receive(request, semel_http::Limits::default().body_timeout);
    let (head, body) = fits(body_bytes_max, request).await?.into_parts();
    match api.bodies.read(body, body_bytes_max).await {
        Ok(body) => Ok((head, body)),
        Err(unread) => Err(Box::new(refuse_unread(&unread))),
    }
}

/// What is said of a body that was not read. Nothing was accepted.
fn refuse_unread(unread: &UnreadBody) -> Response<Body> {
    let refused = |status, code| refusal(status, code, &unread.problem().detail);
    match unread {
        UnreadBody::TooLarge(_) => too_large(),
        UnreadBody::NoRoom => {
            let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, "overloaded");
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        UnreadBody::TooSlow(_) => refused(StatusCode::REQUEST_TIMEOUT, "too-slow"),
        UnreadBody::BrokeOff(_) => refused(StatusCode::BAD_REQUEST, "malformed"),
    }
}

/// The request, where its body may be read. What the caller of one that is too large is writing is read first, within
/// bounds: a caller that is cut off while it writes does not see the answer.
async fn fits(body_bytes_max: usize, request: Request) -> Result<Request, Box<Response<Body>>> {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| length > body_bytes_max) {
        // Whether it all came does not matter.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, drain(request.into_body())).await;
        return Err(Box::new(too_large()));
    }
    if !is_empty(headers) && !is_json(headers) {
        let message = "send JSON, with Content-Type: application/json";
        return Err(Box::new(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", message)));
    }
    Ok(request)
}

/// Reads on without keeping anything.
async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn too_large() -> Response<Body> {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "the envelope is larger than a message may be")
}

fn is_empty(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
}

/// A body is JSON and says so: a form in a browser cannot say that.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Who acts where nobody is named: a program at the door.
const CALLER: &str = "caller";
/// The longest name of somebody.
const NAME_CHARS_MAX: usize = 200;

/// Who asks, as the guard of the admin address or a command has named them.
pub(super) fn named(headers: &HeaderMap) -> Option<&str> {
    let name = headers.get(semel_console::ACTOR).and_then(|name| name.to_str().ok()).map(str::trim);
    name.filter(|name| !name.is_empty() && name.len() <= NAME_CHARS_MAX)
}

/// The outbox in the name of whoever asks.
pub(super) fn acting(api: &Api, headers: &HeaderMap, reason: Option<&str>) -> Result<Outbox, Refusal> {
    let operator = Operator::new(named(headers).unwrap_or(CALLER), reason);
    let malformed = |why: Invalid| refusal(StatusCode::BAD_REQUEST, "malformed", &why.to_string());
    Ok(api.outbox.by(operator.map_err(malformed)?))
}

/// The same, with the reason in a body that needs none.
pub(super) fn acting_for(api: &Api, headers: &HeaderMap, body: BodyRead) -> Result<Outbox, Refusal> {
    let body: Value = serde_json::from_slice(&whole(body)?).unwrap_or_default();
    acting(api, headers, body["reason"].as_str())
}

pub(super) type BodyRead = Result<Bytes, axum::extract::rejection::BytesRejection>;

pub(super) fn whole(body: BodyRead) -> Result<Bytes, Refusal> {
    body.map_err(|error| {
        Refusal::from(match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(),
            _ => refusal(StatusCode::BAD_REQUEST, "malformed", &error.body_text()),
        })
    })
}

pub(super) fn parsed<T: for<'a> Deserialize<'a> + Default>(body: &Bytes) -> Result<T, Refusal> {
    if body.is_empty() {
        return Ok(T::default());
    }
    let malformed =
        |error: serde_json::Error| refusal(StatusCode::BAD_REQUEST, "malformed", &error.to_string());
    serde_json::from_slice(body).map_err(|error| malformed(error).into())
}
