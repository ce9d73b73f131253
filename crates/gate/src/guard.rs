//! The guard against old actions: reads the times in a body and asks the contract. Never runs on a replay.

use semel_contract::json::{Json, Pointer};
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::Guard;
use semel_contract::request::Body;
use semel_contract::time::Timestamp;

/// Refuses an action that is too old or too far in the future.
pub(crate) fn check(guard: &Guard, body: &Body<'_>, now: Timestamp) -> Result<(), Problem> {
    let generated = timestamp(body, &guard.generated_at)?
        .ok_or_else(|| Problem::new(Kind::TimestampInvalid, format!("{} is required", guard.generated_at)))?;
    let submitted = match &guard.submitted_at {
        // It is for the log unless the options say otherwise, so a bad one is as good as none.
        Some(pointer) => timestamp(body, pointer).ok().flatten(),
        None => None,
    };
    guard.bounds.check(generated, submitted, now)
}

/// The timestamp that a pointer addresses, if there is anything.
pub(crate) fn timestamp(body: &Body<'_>, pointer: &Pointer) -> Result<Option<Timestamp>, Problem> {
    let invalid = |why: String| Problem::new(Kind::TimestampInvalid, format!("{pointer}: {why}"));
    match body.json().and_then(|document| document.get(pointer)) {
        None => Ok(None),
        Some(Json::Text(text)) => {
            Timestamp::parse(text).map(Some).map_err(|error| invalid(error.to_string()))
        }
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            Err(invalid("expected an RFC 3339 date-time as a string".to_owned()))
        }
    }
}
