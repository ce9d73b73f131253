//! Records: list them, look at one, cancel one.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use http::StatusCode;
use semel_contract::profile::{Lifetime, presets};
use semel_contract::time::Timestamp;
use semel_store::admin::{KeyReach, Sought, Trail};
use semel_store::{AdminStore, Entry, Filter, Sealed};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Console;
use crate::access::{Caller, Right};
use crate::ask::{self, Asked, Told};
use crate::listing::{Found, Narrowed, listed, search_within};
use crate::refusal::Refusal;
use crate::view::{self, Bodies};

/// Records that one search shows.
const FOUND_MAX: u32 = 20;
/// Records that a search by what is not indexed looks at, at most.
const WITHIN_MAX: u32 = 100_000;
/// Rows of the trail that are shown with a record.
const TRAIL_MAX: u32 = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    state: Option<String>,
    principal: Option<String>,
    route: Option<String>,
    older_than: Option<String>,
    after: Option<String>,
    limit: Option<u32>,
    order: Option<String>,
    key: Option<String>,
    request_id: Option<String>,
    newer_than: Option<String>,
    /// Looks at so many records at most, the newest first, and says so.
    within: Option<u32>,
}

pub(crate) async fn list(
    State(console): State<Console>,
    Asked(asked): Asked<Listing>,
) -> Result<Json<Value>, Refusal> {
    let now = console.store.clock().await?.now;
    let created_after = ask::before_named("newer_than", asked.newer_than.as_deref(), now)?;
    let has_more = asked.key.is_some() || asked.request_id.is_some() || created_after.is_some();
    let narrowed = Narrowed {
        key: asked.key.filter(|key| !key.is_empty()),
        request_id: asked.request_id.filter(|id| !id.is_empty()),
        created_after,
        within: asked.within.map(|within| within.clamp(1, WITHIN_MAX)),
    };
    let filter = Filter {
        state: ask::state(asked.state.as_deref())?,
        principal: asked.principal,
        endpoint: asked.route,
        created_before: ask::before(asked.older_than.as_deref(), now)?,
        after: ask::number("after", asked.after.as_deref())?,
        limit: ask::limit(asked.limit)?,
        order: ask::order(asked.order.as_deref())?,
    };
    if has_more || narrowed.within.is_some() {
        return narrow(&*console.store, &filter, &narrowed, now).await.map(Json);
    }
    let found = listed(&*console.store, &filter, now).await?;
    let mut answer = shown(&found, now);
    if !found.is_complete {
        (answer["looked"], answer["complete"]) = (json!(found.looked), json!(false));
    }
    Ok(Json(answer))
}

fn shown(found: &Found, now: Timestamp) -> Value {
    let records = found.entries.iter().map(|entry| view::record(entry, now, Bodies::Hidden));
    let next = found.next.map(|next| next.to_string());
    json!({"records": records.collect::<Vec<_>>(), "next": next, "now": now.to_string()})
}

/// A list by what is not indexed: it says how many records were looked at, and whether those were all.
async fn narrow(
    store: &dyn AdminStore,
    filter: &Filter,
    narrowed: &Narrowed,
    now: Timestamp,
) -> Result<Value, Refusal> {
    let found = search_within(store, filter, narrowed, now).await?;
    let mut answer = shown(&found, now);
    (answer["looked"], answer["complete"]) = (json!(found.looked), json!(found.is_complete));
    answer["reading"] = json!(found.is_reading);
    Ok(answer)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Showing {
    #[serde(default)]
    body: bool,
}

pub(crate) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Asked(asked): Asked<Showing>,
) -> Result<Json<Value>, Refusal> {
    let entry = console.record(&id).await?;
    let bodies = bodies(&caller, asked.body)?;
    let now = console.store.clock().await?.now;
    console.in_full(&entry, now, bodies).await.map(Json)
}

/// A body may hold what only its sender should see: reading it takes the full token.
fn bodies(caller: &Caller, wanted: bool) -> Result<Bodies, Refusal> {
    match (wanted, caller.right) {
        (false, _) => Ok(Bodies::Hidden),
        (true, Right::Change) if caller.sees_bodies() => Ok(Bodies::Shown),
        (true, Right::Read | Right::Change) => {
            let why = "bodies are shown to the full token only";
            Err(Refusal::new(StatusCode::FORBIDDEN, "read-only", why))
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Searching {
    q: String,
}

/// Whatever has this text as its id, its request's id or its key.
pub(crate) async fn search(
    State(console): State<Console>,
    Asked(asked): Asked<Searching>,
) -> Result<Json<Value>, Refusal> {
    let text = asked.q;
    if text.is_empty() {
        return Err(Refusal::bad("q: expected a record's id, a request's id or a key"));
    }
    let reach = console.store.key_reach().await?;
    let mut found: Vec<Entry> = Vec::new();
    let by_number = text.parse().ok().map(Sought::Record);
    let others = [Sought::RequestId(text.clone()), Sought::Key(text.clone())];
    for sought in by_number.into_iter().chain(others) {
        for entry in console.store.find(&sought, FOUND_MAX).await? {
            if !found.iter().any(|known| known.record.fence == entry.record.fence) {
                found.push(entry);
            }
        }
    }
    let now = console.store.clock().await?.now;
    let mut records = Vec::new();
    for entry in &found {
        records.push(console.in_full(entry, now, Bodies::Hidden).await?);
    }
    let mut shown = json!({"records": records, "now": now.to_string(), "complete": true, "reading": false});
    if let KeyReach::Newest(rows) = reach {
        shown["looked"] = json!(rows);
        (shown["complete"], shown["reading"]) = (json!(false), json!(true));
    }
    Ok(Json(shown))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sealing {
    reason: Option<String>,
}

/// Cancels the key of a record that has not taken effect.
pub(crate) async fn seal(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Told(told): Told<Sealing>,
) -> Result<Json<Value>, Refusal> {
    let reason = ask::reason(told.reason)?;
    let entry = console.record(&id).await?;
    let lifetime = console.resolved_lifetime(None);
    let sealed = console.store.seal_by(&entry.id, &entry.about, &lifetime, &caller.actor, &reason).await?;
    match sealed {
        Sealed::Done => {
            let now = console.store.clock().await?.now;
            let (entry, _) = console.store.look_up(&entry.id).await?;
            let entry = entry.ok_or_else(|| Refusal::no_record(&id))?;
            console.in_full(&entry, now, Bodies::Hidden).await.map(Json)
        }
        Sealed::Known(entry) => Err(Refusal::new(
            StatusCode::CONFLICT,
            "key-in-use",
            format!("the key is {}; only a released or expired one can be sealed", entry.record.state.name()),
        )),
    }
}

impl Console {
    /// The record with this id, the present or a former one.
    pub(crate) async fn record(&self, id: &str) -> Result<Entry, Refusal> {
        let number = id.parse().map_err(|_| {
            Refusal::bad(format!(
                "{id:?} is not a record's id, such as 42; /v1/search finds keys and requests"
            ))
        })?;
        let found = self.store.find(&Sought::Record(number), 1).await?;
        found.into_iter().next().ok_or_else(|| Refusal::no_record(id))
    }

    /// A record with its timeline and its rows of the trail.
    pub(crate) async fn in_full(
        &self,
        entry: &Entry,
        now: Timestamp,
        bodies: Bodies,
    ) -> Result<Value, Refusal> {
        let trail = Trail { hash: Some(entry.id.hash()), before: None, limit: TRAIL_MAX };
        let rows = self.store.trail(&trail).await?;
        let mut shown = view::record(entry, now, bodies);
        let hints = self.store.hints();
        let number = entry.record.fence.number;
        let (replayed, renewed) = (hints.replays().of(number), hints.renewals().of(number));
        shown["timeline"] = Value::Array(view::timeline(entry, &rows, (replayed, renewed), now));
        shown["replays"] = json!(replayed.map_or(0, |replayed| replayed.count));
        shown["audit"] = rows.iter().map(view::audited).collect();
        Ok(shown)
    }

    /// How long what was decided by hand is kept. A released row stays too: it says that the key is free on purpose.
    pub(crate) fn resolved_lifetime(&self, keep: Option<std::time::Duration>) -> Lifetime {
        let keep = keep.unwrap_or(self.resolved_kept);
        Lifetime { record: Some(keep), released: Some(keep), ..presets::ietf().lifetime }
    }
}
