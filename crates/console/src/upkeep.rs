//! Keeping a store in order by hand: sweep, forget, restores, the clock.

use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use semel_contract::profile::presets;
use semel_contract::record;
use semel_contract::restore::Undated;
use semel_contract::time::{Timestamp, parse_duration};
use semel_store::Filter;
use semel_store::admin::{Note, action, sweep_all};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Console;
use crate::access::Caller;
use crate::ask::{self, Told};
use crate::refusal::Refusal;
use crate::view;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweeping {
    grace: Option<String>,
    reason: Option<String>,
    /// Only tells what would be removed.
    #[serde(default)]
    dry_run: bool,
}

/// Records that a sweep is tried on, the oldest of all.
const TRIED_MAX: u64 = 10_000;

/// How many of the oldest records have expired.
async fn try_sweep(console: &Console, grace: Duration) -> Result<Value, Refusal> {
    let now = console.store.clock().await?.now;
    let mut page = Filter { limit: COUNTED_AT_ONCE, ..Filter::default() };
    let (mut looked, mut expired) = (0, 0);
    loop {
        let found = console.store.list(&page).await?;
        looked += found.len() as u64;
        let is_due =
            |entry: &&semel_store::Entry| entry.record.expires_at.is_some_and(|at| at.plus(grace) <= now);
        expired += found.iter().filter(is_due).count() as u64;
        page.after = found.last().map(|entry| entry.record.fence.number);
        if found.len() < COUNTED_AT_ONCE as usize || looked >= TRIED_MAX {
            let is_all = found.len() < COUNTED_AT_ONCE as usize;
            return Ok(
                json!({"dry_run": true, "would_remove": expired, "looked": looked, "complete": is_all}),
            );
        }
    }
}

/// Removes what has expired, now.
pub(crate) async fn sweep(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Told(told): Told<Sweeping>,
) -> Result<Json<Value>, Refusal> {
    let grace = told.grace.as_deref().map_or(Ok(Duration::ZERO), parse_duration);
    let grace = grace.map_err(|error| Refusal::bad(format!("grace: {error}")))?;
    let reason = ask::optional_reason(told.reason)?.unwrap_or_default();
    if told.dry_run {
        return try_sweep(&console, grace).await.map(Json);
    }
    let clock = console.store.clock().await?;
    let swept = sweep_all(&*console.store, presets::ietf().sweep.batch, grace, true).await?;
    let note = Note { actor: caller.actor, action: action::SWEEP, reason, count: swept.removed };
    console.store.note(&note).await?;
    let mut shown = view::swept(&swept);
    shown["clock_frozen"] = json!(clock.jump_millis.is_some());
    Ok(Json(shown))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Forgetting {
    principal: String,
    tenant: Option<String>,
    /// Only tells what would be erased.
    #[serde(default)]
    dry_run: bool,
    /// Why; it stands in the audit trail, and so should name nobody.
    reason: Option<String>,
}

/// Records that are counted in one go, and how often.
const COUNTED_AT_ONCE: u32 = 1000;
const COUNTS_MAX: usize = 1000;

/// Erases the finished records of a principal.
pub(crate) async fn forget(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Told(told): Told<Forgetting>,
) -> Result<Json<Value>, Refusal> {
    if told.principal.is_empty() {
        return Err(Refusal::bad("principal: say whose records are to be erased"));
    }
    let reason = ask::optional_reason(told.reason.clone())?;
    let (finished, open) = count_records(&console, &told).await?;
    if told.dry_run {
        return Ok(Json(json!({"dry_run": true, "would_forget": finished, "forgotten": 0, "left": open})));
    }
    let forgotten = console.store.forget(told.tenant.as_deref(), &told.principal, &caller.actor).await?;
    if let Some(reason) = reason {
        // What was erased stands on the trail already, with its count.
        console.store.note(&Note { actor: caller.actor, action: action::FORGET, reason, count: 0 }).await?;
    }
    let (_, left) = count_records(&console, &told).await.unwrap_or((0, open));
    Ok(Json(json!({"forgotten": forgotten, "left": left})))
}

/// How many records of a principal are finished, and how many are not. A principal of which nothing is known is refused: a
/// name that was cut or misspelled would seem to be forgotten.
async fn count_records(console: &Console, told: &Forgetting) -> Result<(u64, u64), Refusal> {
    let principal = Some(told.principal.clone());
    let mut page = Filter { principal, limit: COUNTED_AT_ONCE, ..Filter::default() };
    let (mut finished, mut open) = (0, 0);
    for _ in 0..COUNTS_MAX {
        let found = console.store.list(&page).await?;
        for entry in found.iter().filter(|entry| entry.about.tenant == told.tenant) {
            match entry.record.state {
                record::State::Claimed | record::State::Unknown => open += 1,
                record::State::Settled
                | record::State::Unkept
                | record::State::Released
                | record::State::Sealed => finished += 1,
            }
        }
        page.after = found.last().map(|entry| entry.record.fence.number);
        if found.len() < COUNTED_AT_ONCE as usize {
            break;
        }
    }
    let is_counted = || async {
        let stale = console.store.stale(Some(&told.principal), COUNTED_AT_ONCE).await?;
        Ok::<_, Refusal>(stale.iter().any(|count| count.tenant == told.tenant))
    };
    if finished + open == 0 && !is_counted().await? {
        let why = "nothing is known of this principal, and nothing was erased: give it in full, as a record shows it";
        return Err(Refusal::new(StatusCode::NOT_FOUND, "no-such-principal", why));
    }
    Ok((finished, open))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Restoring {
    backup_time: String,
    #[serde(default)]
    trust_undated: bool,
    reason: Option<String>,
}

/// Says that the store was restored from a backup.
pub(crate) async fn restored(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Told(told): Told<Restoring>,
) -> Result<Json<Value>, Refusal> {
    let given = ask::optional_reason(told.reason)?;
    let backup_at = Timestamp::parse(&told.backup_time)
        .map_err(|error| Refusal::bad(format!("backup_time={:?}: {error}", told.backup_time)))?;
    let now = console.store.clock().await?.now;
    if backup_at > now {
        let why = format!("backup_time={backup_at} lies in the future; the store's time is {now}");
        return Err(Refusal::bad(why));
    }
    let undated = if told.trust_undated { Undated::Trusted } else { Undated::Unknown };
    let reason = format!("backup of {backup_at}, undated keys {}", undated.name());
    let reason = match given {
        Some(given) => format!("{reason}: {given}"),
        None => reason,
    };
    let restore = console.store.restored(backup_at, undated, &caller.actor, &reason).await?;
    Ok(Json(view::restore(&restore)))
}

pub(crate) async fn restores(State(console): State<Console>) -> Result<Json<Value>, Refusal> {
    let restores = console.store.restores().await?;
    let until = console.restored_until().await.map(|until| until.to_string());
    let restores: Vec<Value> = restores.iter().map(view::restore).collect();
    Ok(Json(json!({"restores": restores, "in_force_until": until})))
}

pub(crate) async fn clock(State(console): State<Console>) -> Result<Json<Value>, Refusal> {
    let clock = console.store.clock().await?;
    Ok(Json(json!({
        "now": clock.now.to_string(),
        "frozen": clock.jump_millis.is_some(),
        "jump_ms": clock.jump_millis,
    })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Confirming {
    reason: Option<String>,
}

/// Confirms a jump of the clock.
pub(crate) async fn confirm_clock(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Told(told): Told<Confirming>,
) -> Result<Json<Value>, Refusal> {
    let reason = ask::reason(told.reason)?;
    if console.store.clock().await?.jump_millis.is_none() {
        let why = "the clock has not jumped: there is nothing to confirm";
        return Err(Refusal::new(StatusCode::CONFLICT, "clock-not-frozen", why));
    }
    console.store.confirm_jump(&caller.actor, &reason).await?;
    clock(State(console)).await
}
