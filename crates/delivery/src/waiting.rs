//! What a message waits for, in words for a person. Pure: the lane, its head and the time arrive as arguments.

use semel_contract::time::Timestamp;

use crate::message::{HeldFor, Row, Status};
use crate::store::LaneState;

/// What a message waits for; nothing where it is being sent, or where no more will be sent.
pub fn waits_for(row: &Row, lane: &LaneState, head: Option<&Row>, now: Timestamp) -> Option<String> {
    match row.status {
        Status::Held => Some(held_for(row)),
        Status::Pending => Some(pending_for(row, lane, head, now)),
        Status::Inflight | Status::Done | Status::Dead | Status::Aborted => None,
    }
}

fn held_for(row: &Row) -> String {
    let said = row.last_error.as_deref().unwrap_or("it was refused");
    match row.held_for {
        Some(HeldFor::Rebuild) => format!(
            "the application, which must rebuild the lane ({said}); or requeue it, abort it, or resume the lane"
        ),
        Some(HeldFor::Auth) | None => format!(
            "a fresh credential of {} ({said}); or release it: semel outbox release {}",
            row.principal, row.principal
        ),
    }
}

fn pending_for(row: &Row, lane: &LaneState, head: Option<&Row>, now: Timestamp) -> String {
    if lane.is_paused {
        return format!("its lane, which is paused: semel outbox resume {}", lane.lane);
    }
    if let Some(dead) = lane.blocked_by {
        return format!(
            "message {dead}, which was given up and stops the lane: requeue it, abort it, or resume the lane"
        );
    }
    match head.filter(|head| head.id != row.id) {
        Some(head) => {
            let name = &head.client_message_id;
            match waits_for(head, lane, None, now) {
                Some(why) => format!("message {name} before it, which waits for {why}"),
                None => format!("message {name} before it, which is being sent"),
            }
        }
        None if row.next_attempt_at > now => {
            let after = row.last_error.as_deref().map(|error| format!(" after {error}")).unwrap_or_default();
            format!("its next attempt at {}{after}", row.next_attempt_at)
        }
        None => "its turn".to_owned(),
    }
}
