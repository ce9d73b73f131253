//! What was done: the audit trail, the cleanup log, counts of stale actions.

use axum::Json;
use axum::extract::State;
use semel_contract::hex::hex;
use semel_store::admin::{StaleCount, StalePlace, Trail};
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
    after: Option<String>,
    limit: Option<u32>,
}

/// A place as a text: the count, and the rest in hex, so that no name can be taken for another part.
fn place_text(row: &StaleCount) -> String {
    let StalePlace { count, principal, tenant } = StalePlace::of(row);
    format!("{count}.{}.{}", hex(principal.as_bytes()), hex(tenant.as_bytes()))
}

fn place(text: &str) -> Option<StalePlace> {
    let name = |text: &str| -> Option<String> {
        let pairs = text.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        });
        String::from_utf8(pairs.collect::<Option<Vec<u8>>>()?).ok()
    };
    let mut parts = text.split('.');
    let (count, principal, tenant) = (parts.next()?, parts.next()?, parts.next()?);
    Some(StalePlace { count: count.parse().ok()?, principal: name(principal)?, tenant: name(tenant)? })
}

pub(crate) async fn stale(
    State(console): State<Console>,
    Asked(asked): Asked<OfStale>,
) -> Result<Json<Value>, Refusal> {
    let bad = || Refusal::bad("after: expected the `next` of another page");
    let after = asked.after.as_deref().map(|text| place(text).ok_or_else(bad)).transpose()?;
    let limit = ask::limit(asked.limit)?;
    let rows = console.store.stale_after(asked.principal.as_deref(), after, limit).await?;
    let next = rows.last().filter(|_| rows.len() == limit as usize).map(place_text);
    Ok(Json(json!({"stale": rows.iter().map(view::stale).collect::<Vec<_>>(), "next": next})))
}
