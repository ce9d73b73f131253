//! What operators see and do: health, numbers, lanes, resolutions, credentials, the audit trail.

use std::sync::atomic::Ordering;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::middleware::Next;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use semel_contract::time::{Timestamp, millis_of};
use semel_delivery::relay::store::list::{LaneFilter, ListedLane};
use semel_delivery::relay::store::look::LaneDetail;
use semel_delivery::relay::store::operate::{Resolution, Resolved};
use semel_delivery::relay::store::{AuditRow, Entry, Lane, LaneState};
use semel_delivery::store::Order;
use semel_http::UnreadBody;
use serde::Deserialize;
use serde_json::{Value, json};

use super::access;
use super::answer::plain;
use super::context::{Admin, acting, away, reason_in};
use crate::problems::{self, refusal as refused, refusal_with};

/// Bytes of a request of an operator.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Rows of one list at most.
const ROWS_MAX: i64 = 1000;

/// What a program reads that asks for text.
pub(crate) const INDEX: &str = "\
semel relay: the admin address

GET  /healthz, /readyz               whether the process lives, and whether it can serve
GET  /metrics                        metrics in the text form of Prometheus
GET  /v1/relay/lanes?state=          lanes that are in doubt, blocked, or hold something
GET  /v1/relay/lanes/{id}            one lane; POST …/resolve and …/requeue
POST /v1/relay/release, /credentials parked changes and credentials
GET  /v1/relay/clock                 the store's clock; POST …/confirm after a jump
GET  /v1/relay/audit                 the audit trail
GET  /openapi.json                   all of it, described

The command line asks here: semel relay list, semel relay --help
";

/// The API, which lets everybody in: whoever serves it puts a guard before it.
pub(crate) fn api(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(async || Json(json!({"status": "ok"}))))
        .route("/readyz", get(readyz))
        .route("/metrics", get(super::numbers::metrics))
        .route("/v1/relay/lanes", get(list))
        .route("/v1/relay/lanes/{id}", get(show))
        .route("/v1/relay/lanes/{id}/resolve", post(resolve))
        .route("/v1/relay/lanes/{id}/requeue", post(requeue))
        .route("/v1/relay/release", post(access::release))
        .route("/v1/relay/credentials", post(access::give))
        .route("/v1/relay/clock", get(access::clock))
        .route("/v1/relay/clock/confirm", post(access::confirm_clock))
        .route("/v1/relay/audit", get(audit))
        .route("/openapi.json", get(super::openapi::document))
        .layer(middleware::from_fn_with_state(admin.clone(), read_body))
        .layer(middleware::map_response(problems::rendered))
        .with_state(admin)
}

/// Reads the body within its bounds, once the guard has let its sender in.
async fn read_body(State(admin): State<Admin>, request: Request, next: Next) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match admin.bodies.read(body, BODY_BYTES_MAX).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(unread) => {
            let (status, code) = match &unread {
                UnreadBody::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
                UnreadBody::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
                UnreadBody::TooSlow(_) | UnreadBody::BrokeOff(_) => {
                    (StatusCode::REQUEST_TIMEOUT, "request-malformed")
                }
            };
            refused(status, code, &unread.problem().detail)
        }
    }
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

#[derive(Deserialize)]
struct Page {
    state: Option<String>,
    target: Option<String>,
    lane: Option<String>,
    key: Option<String>,
    #[serde(default)]
    after: i64,
    before: Option<i64>,
    order: Option<String>,
    limit: Option<i64>,
}

impl Page {
    fn most(&self) -> i64 {
        self.limit.unwrap_or(100).clamp(1, ROWS_MAX)
    }

    fn filter(self) -> Result<LaneFilter, String> {
        const STATES: [&str; 6] = ["open", "blocked", "in-doubt", "dead", "parked", "pending"];
        if self.state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
            return Err(format!("state is one of {}", STATES.join(", ")));
        }
        let texts = [&self.target, &self.lane, &self.key];
        if texts.iter().any(|text| text.as_deref().is_some_and(|text| text.chars().any(char::is_control))) {
            return Err("a name contains control characters".to_owned());
        }
        let order = match self.order.as_deref() {
            None | Some("oldest") => Order::OldestFirst,
            Some("newest") => Order::NewestFirst,
            Some(_) => return Err("order is newest or oldest".to_owned()),
        };
        let (limit, before) = (self.most(), self.before);
        let Page { state, target, lane, key, after, .. } = self;
        Ok(LaneFilter { state, target, lane, key, after, before, order, limit })
    }
}

async fn list(State(admin): State<Admin>, Query(page): Query<Page>) -> Response<Body> {
    let filter = match page.filter() {
        Ok(filter) => filter,
        Err(why) => return refused(StatusCode::BAD_REQUEST, "bad-state", &why),
    };
    match admin.engine.store.find_lanes(&filter).await {
        Ok(lanes) => {
            let is_full = i64::try_from(lanes.len()) == Ok(filter.limit);
            let last = lanes.last().filter(|_| is_full).map(|listed| listed.lane.id);
            let (next_after, next_before) = match filter.order {
                Order::OldestFirst => (last, None),
                Order::NewestFirst => (None, last),
            };
            let lanes: Vec<Value> = lanes.iter().map(listed).collect();
            let mut body = json!({"lanes": lanes, "next_after": next_after, "next_before": next_before});
            let ahead = admin.engine.store.clock_ahead();
            if ahead != 0 {
                body["clock_jump_ms"] = json!(ahead);
            }
            plain(StatusCode::OK, &body)
        }
        Err(error) => away(&error),
    }
}

fn listed(found: &ListedLane) -> Value {
    let mut body = lane(&found.lane);
    body["standing"] = json!(found.standing());
    body["pending"] = json!(found.pending);
    body["parked"] = json!(found.parked);
    body["dead"] = json!(found.dead);
    body
}

/// A time for people, beside the number for programs.
fn at(millis: impl Into<Option<i64>>) -> Value {
    millis.into().map_or(Value::Null, |millis| json!(Timestamp::from_millis(millis).to_string()))
}

async fn show(State(admin): State<Admin>, Path(id): Path<i64>) -> Response<Body> {
    match admin.engine.store.detail(id).await {
        Ok(Some(found)) => plain(StatusCode::OK, &detail(&found)),
        Ok(None) => no_lane(),
        Err(error) => away(&error),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    outcome: String,
    reason: Option<String>,
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
    let by = match acting(&headers, said.reason.as_deref()) {
        Ok(by) => by,
        Err(refused) => return *refused,
    };
    match admin.engine.store.resolve(id, resolution, target.reducer, late, by).await {
        Ok(Resolved::Done) => plain(StatusCode::OK, &json!({"resolved": said.outcome})),
        Ok(Resolved::NotInDoubt) => refused(StatusCode::CONFLICT, "not-in-doubt", "the lane is not in doubt"),
        Ok(Resolved::TooEarly { until }) => {
            let more = serde_json::Map::from_iter([
                ("until_ms".to_owned(), json!(until)),
                ("until".to_owned(), at(until)),
            ]);
            refusal_with(StatusCode::CONFLICT, "too-early", "the write may still be applied late", &more)
        }
        Err(error) => away(&error),
    }
}

async fn requeue(
    State(admin): State<Admin>,
    Path(id): Path<i64>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let by = match acting(&headers, reason_in(&body).as_deref()) {
        Ok(by) => by,
        Err(refused) => return *refused,
    };
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
    match admin.engine.store.requeue(id, by).await {
        Ok(count) => plain(StatusCode::OK, &json!({"requeued": count})),
        Err(error) => away(&error),
    }
}

async fn audit(State(admin): State<Admin>, Query(page): Query<Page>) -> Response<Body> {
    match admin.engine.store.audit_after(page.after, page.most()).await {
        Ok(rows) => {
            let is_full = i64::try_from(rows.len()) == Ok(page.most());
            let next = rows.last().filter(|_| is_full).map(|row| row.id);
            plain(
                StatusCode::OK,
                &json!({"rows": rows.iter().map(row).collect::<Vec<_>>(), "next_after": next}),
            )
        }
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
        row["at"] = at(row["at_ms"].as_i64());
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
        "since": at(entry.created),
    })
}

fn row(row: &AuditRow) -> Value {
    json!({
        "id": row.id,
        "at_ms": row.at,
        "at": at(row.at),
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
        "reason": row.reason.as_deref().map(bounded),
        "detail": bounded(&row.detail),
    })
}

fn detail(found: &LaneDetail) -> Value {
    let mut body = lane(&found.lane);
    body["due_ms"] = json!(found.due);
    body["due_at"] = at(found.due);
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
            "first_at": at(intent.first),
            "last_ms": intent.last,
            "last_at": at(intent.last),
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
