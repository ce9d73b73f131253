//! What callers read: receipts, refusals, conflicts, as JSON.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use base64::Engine as _;
use semel_contract::time::Timestamp;
use semel_delivery::accept::Acceptance;
use semel_delivery::message::{Answer, Attempt, BodyKind, Event, Gap, Received, prefix};
use semel_delivery::receive::LineView;
use semel_delivery::store::{LaneState, StoreError};
use semel_delivery::{Accepted, OutboxError, Row, Status};
use serde_json::{Map, Value, json};

/// A JSON answer.
pub(crate) fn json_answer(status: StatusCode, body: &Value) -> Response<Body> {
    // What is made of text and numbers can be written.
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer that ends a handler early.
pub(crate) struct Refusal(Box<Response<Body>>);

impl From<Response<Body>> for Refusal {
    fn from(response: Response<Body>) -> Self {
        Self(Box::new(response))
    }
}

impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        *self.0
    }
}

pub(crate) use crate::problems::refusal;

/// Why the outbox did not do it, as callers see it.
pub(crate) fn failed(error: &OutboxError) -> Response<Body> {
    let status = |code: u16| StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match error {
        OutboxError::Refused(refused) => {
            refusal(status(refused.status()), refused.code(), &refused.to_string())
        }
        OutboxError::Conflict(row, conflict, fingerprint) => {
            let mut body = json!({
                "error": "idempotency_key_reused",
                "conflict": conflict.name(),
                "request_fingerprint": prefix(fingerprint),
                "client_message_id": row.client_message_id,
                "message": "this id was used before and is never free again: send under another id, or requeue the old message",
                "status": 409,
            });
            let shown = match row.status {
                Status::Dead | Status::Aborted => &["reason"][..],
                Status::Done => &["broker_message_id", "history_id"][..],
                Status::Pending | Status::Held | Status::Inflight => &[][..],
            };
            for name in shown {
                body[*name] = match *name {
                    "reason" => json!(row.last_error),
                    id => receipt(row)[id].clone(),
                };
            }
            json_answer(StatusCode::CONFLICT, &body)
        }
        OutboxError::Store(StoreError::QueueFull(_)) => {
            refusal(status(507), "queue-full", &error.to_string())
        }
        OutboxError::Store(StoreError::DiskFull(_)) => refusal(status(507), "disk-full", &error.to_string()),
        OutboxError::Store(StoreError::Failed(_) | StoreError::Unknown(_))
        | OutboxError::Open(_)
        | OutboxError::Unsafe(_) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, "store-failed", &error.to_string())
        }
        OutboxError::Unknown => refusal(StatusCode::NOT_FOUND, "unknown-message", &error.to_string()),
        OutboxError::State(_) => refusal(StatusCode::CONFLICT, "not-possible", &error.to_string()),
    }
}

/// What a caller is told of a message that was accepted, now or before.
pub(crate) fn accepted(accepted: &Accepted) -> (StatusCode, Value) {
    let row = &accepted.receipt;
    let (status, word) = match accepted.acceptance {
        Acceptance::Insert | Acceptance::Queued => (StatusCode::ACCEPTED, "queued"),
        Acceptance::Inflight => (StatusCode::ACCEPTED, "inflight"),
        Acceptance::Duplicate => (StatusCode::OK, "done"),
        Acceptance::Refused(_) => (StatusCode::CONFLICT, "refused"),
    };
    let mut body = match accepted.acceptance {
        Acceptance::Duplicate => receipt(row),
        Acceptance::Insert | Acceptance::Queued | Acceptance::Inflight | Acceptance::Refused(_) => json!({
            "id": row.id,
            "client_message_id": row.client_message_id,
            "client_tx_id": row.client_tx_id,
            "lane": row.lane,
            "request_fingerprint": prefix(&row.fingerprint),
        }),
    };
    body["status"] = json!(word);
    if accepted.acceptance != Acceptance::Insert {
        body["duplicate"] = json!(accepted.acceptance == Acceptance::Duplicate);
    }
    if accepted.is_same_action {
        body["alias_of"] = json!(row.client_message_id);
    }
    if let Some(alias) = &accepted.alias {
        body["client_message_id"] = json!(alias);
    }
    (status, body)
}

fn time(time: Option<Timestamp>) -> Value {
    time.map_or(Value::Null, |time| json!(time.to_string()))
}

/// A receipt.
pub(crate) fn receipt(row: &Row) -> Value {
    let mut body = json!({
        "id": row.id,
        "client_message_id": row.client_message_id,
        "client_tx_id": row.client_tx_id,
        "status": row.status.name(),
        "state": row.status.name(),
        "lane": row.lane,
        "principal": row.principal,
        "logical_key": row.logical_key,
        "method": row.method,
        "url": row.url,
        "request_fingerprint": prefix(&row.fingerprint),
        "client_generated_at": row.client_generated_at.to_string(),
        "enqueued_at": row.enqueued_at.to_string(),
        "attempts": row.attempts,
        "first_attempt_at": time(row.first_attempt_at),
        "next_attempt_at": time((row.status == Status::Pending).then_some(row.next_attempt_at)),
        "last_error": row.last_error,
        "held_for": row.held_for.map(semel_delivery::message::HeldFor::name),
        "waits_for": null,
        "response": row.answer.as_ref().map(response),
        "delivered_at": time(row.delivered_at),
        "broker_message_id": row.broker_message_id,
        "history_id": row.history_id,
        "aborted_at": time(row.aborted_at),
        "aborted_by": row.aborted_by,
        "superseded_by": row.superseded_by_id,
        "superseded_by_row": row.superseded_by,
        "supersedes": row.supersedes_id,
        "possibly_delivered": row.is_possibly_delivered(),
        "possibly_repeated": row.is_possibly_repeated(),
    });
    for (name, value) in &row.ids {
        let is_free =
            body.get(name).is_none() || ["broker_message_id", "history_id"].contains(&name.as_str());
        if is_free {
            body[name] = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        }
    }
    body
}

fn response(answer: &Answer) -> Value {
    let mut headers = Map::new();
    for (name, value) in &answer.headers {
        let joined = match headers.get(name).and_then(Value::as_str) {
            Some(before) => format!("{before}, {value}"),
            None => value.clone(),
        };
        headers.insert(name.clone(), json!(joined));
    }
    let mut told = json!({"status": answer.status, "headers": headers});
    let is_json = answer.header("content-type").is_some_and(|kind| kind.contains("json"));
    let parsed = is_json.then(|| serde_json::from_slice(&answer.body).ok()).flatten();
    match (parsed, std::str::from_utf8(&answer.body)) {
        (Some(value), _) => told["body"] = value,
        (None, Ok(text)) => told["body"] = json!(text),
        (None, Err(_)) => {
            told["body_base64"] = json!(base64::engine::general_purpose::STANDARD.encode(&answer.body));
        }
    }
    told
}

/// One line of a message's log.
pub(crate) fn attempt(attempt: &Attempt) -> Value {
    json!({
        "number": attempt.number,
        "started_at": attempt.started_at.to_string(),
        "ended_at": time(attempt.ended_at),
        "outcome": attempt.outcome.as_deref().unwrap_or(if attempt.ended_at.is_none() { "unfinished" } else { "" }),
        "status": attempt.status,
        "error": attempt.error,
    })
}

/// One event.
pub(crate) fn event(event: &Event) -> Value {
    json!({
        "number": event.number,
        "at": event.at.to_string(),
        "kind": event.kind,
        "id": event.row_id,
        "client_message_id": event.client_message_id,
        "lane": event.lane,
        "detail": event.detail,
    })
}

/// A received message.
pub(crate) fn received(message: &Received) -> Value {
    let mut body = json!({
        "number": message.number,
        "id": message.message_id,
        "client_message_id": message.message_id,
        "sender": message.sender,
        "mesh": message.mesh,
        "supersedes": message.supersedes,
        "received_at": message.received_at.to_string(),
        "acknowledged_at": time(message.acked_at),
    });
    let kind = message.about.as_ref().map(|about| about.body);
    if let Some(about) = &message.about {
        body["line"] = json!(about.line);
        body["event_id"] = json!(about.event_id);
        body["history_id"] = json!(about.event_id);
        body["broker_message_id"] = json!(about.broker_message_id);
        body["client_tx_id"] = json!(about.client_tx_id);
        body["content_type"] = json!(about.content_type);
        body["created_at"] = json!(about.created_at);
    }
    if kind == Some(BodyKind::Hidden) {
        body["moderated"] = json!(true);
    }
    if message.acked_at.is_some() || kind == Some(BodyKind::Hidden) {
        return body;
    }
    let is_json = kind != Some(BodyKind::Bytes);
    match is_json.then(|| serde_json::from_slice::<Value>(&message.payload).ok()).flatten() {
        Some(value) => body["body"] = value,
        None => {
            body["body_base64"] = json!(base64::engine::general_purpose::STANDARD.encode(&message.payload));
        }
    }
    body
}

/// Messages of a line that cannot be had.
pub(crate) fn gap(gap: &Gap) -> Value {
    json!({
        "number": gap.number,
        "at": gap.at.to_string(),
        "mesh": gap.mesh,
        "line": gap.line,
        "from": gap.since,
        "oldest": gap.oldest,
        "reason": gap.reason,
    })
}

/// A line that is followed.
pub(crate) fn followed(line: &LineView) -> Value {
    json!({
        "broker": line.broker,
        "mesh": line.mesh,
        "line": line.line.to_string(),
        "state": line.state.name(),
        "why": line.why,
        "since": line.since.to_string(),
    })
}

/// One lane.
pub(crate) fn lane(lane: &LaneState) -> Value {
    json!({
        "lane": lane.lane,
        "paused": lane.is_paused,
        "blocked_by": lane.blocked_by,
        "depth": lane.depth,
        "head": lane.head,
    })
}
