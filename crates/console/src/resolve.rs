//! Resolving an unknown outcome: a person says what became of it. The store refuses what comes too early.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use semel_contract::decide::Standing;
use semel_contract::outcome::NEVER_KEPT;
use semel_contract::time::{format_duration, parse_duration};
use semel_store::{Answer, Entry, Resolution, Resolved};
use serde::Deserialize;
use serde_json::Value;

use crate::Console;
use crate::access::Caller;
use crate::ask::{self, Told};
use crate::refusal::Refusal;
use crate::view::Bodies;

/// The largest body that a resolution may give.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resolving {
    r#as: Outcome,
    reason: Option<String>,
    status: Option<u16>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    body_base64: Option<String>,
    keep: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Applied,
    NotApplied,
}

pub(crate) async fn resolve(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Told(told): Told<Resolving>,
) -> Result<Json<Value>, Refusal> {
    let keep = told.keep.as_deref().map(parse_duration).transpose();
    let keep = keep.map_err(|error| Refusal::bad(format!("keep: {error}")))?;
    if let Some(keep) = keep.filter(|keep| *keep < console.resolved_kept) {
        // A shorter life would let a late retry run again.
        let (given, least) = (format_duration(keep), format_duration(console.resolved_kept));
        return Err(Refusal::bad(format!("keep={given}: at least {least}, so that no late retry is run")));
    }
    let reason = match (told.r#as, &told.reason) {
        // What took effect explains itself; that nothing happened must be explained.
        (Outcome::Applied, None) => String::new(),
        _ => ask::reason(told.reason.clone())?,
    };
    let resolution = resolution(told)?;
    let entry = console.record(&id).await?;
    let lifetime = console.resolved_lifetime(keep);
    let fence = entry.record.fence;
    if id.parse() != Ok(fence.number) {
        return Err(later_attempt(&console, &id, &entry).await?);
    }
    let resolved =
        console.store.resolve(&entry.id, fence, resolution, &lifetime, &caller.actor, &reason).await?;
    match resolved {
        Resolved::Done => {
            let (found, now) = console.store.look_up(&entry.id).await?;
            let entry = found.ok_or_else(|| Refusal::no_record(&id))?;
            console.in_full(&entry, now, Bodies::Hidden).await.map(Json)
        }
        Resolved::NotUnknown => Err(not_unknown(&console, &entry).await?),
        Resolved::TooEarly { until } => Err(Refusal::new(
            StatusCode::CONFLICT,
            "too-early",
            format!(
                "the request could still take effect until {until}; `not-applied` is accepted after that"
            ),
        )
        .with("not_before", until.to_string())),
    }
}

/// Why nothing is done to the record that a key has now, where another one was meant: what somebody found out is about that
/// attempt, and says nothing of a later one.
async fn later_attempt(console: &Console, id: &str, present: &Entry) -> Result<Refusal, Refusal> {
    let now = console.store.clock().await?.now;
    match Standing::of(Some(&present.record), now) {
        Standing::Unknown | Standing::Claimed | Standing::Abandoned => {
            let number = present.record.fence.number;
            let detail = format!(
                "record {id} was resolved, and its key was sent again since: the record of that attempt is {number}; find out \
                 what became of it, and resolve that one"
            );
            Ok(Refusal::new(StatusCode::CONFLICT, "superseded", detail).with("record", number.to_string()))
        }
        _ => not_unknown(console, present).await,
    }
}

async fn not_unknown(console: &Console, before: &Entry) -> Result<Refusal, Refusal> {
    let (found, now) = console.store.look_up(&before.id).await?;
    let standing = Standing::of(found.as_ref().map(|entry| &entry.record), now).name();
    let detail = format!("the outcome is not unknown: the record is {standing}");
    Ok(Refusal::new(StatusCode::CONFLICT, "not-unknown", detail).with("standing", standing))
}

/// What a caller says, as the store takes it.
fn resolution(told: Resolving) -> Result<Resolution, Refusal> {
    let body = match (told.body, told.body_base64) {
        (Some(_), Some(_)) => return Err(Refusal::bad("body and body_base64: give one of them")),
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(text)) => {
            Some(STANDARD.decode(text).map_err(|error| Refusal::bad(format!("body_base64: {error}")))?)
        }
        (None, None) => None,
    };
    if told.r#as == Outcome::NotApplied {
        if told.status.is_some() || body.is_some() || !told.headers.is_empty() {
            return Err(Refusal::bad(
                "as=not-applied has no answer: the request will be run when it is sent again",
            ));
        }
        return Ok(Resolution::NotApplied);
    }
    let Some(status) = told.status else {
        if body.is_some() || !told.headers.is_empty() {
            return Err(Refusal::bad("status: an answer needs one, such as 201"));
        }
        return Ok(Resolution::Applied(None));
    };
    if !(200..=599).contains(&status) {
        return Err(Refusal::bad(format!("status={status}: expected 200 to 599")));
    }
    let body = body.unwrap_or_default();
    if body.len() > BODY_BYTES_MAX {
        return Err(Refusal::bad(format!("the body has more than {BODY_BYTES_MAX} bytes")));
    }
    let mut headers = Vec::new();
    for (name, value) in told.headers {
        let name =
            http::HeaderName::try_from(&name).map_err(|_| Refusal::bad(format!("headers: {name:?}")))?;
        if NEVER_KEPT.contains(&name.as_str()) || name.as_str().starts_with("semel-") {
            return Err(Refusal::bad(format!("headers: {name} is never kept of an answer; leave it out")));
        }
        let value = http::HeaderValue::try_from(&value)
            .map_err(|_| Refusal::bad(format!("headers: the value of {name}")))?;
        headers.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
    }
    let body = Bytes::from(body);
    Ok(Resolution::Applied(Some(Answer { status, headers: headers.into(), body, outcome_unknown: false })))
}
