//! Answers: what is kept of responses, and how they become responses again.

use std::time::Duration;

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, response};
use http_body_util::BodyExt;
use semel_contract::outcome::NEVER_KEPT;
use semel_contract::planted::{self, Bug};
use semel_contract::problem::render::Rendered;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{Hashes, Profile, Replay};
use semel_contract::record::Guarantee;
use semel_store::{Answer, Entry};

use crate::route::Route;

/// When a client that was told "unknown" may ask again.
const UNKNOWN_RETRY: Duration = Duration::from_secs(30);

pub(crate) const GUARANTEE: HeaderName = HeaderName::from_static("semel-guarantee");
const RETENTION: HeaderName = HeaderName::from_static("semel-retention");
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("semel-outcome");
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const STRIPE_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The answer that is recorded of a handler's response. Its body must be at hand: a stream has no end that could be
/// recorded with the effect.
pub(crate) fn record_of(response: impl IntoResponse) -> Result<Answer, BodyStreams> {
    let (parts, body) = response.into_response().into_parts();
    match body.collect().now_or_never() {
        Some(Ok(collected)) => Ok(kept(&parts, collected.to_bytes(), false)),
        Some(Err(_)) | None => Err(BodyStreams),
    }
}

/// A response whose body is not at hand cannot be recorded inside a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyStreams;

impl std::fmt::Display for BodyStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an answer that is recorded with its effect cannot be a stream; give it whole")
    }
}

impl std::error::Error for BodyStreams {}

/// What is kept of a response.
pub(crate) fn kept(parts: &response::Parts, body: Bytes, outcome_unknown: bool) -> Answer {
    let named_by_connection: Vec<String> = parts
        .headers
        .get_all(http::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let is_kept = |name: &HeaderName| {
        let name = name.as_str();
        (!NEVER_KEPT.contains(&name) || (name == "set-cookie" && planted::is(Bug::CookieKept)))
            && !name.starts_with("semel-")
            && !named_by_connection.iter().any(|named| named == name)
    };
    let headers = parts.headers.iter().filter(|(name, _)| is_kept(name));
    Answer {
        status: parts.status.as_u16(),
        headers: headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect(),
        body,
        outcome_unknown,
    }
}

/// The response that a kept answer stands for.
pub(crate) fn restored(answer: &Answer) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body.clone()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    for (name, value) in answer.headers.iter() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    if answer.outcome_unknown {
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
    }
    response
}

/// A record's answer, said again.
pub(crate) fn replayed(profile: &Profile, answer: &Answer) -> Response<Body> {
    let mut response = restored(answer);
    match profile.replay {
        Replay::Verbatim => {}
        // What was refused or may not have taken effect is never dressed up as a success.
        Replay::Duplicate { .. } if answer.outcome_unknown || answer.status >= 400 => {}
        Replay::Duplicate { status } => {
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            if let Some(body) = said_again(&answer.body) {
                *response.body_mut() = Body::from(body);
            }
        }
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    if profile.wire.stripe_headers {
        response.headers_mut().insert(STRIPE_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// An answer that is a JSON object, with the member that tells it from the first one.
fn said_again(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let members = text.strip_prefix('{')?.strip_suffix('}')?;
    let parsed: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    // What it says of itself stays; everything else is left as it is spelled.
    match (parsed.contains_key("duplicate"), parsed.is_empty()) {
        (true, _) => None,
        (false, true) => Some(r#"{"duplicate":true}"#.to_owned()),
        (false, false) => Some(format!(r#"{{{members},"duplicate":true}}"#)),
    }
}

/// Marks a keyed answer with what is promised about it.
pub(crate) fn mark(headers: &mut HeaderMap, profile: &Profile, guarantee: Guarantee) {
    headers.insert(GUARANTEE, HeaderValue::from_static(guarantee.name()));
    if guarantee != Guarantee::None {
        headers.insert(RETENTION, HeaderValue::from(profile.lifetime.retry_window.as_secs()));
    }
}

/// A problem as a response.
pub(crate) fn refused(route: &Route, problem: &Problem, request_id: &str) -> Response<Body> {
    let profile = &route.profile;
    let mut response =
        from_rendered(profile.wire.render(problem, Some(profile.status_of(problem.kind)), request_id));
    crate::limit::headers(route, problem, response.headers_mut());
    if problem.fields.iter().any(|(name, _)| *name == "outcome") {
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
    }
    response
}

/// A problem as what is kept of it: the guard's refusals are recorded like answers.
pub(crate) fn kept_refusal(profile: &Profile, problem: &Problem, request_id: &str) -> Answer {
    let rendered = profile.wire.render(problem, None, request_id);
    let headers =
        rendered.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into_bytes()));
    Answer {
        status: rendered.status,
        headers: headers.collect(),
        body: Bytes::from(rendered.body.clone()),
        outcome_unknown: false,
    }
}

fn from_rendered(rendered: Rendered) -> Response<Body> {
    let mut response = Response::new(Body::from(rendered.body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in rendered.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The words of a refusal that a record leads to.
pub(crate) fn refusal(profile: &Profile, kind: Kind, entry: Option<&Entry>, received: Hashes<'_>) -> Problem {
    match (kind, entry) {
        (Kind::FingerprintMismatch, Some(entry)) => {
            let record = &entry.record;
            let fingerprint = record.fingerprint.as_ref().map(|print| &print.bytes);
            profile.mismatch_problem(Hashes { fingerprint, payload: record.payload_hash.as_ref() }, received)
        }
        (Kind::OutcomeUnknown, _) => {
            let problem =
                Problem::new(kind, "ask again later with the same key; a new key could do it twice");
            problem.retry_after(UNKNOWN_RETRY)
        }
        (Kind::AnswerNotKept, Some(entry)) => not_kept(entry),
        (other, _) => Problem::from(other),
    }
}

fn not_kept(entry: &Entry) -> Problem {
    let answer = entry.answer.as_ref();
    let words = match answer {
        Some(answer) if answer.outcome_unknown || answer.status >= 500 => {
            "it ended in a server error; whether it took effect is not known"
        }
        Some(answer) if answer.status >= 400 => {
            "it was refused by the service, with an answer that is not kept"
        }
        Some(_) | None => "it took effect; do not send it again under another key",
    };
    let mut problem = Problem::new(Kind::AnswerNotKept, words);
    let Some(answer) = answer else { return problem };
    if answer.outcome_unknown {
        problem = problem.with("outcome", "unknown");
    }
    // Somebody found out that it took effect, but not with which answer.
    let problem = if answer.status == 0 { problem } else { problem.with("originalStatus", answer.status) };
    match answer.headers.iter().find(|(name, _)| name == "location") {
        Some((_, location)) => problem.with("location", String::from_utf8_lossy(location).into_owned()),
        None => problem,
    }
}
