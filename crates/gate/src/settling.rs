//! For integrations with other database libraries: what a library needs to settle a [`Grant`] inside a transaction of its
//! own. Handlers do not need it. `semel-sqlx` is built on it.
//!
//! The order is: take the store, make the answer, write the settlement in the transaction with the grant's fence, commit,
//! find out about a commit whose result was lost, and only then [`confirm`].

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use http::Response;
use semel_contract::outcome::{Keep, Told};
use semel_store::{Answer, ClaimStore};

use crate::answer;
use crate::grant::{Grant, NotGranted, SettleError};

/// The store in which the gate keeps its records, when it is of this kind.
///
/// # Errors
/// It is of another kind.
pub fn store_of<S: ClaimStore>(grant: &Grant) -> Result<&S, NotGranted> {
    grant.store()
}

/// The answer to record for a handler's response: its status, its body, and those of its headers that may be kept.
///
/// # Errors
/// Its body is a stream.
pub fn answer_of(response: impl IntoResponse) -> Result<Answer, SettleError> {
    answer::record_of(response).map_err(SettleError::failed)
}

/// Says that the transaction with this answer was committed. The layer then answers from the record; so does the response
/// that is returned.
///
/// Call it only after a commit that is known to have happened: what is confirmed here is told to the client.
pub fn confirm(grant: &Grant, answer: Answer) -> Response<Body> {
    let response = answer::restored(&answer);
    grant.note_settled(answer);
    response
}

/// Says that the handler ended the transaction of its grant by itself, so that whatever it wrote since may stand without a
/// record. The gate then marks the outcome of the key as unknown, whatever the handler answers. Return
/// [`SettleError::Outside`] besides.
pub fn note_outside(grant: &Grant) {
    grant.note_outside();
}

/// Whether an answer frees the key, as the route's profile or its `Semel-Outcome` says: its transaction is rolled back, and
/// nothing is recorded of it.
///
/// # Errors
/// It says that it was applied, with a status that cannot be recorded. Its transaction is rolled back too.
pub fn is_released(grant: &Grant, response: &Response<Body>) -> Result<bool, SettleError> {
    let (profile, status) = (grant.profile(), response.status());
    let rule = profile.record.iter().find(|rule| (rule.from..=rule.to).contains(&status.as_u16()));
    let is_released = status.is_server_error()
        || status.is_informational()
        || rule.is_some_and(|rule| rule.keep == Keep::Release);
    match response.headers().get(answer::OUTCOME).and_then(|value| Told::parse(value.as_bytes())) {
        Some(Told::NotApplied) => Ok(true),
        Some(Told::Applied) if is_released => {
            let why = format!("an answer of {status} cannot be recorded as applied");
            Err(SettleError::Refused(why.into()))
        }
        Some(Told::Applied) | None => Ok(is_released),
    }
}
