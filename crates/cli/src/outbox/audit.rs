//! The trail of what was done by hand, on the outbox's surface.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use semel_delivery::Audited;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{failed, json_answer, refusal};
use super::body::{Answered, Api};

#[derive(Deserialize)]
pub(super) struct Wanted {
    before: Option<i64>,
    limit: Option<u32>,
}

/// What was done by hand, the latest first.
pub(super) async fn list(
    State(api): State<Api>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let Query(wanted) =
        wanted.map_err(|error| refusal(StatusCode::BAD_REQUEST, "malformed", &error.body_text()))?;
    let limit = wanted.limit.unwrap_or(50).clamp(1, semel_delivery::limits::LIST_ROWS_MAX);
    let rows = api.outbox.trail(wanted.before, limit).await.map_err(|error| failed(&error))?;
    let last = rows.last().filter(|_| rows.len() == limit as usize).map(|row| row.number.to_string());
    let rows: Vec<Value> = rows.iter().map(shown).collect();
    Ok(json_answer(StatusCode::OK, &json!({"audit": rows, "next": last})))
}

fn shown(row: &Audited) -> Value {
    json!({
        "number": row.number.to_string(),
        "at": row.at.to_string(),
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "detail": row.detail,
        "reason": row.reason,
    })
}
