//! What callers ask: queries and bodies, parsed at the door. An unknown parameter is an error: a filter that is misspelt
//! and ignored would show too much.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use http::StatusCode;
use http::request::Parts;
use semel_contract::record::State;
use semel_contract::time::{Timestamp, parse_duration};
use semel_store::Order;
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// Rows of one page, unless the caller says otherwise.
const PAGE: u32 = 50;
/// Rows of the largest page.
const PAGE_MAX: u32 = 1000;

/// A query whose every parameter is known.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Asked(asked)),
            Err(error) => Err(Refusal::bad(error.body_text())),
        }
    }
}

/// A JSON body whose every member is known. Without a body it is `{}`. A body of another type is refused: a form of a
/// web page can send one without asking.
pub(crate) struct Told<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Told<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let content_type = request.headers().get(http::header::CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", error.body_text())
        })?;
        let is_json = content_type.as_ref().and_then(|line| line.to_str().ok()).is_some_and(|line| {
            line.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
        });
        if !is_json && (!bytes.is_empty() || content_type.is_some()) {
            let why = "the body must be application/json";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", why));
        }
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Told).map_err(|error| Refusal::bad(format!("the body: {error}")))
    }
}

/// How many rows a caller gets.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Refusal> {
    match asked.unwrap_or(PAGE) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        other => Err(Refusal::bad(format!("limit={other}: expected 1 to {PAGE_MAX}"))),
    }
}

/// A number of a row or record.
pub(crate) fn number(name: &str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Refusal::bad(format!("{name}={text:?}: expected a number such as 42")))
    };
    text.map(parse).transpose()
}

/// A state by its name.
pub(crate) fn state(text: Option<&str>) -> Result<Option<State>, Refusal> {
    let names = || State::ALL.map(State::name).join(", ");
    let parse = |text: &str| {
        State::ALL
            .into_iter()
            .find(|state| state.name() == text)
            .ok_or_else(|| Refusal::bad(format!("state={text:?}: expected one of {}", names())))
    };
    text.map(parse).transpose()
}

/// Which of a list come first.
pub(crate) fn order(text: Option<&str>) -> Result<Order, Refusal> {
    match text {
        None | Some("oldest") => Ok(Order::OldestFirst),
        Some("newest") => Ok(Order::NewestFirst),
        Some(other) => Err(Refusal::bad(format!("order={other:?}: expected one of oldest, newest"))),
    }
}

/// The moment so long ago.
pub(crate) fn before(older_than: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
    before_named("older_than", older_than, now)
}

/// The same for a parameter of another name.
pub(crate) fn before_named(
    name: &str,
    age: Option<&str>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Refusal> {
    let parse = |text: &str| {
        parse_duration(text)
            .map(|age| now.minus(age))
            .map_err(|error| Refusal::bad(format!("{name}={text:?}: {error}")))
    };
    age.filter(|text| !text.is_empty()).map(parse).transpose()
}

/// The longest reason.
const REASON_BYTES_MAX: usize = 2000;

/// Why somebody does something; never empty, since the trail is read by others. Asked before anything is done.
pub(crate) fn reason(text: Option<String>) -> Result<String, Refusal> {
    optional_reason(text)?.ok_or_else(|| Refusal::bad("reason: say why; it stands in the audit trail"))
}

/// The same where nobody has to say it.
pub(crate) fn optional_reason(text: Option<String>) -> Result<Option<String>, Refusal> {
    let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    match text {
        Some(text) if text.len() > REASON_BYTES_MAX => {
            Err(Refusal::bad(format!("reason: at most {REASON_BYTES_MAX} bytes")))
        }
        given => Ok(given),
    }
}
