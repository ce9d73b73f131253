//! What a sender is told of a message. Owns the cases; how they look on the wire is in `http::answer`. Pure.

use std::time::Duration;

use semel_contract::profile::Rate;

use crate::event_id::EventId;

/// What is known of a message that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sender's id of it.
    pub client_message_id: String,
    /// The broker's id of it.
    pub broker_message_id: String,
    /// Where it stands in its line.
    pub history_id: EventId,
    /// When it was accepted, in milliseconds.
    pub first_seen_at: i64,
    /// Whether its body is still kept.
    pub history_available: bool,
}

/// What came of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is in, for everybody.
    Accepted(Receipt),
    /// It was in before.
    Duplicate(Receipt),
    /// The id was used for another message.
    Reused {
        /// The first eight bytes of the known fingerprint, in hex.
        fingerprint: String,
        /// The message that has the id, where it is this sender's own.
        broker_message_id: Option<String>,
    },
    /// The id was cancelled.
    Sealed,
    /// It is not in.
    Refused(Refusal),
}

/// Why a message, or another request, was not taken. Nothing of it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be read.
    Malformed(String),
    /// Its payload is too large.
    PayloadTooLarge {
        /// The largest payload, in bytes.
        limit: usize,
    },
    /// The mesh has published all that it may in this window.
    BudgetSpent {
        /// The limit.
        limit: Rate,
        /// When there is room again.
        retry_after: Duration,
    },
    /// The member has sent too many unknown ids.
    RequestLimited {
        /// When there is room again.
        retry_after: Duration,
    },
    /// There is no such topic, or no such member.
    DestinationUnknown,
    /// The sender is not subscribed to the topic.
    NotSubscribed,
    /// The destination is not there yet, and may come.
    DestinationLate,
    /// The mesh has used up its bytes.
    MeshFull {
        /// What it may keep, in bytes.
        limit: i64,
    },
    /// The store did not do it, or cannot say whether it did.
    Unavailable(String),
    /// The broker is about to stop.
    Draining,
}
