//! What was done: the audit trail, the cleanup log, counts of stale actions.

use axum::Json;
use axum::extract::State;
use semel_store::admin::Trail;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Console;
use crate::ask::{self, Asked};
use crate::refusal::Refusal;
use crate::view;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfTrail {
    record: Option<String>,
    before: Option<String>,
    limit: Option<u32>,
}

pub(crate) async fn audit(
    State(console): State<Console>,
    Asked(asked): Asked<OfTrail>,
) -> Result<Json<Value>, Refusal> {
    let hash = match &asked.record {
        Some(id) => Some(console.record(id).await?.id.hash()),
        None => None,
    };
    let before = ask::number("before", asked.before.as_deref())?;
    let trail = Trail { hash, before, limit: ask::limit(asked.limit)? };
    let rows = console.store.trail(&trail).await?;
    let is_full = rows.len() == trail.limit as usize;
    let next = rows.last().filter(|_| is_full).map(|row| row.number.to_string());
    Ok(Json(json!({"audit": rows.iter().map(view::audited).collect::<Vec<_>>(), "next": next})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfCleanups {
    before: Option<String>,
    limit: Option<u32>,
}

pub(crate) async fn cleanups(
    State(console): State<Console>,
    Asked(asked): Asked<OfCleanups>,
) -> Result<Json<Value>, Refusal> {
    let (before, limit) = (ask::number("before", asked.before.as_deref())?, ask::limit(asked.limit)?);
    let rows = console.store.cleanups(before, limit).await?;
    let is_full = rows.len() == limit as usize;
    let next = rows.last().filter(|_| is_full).map(|row| row.number.to_string());
    Ok(Json(json!({"cleanups": rows.iter().map(view::cleanup).collect::<Vec<_>>(), "next": next})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfStale {
    principal: Option<String>,
    limit: Option<u32>,
}

pub(crate) async fn stale(
    State(console): State<Console>,
    Asked(asked): Asked<OfStale>,
) -> Result<Json<Value>, Refusal> {
    let rows = console.store.stale(asked.principal.as_deref(), ask::limit(asked.limit)?).await?;
    Ok(Json(json!({"stale": rows.iter().map(view::stale).collect::<Vec<_>>()})))
}
