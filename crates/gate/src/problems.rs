//! Refusals that several steps of the walk have in common. Nothing was executed under any of them.

use std::time::Duration;

use semel_contract::problem::{Kind, Problem};
use semel_store::StoreError;

/// When a client that found the store away should come back.
pub(crate) const STORE_RETRY_SECONDS: u64 = 1;

/// This gate claims nothing any more: it is shutting down, or its configuration was replaced.
pub(crate) fn closed() -> Problem {
    let problem =
        Problem::new(Kind::Overloaded, "the gate is being replaced; send it again with the same key");
    problem.retry_after(Duration::from_secs(STORE_RETRY_SECONDS))
}

/// This process stood still for so long that it no longer knows where others claim.
pub(crate) fn held_up() -> Problem {
    let problem = Problem::new(Kind::Overloaded, "the gate was held up; send it again with the same key");
    problem.retry_after(Duration::from_secs(STORE_RETRY_SECONDS))
}

/// The store did not answer: nothing was executed.
pub(crate) fn store_away(error: &StoreError) -> Problem {
    tracing::warn!(%error, "the store did not answer");
    Problem::from(Kind::StoreUnavailable).retry_after(Duration::from_secs(STORE_RETRY_SECONDS))
}

/// The same request was made with another credential.
pub(crate) fn credential_changed() -> Problem {
    Problem::new(
        Kind::CredentialChanged,
        "this key was used for the same request with another credential; it is not run again",
    )
}
