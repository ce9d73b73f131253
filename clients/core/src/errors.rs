//! Why a call did not do it, in words that an application shows or acts on.

use semel_delivery::OutboxError;
use semel_delivery::accept::Sameness;
use semel_delivery::store::StoreError;
use serde::{Deserialize, Serialize};

/// Why a call did not do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Error)]
pub enum CoreError {
    /// The message was refused, and nothing is stored: `malformed`, `too-large`, `credential-in-request`, `no-upstream`,
    /// `id-reused` (its id was used for another request), `id-spent` (it was given up), `queue-full`, `disk-full`.
    Refused {
        /// One of these words.
        code: String,
        /// What to do about it.
        reason: String,
    },
    /// There is no such message.
    NotFound {
        /// Which.
        reason: String,
    },
    /// The message's state does not allow it.
    State {
        /// Why.
        reason: String,
    },
    /// The outbox cannot be opened, or cannot be relied on now.
    Unavailable {
        /// Why.
        reason: String,
    },
    /// Whether it was done is not known. The same call again tells.
    Unknown {
        /// Why.
        reason: String,
    },
    /// This process was forked from the one that opened the outbox: open it anew, and it hands over to its owner.
    Forked {
        /// What to do.
        reason: String,
    },
    /// The outbox was closed.
    Closed {
        /// What to do.
        reason: String,
    },
}

impl std::fmt::Display for CoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CoreError::Refused { code, reason } => write!(f, "{code}: {reason}"),
            CoreError::NotFound { reason }
            | CoreError::State { reason }
            | CoreError::Unavailable { reason }
            | CoreError::Unknown { reason }
            | CoreError::Forked { reason }
            | CoreError::Closed { reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for CoreError {}

fn refused(code: &str, reason: String) -> CoreError {
    CoreError::Refused { code: code.to_owned(), reason }
}

impl From<OutboxError> for CoreError {
    fn from(error: OutboxError) -> Self {
        let reason = error.to_string();
        match error {
            OutboxError::Refused(refusal) => refused(refusal.code(), reason),
            OutboxError::Conflict(_, conflict, _) => match conflict.sameness {
                Sameness::Match => refused("id-spent", reason),
                Sameness::Mismatch => refused("id-reused", reason),
            },
            OutboxError::Store(error) => error.into(),
            OutboxError::Unknown => CoreError::NotFound { reason },
            OutboxError::State(_) => CoreError::State { reason },
            OutboxError::Open(_) | OutboxError::Unsafe(_) => CoreError::Unavailable { reason },
        }
    }
}

impl From<StoreError> for CoreError {
    fn from(error: StoreError) -> Self {
        let reason = error.to_string();
        match error {
            StoreError::QueueFull(_) => refused("queue-full", reason),
            StoreError::DiskFull(_) => refused("disk-full", reason),
            StoreError::Failed(_) => CoreError::Unavailable { reason },
            StoreError::Unknown(_) => CoreError::Unknown { reason },
        }
    }
}

/// What went wrong in the application's own code when it was asked something.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Error)]
pub enum HostError {
    /// It failed.
    Failed {
        /// How.
        reason: String,
    },
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HostError::Failed { reason } = self;
        f.write_str(reason)
    }
}

impl std::error::Error for HostError {}

impl From<uniffi::UnexpectedUniFFICallbackError> for HostError {
    fn from(error: uniffi::UnexpectedUniFFICallbackError) -> Self {
        HostError::Failed { reason: error.reason }
    }
}
