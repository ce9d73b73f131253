//! What operators alone do: look at every mesh, and keep the store in order.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel_contract::time::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::Api;
use super::answer::Told;
use super::history::Asked;
use super::manage::{Page, operator, reason_in};
use crate::broker::{Broker, ReadError};

/// Characters of a reason that are kept.
const REASON_CHARS_MAX: usize = 500;

type Answer = Result<Response, Told>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Confirmed {
    reason: String,
}

pub(crate) async fn meshes(State(api): State<Api>, Query(page): Query<Page>) -> Answer {
    let found = api.broker.meshes(page.which()).await?;
    Ok(page.answer("meshes", &found, |one| &one.mesh))
}

pub(crate) async fn history(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Answer {
    match api.broker.topic_history(&mesh, &topic, asked.after.as_deref(), asked.limit).await {
        Ok(page) => Ok(Json(page).into_response()),
        Err(ReadError::NotAllowed) => Err(Told::missing("topic")),
        Err(error) => Err(error.into()),
    }
}

/// The broker in the name of the operator who asks, who may say why.
async fn acting(api: &Api, headers: &HeaderMap, body: Body) -> Result<Broker, Told> {
    let body = api.read(body).await?;
    api.acting(headers, None, reason_in(&body).as_deref())
}

pub(crate) async fn orphans(State(api): State<Api>, headers: HeaderMap, body: Body) -> Answer {
    let broker = acting(&api, &headers, body).await?;
    let found = broker.orphans().await?;
    let count = found.findings.len();
    Ok(Json(json!({"orphans": count, "looked": found.looked, "findings": found.findings})).into_response())
}

pub(crate) async fn rebuild(State(api): State<Api>, headers: HeaderMap, body: Body) -> Answer {
    let broker = acting(&api, &headers, body).await?;
    Ok(Json(json!({"lines": broker.rebuild().await?})).into_response())
}

pub(crate) async fn restored(State(api): State<Api>, headers: HeaderMap, body: Body) -> Answer {
    let broker = acting(&api, &headers, body).await?;
    Ok(Json(json!({"epoch": broker.restored().await?})).into_response())
}

pub(crate) async fn sweep(State(api): State<Api>, headers: HeaderMap, body: Body) -> Answer {
    let broker = acting(&api, &headers, body).await?;
    let swept = broker.sweep().await?;
    let body = json!({"ids": swept.ids, "messages": swept.messages, "unacknowledged": swept.unacknowledged});
    Ok(Json(body).into_response())
}

/// The clock by which things expire.
pub(crate) async fn clock(State(api): State<Api>) -> Answer {
    let (now, ahead) = api.broker.clock().await?;
    let now = Timestamp::from_millis(now).to_string();
    Ok(Json(json!({"now": now, "jump_ms": (ahead != 0).then_some(ahead)})).into_response())
}

/// A person says that the clock is right after its jump.
pub(crate) async fn confirm_clock(State(api): State<Api>, headers: HeaderMap, body: Body) -> Answer {
    let body = api.read(body).await?;
    let said: Confirmed =
        serde_json::from_slice(&body).map_err(|error| Told::malformed(&error.to_string()))?;
    let reason: String = said.reason.trim().chars().take(REASON_CHARS_MAX).collect();
    if reason.is_empty() {
        return Err(Told::malformed("say why, in `reason`"));
    }
    let broker = api.acting(&headers, None, Some(&reason))?;
    match broker.confirm_clock(&operator(&headers), &reason).await? {
        true => clock(State(api)).await,
        false => {
            let why = "the clock is believed: there is nothing to confirm";
            Err(Told::new(StatusCode::CONFLICT, "clock_not_frozen", why))
        }
    }
}

/// Rows of the trail in one answer.
const TRAIL_ROWS: i64 = 50;
/// The same at most.
const TRAIL_ROWS_MAX: i64 = 1000;

#[derive(Deserialize)]
pub(crate) struct OfTrail {
    before: Option<i64>,
    limit: Option<i64>,
}

/// What was done by hand, the latest first.
pub(crate) async fn audit(State(api): State<Api>, Query(asked): Query<OfTrail>) -> Answer {
    let limit = asked.limit.unwrap_or(TRAIL_ROWS).clamp(1, TRAIL_ROWS_MAX);
    let rows = api.broker.trail(asked.before, limit).await?;
    let next = rows.last().filter(|_| rows.len() as i64 == limit).map(|row| row.number.clone());
    Ok(Json(json!({"audit": rows, "next": next})).into_response())
}

pub(crate) async fn metrics(State(api): State<Api>) -> Answer {
    let text = api.broker.metrics().await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
