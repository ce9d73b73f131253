//! The event that tells which messages one drain found too old. Each message has its own event as well, written with its end;
//! this one is written when the drain is over, and a start tells of those that no such event speaks of, by their numbers: a process may
//! die between two such events of one drain.

use serde_json::Value;

use crate::message::{Event, Row};

/// Its kind.
pub const EXPIRY: &str = "expiry";
/// The messages of one such event.
pub(crate) const MESSAGES_MAX: usize = 1000;

/// What it says of these messages.
pub(crate) fn detail(rows: &[Row]) -> String {
    let messages = rows.iter().map(|row| serde_json::json!([row.id, row.client_message_id]));
    Value::Array(messages.collect()).to_string()
}

/// The numbers and ids of its messages. `None`: it is another event.
pub fn messages(event: &Event) -> Option<Vec<(i64, String)>> {
    if event.kind != EXPIRY {
        return None;
    }
    serde_json::from_str(event.detail.as_deref().unwrap_or_default()).ok()
}
