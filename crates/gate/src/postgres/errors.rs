//! What an error of the database means for a handler's transaction: whether another one stood in its way, whether it was refused,
//! and whether the handler was outside of it. Decides; asks nobody.

use semel_store::StoreError;
use semel_store::postgres::once::says_outside;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::transaction::was_refused;
use crate::grant::SettleError;

/// How a transaction did not end well.
pub(super) enum Ended {
    /// It was rolled back, and so may be begun again: another transaction stood in its way.
    InTheWay(SettleError),
    /// It is over.
    Over(SettleError),
}

impl Ended {
    pub(super) fn error(self) -> SettleError {
        match self {
            Ended::InTheWay(error) | Ended::Over(error) => error,
        }
    }
}

/// Nothing was begun, or nothing of it stays.
fn away(error: Error) -> SettleError {
    SettleError::Store(StoreError::Unavailable(error_chain(&error)))
}

pub(super) fn silent_store(why: &(dyn std::error::Error + Send + Sync)) -> SettleError {
    SettleError::Store(StoreError::Unavailable(why.to_string()))
}

fn error_chain(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What the functions themselves refuse is the program's fault, and no outage: to try it again would be in vain.
pub(super) fn not_entered(error: Error) -> SettleError {
    match error.code().is_some_and(|code| code.code().starts_with("SM0")) {
        true => error.into(),
        false => away(error),
    }
}

fn stands_in_the_way(error: &Error) -> bool {
    let ways = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    // Where the lock did not decide, the record's index does.
    let is_taken = error.code() == Some(&SqlState::UNIQUE_VIOLATION) && is_of_semel(error);
    is_taken || error.code().is_some_and(|code| ways.contains(code))
}

/// Whether it is one of semel's own tables that an error is about.
fn is_of_semel(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.schema() == Some("semel"))
}

/// What a transaction came to that the server refused.
pub(super) fn ended(error: Error) -> Ended {
    if stands_in_the_way(&error) {
        return Ended::InTheWay(SettleError::Superseded);
    }
    if error.as_db_error().is_some_and(|error| says_outside(error.code().code(), error.message())) {
        return Ended::Over(SettleError::Outside(error.into()));
    }
    // A constraint that is checked late is the handler's own business; but for the one that wants the key left.
    let is_constraint =
        error.code().is_some_and(|code| code.code().starts_with("23")) && !is_of_semel(&error);
    Ended::Over(match was_refused(&error) {
        true if is_constraint => error.into(),
        true => SettleError::Refused(error.into()),
        // The session is gone, and COMMIT was not said.
        false => away(error),
    })
}

/// Whether the handler's own statement failed because of another transaction.
pub(super) fn is_in_the_way(error: &SettleError) -> bool {
    match error {
        SettleError::Failed(why) => why.downcast_ref::<Error>().is_some_and(stands_in_the_way),
        SettleError::Superseded
        | SettleError::Refused(_)
        | SettleError::Outside(_)
        | SettleError::Store(_)
        | SettleError::Unknown(_) => false,
    }
}
