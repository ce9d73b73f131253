//! Asking a part's admin API from a page: paths filled in, answers read, refusals in words.

use std::collections::BTreeMap;

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode, header};
use serde_json::Value;

use super::text::encoded;
use crate::access::{self, Caller, Door, Right};
use crate::part::Part;

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What is said of a larger one.
const TOO_LARGE: &str =
    "the answer is larger than the 16 MiB that a page shows, or broke off: look at it with the command line";

/// An answer, read.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) value: Value,
}

impl Answer {
    /// What was asked for, or in words why there is none.
    pub(crate) fn done(self) -> Result<Value, (StatusCode, String)> {
        if self.status.is_success() {
            return Ok(self.value);
        }
        let said =
            ["detail", "message", "reason", "error"].iter().find_map(|name| self.value[*name].as_str());
        let why = said.map_or_else(|| format!("it answered {}", self.status), str::to_owned);
        Err((self.status, why))
    }
}

/// Asks a part.
pub(crate) async fn ask(
    part: &dyn Part,
    caller: &Caller,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(crate::access::ACTOR, visible_ascii(&caller.actor))
        .extension(caller.clone());
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    let Ok(request) = request.body(Body::from(body)) else {
        let value = serde_json::json!({"detail": "nothing has such a name"});
        return Answer { status: StatusCode::NOT_FOUND, value };
    };
    let (parts, body) = part.ask(request).await.into_parts();
    let Ok(bytes) = to_bytes(body, ANSWER_BYTES_MAX).await else {
        // What was done is done, whatever cannot be shown of it.
        let status = if method == "GET" { StatusCode::INSUFFICIENT_STORAGE } else { parts.status };
        return Answer { status, value: serde_json::json!({"detail": TOO_LARGE}) };
    };
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let value = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap_or_else(|_| text())
    };
    Answer { status: parts.status, value }
}

/// Asks for something to be shown.
pub(crate) async fn look(
    part: &dyn Part,
    caller: &Caller,
    path: &str,
) -> Result<Value, (StatusCode, String)> {
    ask(part, caller, "GET", path, None).await.done()
}

/// What a part has counted, in Prometheus' text form; nothing where it does not count, or cannot tell now.
pub(crate) async fn numbers(part: &dyn Part) -> Option<String> {
    if let Some(text) = part.numbers() {
        return Some(text);
    }
    let console = Caller { right: Right::Read, actor: "console".to_owned(), door: Door::Open };
    match look(part, &console, part.sheet().numbers?).await {
        Ok(Value::String(text)) => Some(text),
        Ok(_) | Err(_) => None,
    }
}

fn visible_ascii(text: &str) -> String {
    text.chars()
        .filter(|char| char.is_ascii_graphic() || *char == ' ')
        .take(access::ACTOR_SHOWN_MAX)
        .collect()
}

/// Fills the names in braces of a path in.
pub(crate) fn filled(template: &str, value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut path = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}')?;
        path.push_str(before);
        path.push_str(&encoded(&value(name).filter(|value| !value.is_empty())?));
        rest = behind;
    }
    path.push_str(rest);
    Some(path)
}

/// Names and values of a page's path.
pub(crate) type Captures = BTreeMap<String, String>;

/// A query of these pairs.
pub(crate) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<String> =
        pairs.into_iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    pairs.join("&")
}
