//! What operators see and do: health, numbers, lanes, resolutions, credentials, the audit trail.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use semel_contract::time::millis_of;
use semel_delivery::credentials::{Credential, Wallet};
use semel_delivery::relay::Engine;
use semel_delivery::relay::store::look::LaneDetail;
use semel_delivery::relay::store::operate::{Resolution, Resolved};
use semel_delivery::relay::store::{AuditRow, Entry, Lane, LaneState, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::plain;
use super::door::{Operators, guard};
use crate::problems::{self, refusal as refused, refusal_with};

/// Rows of one list at most.
const ROWS_MAX: i64 = 1000;

/// What a person sees who opens the address.
const INDEX: &str = "\
semel relay: the admin address

GET  /healthz, /readyz               whether the process lives, and whether it can serve
GET  /metrics                        metrics in the text form of Prometheus
GET  /v1/relay/lanes?state=          lanes that are in doubt, blocked, or hold something
GET  /v1/relay/lanes/{id}            one lane; POST …/resolve and …/requeue
POST /v1/relay/release, /credentials parked changes and credentials
GET  /v1/relay/audit                 the audit trail
GET  /openapi.json                   all of it, described

The command line asks here: semel relay list, semel relay --help
";

/// What each number means.
const HELP: [(&str, &str); 15] = [
    ("score_outbox_pending_total", "Changes that wait: semel_relay_entries has them by state."),
    (
        "score_outbox_processed_total",
        "Changes that ended, by status: the same as semel_relay_processed_total.",
    ),
    ("score_outbox_retry_total", "Writes that were tried again: the same as semel_relay_retries_total."),
    ("semel_relay_entries", "Changes that are not done, by state."),
    ("semel_relay_lanes", "Lanes that stand still, by state."),
    ("semel_relay_processed_total", "Changes that ended, by status."),
    ("semel_relay_accepted_total", "Requests that were accepted."),
    ("semel_relay_replayed_total", "Requests that were known already."),
    ("semel_relay_retries_total", "Writes that were tried again."),
    ("semel_relay_calls_total", "Calls of targets."),
    ("semel_relay_calls_saved_total", "Calls that were not needed because changes were merged."),
    ("semel_relay_in_doubt_total", "Times that a lane came to be in doubt."),
    ("semel_relay_interference_total", "Times that somebody else had written what the relay writes."),
    ("semel_relay_unauthorized_total", "Times that a target refused a credential."),
    ("semel_relay_limited_total", "Times that a target asked to slow down."),
];

/// What the handlers work on.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) engine: Arc<Engine>,
    pub(crate) wallet: Arc<Wallet>,
    pub(crate) is_stopping: Arc<AtomicBool>,
}

/// The routes.
pub(crate) fn router(admin: Admin, operators: Operators) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(async || Json(json!({"status": "ok"}))))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/relay/lanes", get(list))
        .route("/v1/relay/lanes/{id}", get(show))
        .route("/v1/relay/lanes/{id}/resolve", post(resolve))
        .route("/v1/relay/lanes/{id}/requeue", post(requeue))
        .route("/v1/relay/release", post(release))
        .route("/v1/relay/credentials", post(credentials))
        .route("/v1/relay/audit", get(audit))
        .route("/openapi.json", get(super::openapi::document))
        .layer(middleware::from_fn_with_state(Arc::new(operators), guard))
        .layer(middleware::map_response(problems::rendered))
        .with_state(admin)
}

fn away(error: &StoreError) -> Response<Body> {
    refused(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", &error.to_string())
}

fn no_lane() -> Response<Body> {
    refused(StatusCode::NOT_FOUND, "no-such-lane", "there is no such lane")
}

async fn readyz(State(admin): State<Admin>) -> Response<Body> {
    if admin.is_stopping.load(Ordering::Relaxed) {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "stopping", "shutting down");
    }
    match admin.engine.store.ping().await {
        Ok(_) => plain(StatusCode::OK, &json!({"status": "ready"})),
        Err(error) => away(&error),
    }
}

async fn metrics(State(admin): State<Admin>) -> Response<Body> {
    let counts = match admin.engine.store.counts().await {
        Ok(counts) => counts,
        Err(error) => return away(&error),
    };
    let meters = &admin.engine.meters;
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, rows: &[(&str, i64)]| {
        let help = HELP.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let n = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let waiting = counts.pending + counts.parked;
    let processed = [
        ("{status=\"completed\"}", n(meters.completed.get())),
        ("{status=\"failed\"}", n(meters.failed.get())),
    ];
    one("score_outbox_pending_total", "gauge", &[("", waiting)]);
    one("score_outbox_processed_total", "counter", &processed);
    one("score_outbox_retry_total", "counter", &[("", n(meters.retries.get()))]);
    one(
        "semel_relay_entries",
        "gauge",
        &[
            ("{state=\"pending\"}", counts.pending),
            ("{state=\"parked\"}", counts.parked),
            ("{state=\"dead\"}", counts.dead),
        ],
    );
    one(
        "semel_relay_lanes",
        "gauge",
        &[("{state=\"in-doubt\"}", counts.in_doubt), ("{state=\"blocked\"}", counts.blocked)],
    );
    one("semel_relay_processed_total", "counter", &processed);
    for (name, value) in [
        ("semel_relay_accepted_total", &meters.accepted),
        ("semel_relay_replayed_total", &meters.replayed),
        ("semel_relay_retries_total", &meters.retries),
        ("semel_relay_calls_total", &meters.calls),
        ("semel_relay_calls_saved_total", &meters.calls_saved),
        ("semel_relay_in_doubt_total", &meters.in_doubt),
        ("semel_relay_interference_total", &meters.interference),
        ("semel_relay_unauthorized_total", &meters.unauthorized),
        ("semel_relay_limited_total", &meters.limited),
    ] {
        one(name, "counter", &[("", n(value.get()))]);
    }
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

#[derive(Deserialize)]
struct Page {
    state: Option<String>,
    #[serde(default)]
    after: i64,
    limit: Option<i64>,
}

impl Page {
    fn most(&self) -> i64 {
        self.limit.unwrap_or(100).clamp(1, ROWS_MAX)
    }
}

async fn list(State(admin): State<Admin>, Query(page): Query<Page>) -> Response<Body> {
    const STATES: [&str; 6] = ["open", "blocked", "in-doubt", "dead", "parked", "pending"];
    if page.state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
        let why = format!("state is one of {}", STATES.join(", "));
        return refused(StatusCode::BAD_REQUEST, "bad-state", &why);
    }
    match admin.engine.store.list(page.state.as_deref(), page.after, page.most()).await {
        Ok(lanes) => plain(StatusCode::OK, &json!({"lanes": lanes.iter().map(lane).collect::<Vec<_>>()})),
        Err(error) => away(&error),
    }
}

async fn show(State(admin): State<Admin>, Path(id): Path<i64>) -> Response<Body> {
    match admin.engine.store.detail(id).await {
        Ok(Some(found)) => plain(StatusCode::OK, &detail(&found)),
        Ok(None) => no_lane(),
        Err(error) => away(&error),
    }
}

fn actor(headers: &HeaderMap) -> String {
    let named = headers.get("semel-actor").and_then(|name| name.to_str().ok()).map(str::trim);
    named.filter(|name| !name.is_empty() && name.len() <= 100).unwrap_or("operator").to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    outcome: String,
}

async fn resolve(
    State(admin): State<Admin>,
    Path(id): Path<i64>,
    headers: HeaderMap,
    Json(said): Json<Said>,
) -> Response<Body> {
    let resolution = match said.outcome.as_str() {
        "applied" => Resolution::Applied,
        "not-applied" => Resolution::NotApplied,
        _ => return refused(StatusCode::BAD_REQUEST, "bad-outcome", "outcome is applied or not-applied"),
    };
    let found = match admin.engine.store.detail(id).await {
        Ok(Some(found)) => found,
        Ok(None) => return no_lane(),
        Err(error) => return away(&error),
    };
    let Some(target) = admin.engine.targets.get(&found.lane.target) else {
        return refused(StatusCode::CONFLICT, "no-target", "its target is not in the configuration");
    };
    let late = millis_of(target.late_window);
    match admin.engine.store.resolve(id, resolution, target.reducer, late, &actor(&headers)).await {
        Ok(Resolved::Done) => plain(StatusCode::OK, &json!({"resolved": said.outcome})),
        Ok(Resolved::NotInDoubt) => refused(StatusCode::CONFLICT, "not-in-doubt", "the lane is not in doubt"),
        Ok(Resolved::TooEarly { until }) => {
            let more = serde_json::Map::from_iter([("until_ms".to_owned(), json!(until))]);
            refusal_with(StatusCode::CONFLICT, "too-early", "the write may still be applied late", &more)
        }
        Err(error) => away(&error),
    }
}

async fn requeue(State(admin): State<Admin>, Path(id): Path<i64>, headers: HeaderMap) -> Response<Body> {
    match admin.engine.store.list(None, id.saturating_sub(1), 1).await {
        Ok(found) => match found.first().filter(|lane| lane.id == id) {
            // What may have been applied is never sent anew.
            Some(lane) if lane.state == LaneState::InDoubt => {
                let why =
                    "the lane is in doubt: say first what became of its write, with `semel relay resolve`";
                return refused(StatusCode::CONFLICT, "in-doubt", why);
            }
            Some(_) => {}
            None => return no_lane(),
        },
        Err(error) => return away(&error),
    }
    match admin.engine.store.requeue(id, &actor(&headers)).await {
        Ok(count) => plain(StatusCode::OK, &json!({"requeued": count})),
        Err(error) => away(&error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Released {
    target: String,
    principal: String,
}

async fn release(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Json(whose): Json<Released>,
) -> Response<Body> {
    if let Some(refusal) = unnameable(&[&whose.target, &whose.principal]) {
        return refusal;
    }
    match admin.engine.release(&whose.target, &whose.principal, &actor(&headers)).await {
        // What is in the store may be of a target that this file does not know.
        Ok(0) if !admin.engine.targets.contains_key(&whose.target) => {
            let why = format!("there is no target {:?}, and nothing of it is parked", whose.target);
            refused(StatusCode::NOT_FOUND, "unknown-target", &why)
        }
        Ok(count) => plain(StatusCode::OK, &json!({"released": count})),
        Err(error) => away(&error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    target: String,
    principal: String,
    header: Option<String>,
    value: String,
}

/// Refuses names that nobody has, and that a database could not compare.
fn unnameable(names: &[&str]) -> Option<Response<Body>> {
    let is_bad = names.iter().any(|name| name.chars().any(char::is_control));
    let why = "a name contains control characters";
    is_bad.then(|| refused(StatusCode::BAD_REQUEST, "bad-name", why))
}

async fn credentials(State(admin): State<Admin>, Json(given): Json<Given>) -> Response<Body> {
    if let Some(refusal) = unnameable(&[&given.principal]) {
        return refusal;
    }
    let Some(target) = admin.engine.targets.get(&given.target) else {
        return refused(StatusCode::NOT_FOUND, "unknown-target", "there is no such target");
    };
    let header = given.header.unwrap_or_else(|| "Authorization".to_owned());
    let is_name = http::HeaderName::try_from(header.as_str()).is_ok();
    if !is_name || given.value.trim().is_empty() || given.value.chars().any(char::is_control) {
        return refused(
            StatusCode::BAD_REQUEST,
            "bad-credential",
            "the header's name is not one, or its value is empty or contains control characters",
        );
    }
    let credential = Credential::line(&header, given.value.trim());
    admin.wallet.give_for(&given.principal, &given.target, target.upstream.origin(), credential);
    match admin.engine.release_renewed().await {
        Ok(count) => plain(StatusCode::OK, &json!({"released": count})),
        Err(error) => away(&error),
    }
}

async fn audit(State(admin): State<Admin>, Query(page): Query<Page>) -> Response<Body> {
    match admin.engine.store.audit_after(page.after, page.most()).await {
        Ok(rows) => plain(StatusCode::OK, &json!({"rows": rows.iter().map(row).collect::<Vec<_>>()})),
        Err(error) => away(&error),
    }
}

/// A text of others as it is shown. Rows of earlier releases may hold texts without an end.
fn bounded(text: &str) -> String {
    semel_delivery::limits::shorten(text, semel_delivery::limits::ERROR_CHARS_MAX)
}

fn evidence(text: &str) -> Value {
    let mut rows: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    for row in &mut rows {
        if let Some(what) = row["what"].as_str().map(bounded) {
            row["what"] = json!(what);
        }
    }
    Value::Array(rows)
}

fn lane(lane: &Lane) -> Value {
    json!({
        "id": lane.id,
        "target": lane.target,
        "group": lane.group,
        "lane": lane.name,
        "label": lane.label,
        "state": lane.state.name(),
        "applied": lane.applied,
        "watermark": lane.watermark,
        "attempts": lane.attempts,
        "last_error": lane.last_error.as_deref().map(bounded),
    })
}

fn entry(entry: &Entry) -> Value {
    json!({
        "seq": entry.seq,
        "request": entry.request,
        "position": entry.pos,
        "principal": entry.principal,
        "value": entry.value,
        "session": entry.session,
        "since_ms": entry.created,
    })
}

fn row(row: &AuditRow) -> Value {
    json!({
        "id": row.id,
        "at_ms": row.at,
        "event": row.event,
        "target": row.target,
        "group": row.group,
        "lane": row.lane,
        "seq": row.seq,
        "request": row.request,
        "position": row.pos,
        "principal": row.principal,
        "sender": row.sender,
        "value": row.value,
        "before": row.before,
        "after": row.after,
        "batch": row.batch,
        "detail": bounded(&row.detail),
    })
}

fn detail(found: &LaneDetail) -> Value {
    let mut body = lane(&found.lane);
    body["due_ms"] = json!(found.due);
    body["intent"] = found.intent.as_ref().map_or(Value::Null, |intent| {
        json!({
            "sender": intent.principal,
            "after_seq": intent.lo,
            "up_to_seq": intent.hi,
            "before": intent.before,
            "after": intent.after,
            "version": intent.version,
            "key": intent.key,
            "request": serde_json::from_str::<Value>(&intent.request).unwrap_or(Value::Null),
            "tries": intent.tries,
            "first_ms": intent.first,
            "last_ms": intent.last,
            "evidence": evidence(&intent.evidence),
        })
    });
    body["entries"] = found.entries.iter().map(entry).collect();
    let held = |(state, why, held): &(String, String, Entry)| {
        let mut body = entry(held);
        body["state"] = json!(state);
        body["why"] = json!(bounded(why));
        body
    };
    body["held"] = found.held.iter().map(held).collect();
    body["audit"] = found.audit.iter().map(row).collect();
    body
}
