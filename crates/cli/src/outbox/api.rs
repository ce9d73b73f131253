//! The outbox's HTTP surface. The daemon serves it behind its door; the command line calls it without one, where no
//! daemon runs.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::routing::{get, post};
use base64::Engine as _;
use semel_delivery::store::{Filter, Find, LaneState, Order};
use semel_delivery::waiting::waits_for;
use semel_delivery::{NewBody, Outbox, OutboxError, Requeue, Row, Status};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, failed, json_answer, refusal};
use super::body::{Answered, Api, BodyRead, acting, acting_for, envelope_bytes_max, parsed, whole};
use super::{audit, credentials, envelope, inbox, openapi};

/// Successors and predecessors that a receipt names.
const CHAIN_MAX: usize = 1000;
/// Events that are read at once.
const EVENTS_MAX: u32 = 500;
/// The routes.
pub(crate) fn router(api: Api) -> Router {
    finished(Router::new().route("/v1/send", post(send)), api)
}

/// The routes of operators: they look and decide, and send nothing of their own.
pub(crate) fn operating(api: Api) -> Router {
    finished(Router::new(), api)
}

fn finished(router: Router<Api>, api: Api) -> Router {
    let body_max = envelope_bytes_max(api.outbox.settings());
    router
        .route("/v1/messages", get(list))
        .route("/v1/messages/{id}", get(show))
        .route("/v1/messages/{id}/requeue", post(requeue))
        .route("/v1/messages/{id}/abort", post(abort))
        .route("/v1/events", get(events))
        .route("/v1/inbox", get(inbox::list))
        .route("/v1/inbox/events", get(inbox::events))
        .route("/v1/inbox/{sender}/{id}", get(inbox::show))
        .route("/v1/inbox/{sender}/{id}/ack", post(inbox::acknowledge))
        .route("/v1/lanes", get(lanes))
        .route("/v1/lanes/{lane}/pause", post(pause))
        .route("/v1/lanes/{lane}/resume", post(resume))
        .route("/v1/credentials", get(credentials::show).post(credentials::give))
        .route("/v1/release", post(credentials::release))
        .route("/v1/audit", get(audit::list))
        .route("/v1/clock", get(clock))
        .route("/v1/clock/confirm", post(confirm_clock))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/openapi.json", get(openapi::document))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .fallback(|| async {
            refusal(StatusCode::NOT_FOUND, "not-found", "there is nothing here; see /v1/openapi.json")
        })
        .layer(DefaultBodyLimit::max(body_max))
        .layer(middleware::from_fn_with_state(api.clone(), super::body::read_first))
        .layer(middleware::map_response(crate::problems::rendered))
        .with_state(api)
}

async fn send(State(api): State<Api>, headers: HeaderMap, body: BodyRead) -> Answered {
    accept(&api, &whole(body)?, wanted_wait(&headers)).await
}

/// Accepts the message of a body, and waits for its end where that is wanted.
pub(super) async fn accept(api: &Api, body: &[u8], wait: Option<Duration>) -> Answered {
    let enqueue = envelope::read(body, api.mesh.as_deref())
        .map_err(|refused| failed(&OutboxError::Refused(refused)))?;
    let accepted = api.outbox.enqueue(enqueue).await.map_err(|error| failed(&error))?;
    let mut finished = None;
    if let Some(wait) = wait.filter(|_| accepted.receipt.status.is_live()) {
        let row = api.outbox.wait(accepted.receipt.id, wait).await.map_err(|error| failed(&error))?;
        finished = row;
    }
    let (status, body) = match finished {
        Some(row) if !row.status.is_live() => (StatusCode::OK, answer::receipt(&row)),
        // It was waited for in vain: the receipt so far says what it waits for.
        Some(row) => {
            let mut body = full_receipt(&api.outbox, &row).await.map_err(|error| failed(&error))?;
            let (status, said) = answer::accepted(&accepted);
            for (name, value) in said.as_object().into_iter().flatten() {
                body[name] = value.clone();
            }
            if row.status != Status::Pending {
                body["status"] = json!(row.status.name());
            }
            (status, body)
        }
        None => answer::accepted(&accepted),
    };
    let mut response = json_answer(status, &body);
    let place = format!("/v1/messages/{}", semel_delivery::url::encoded(&accepted.receipt.client_message_id));
    if let Ok(place) = place.parse() {
        response.headers_mut().insert(header::LOCATION, place);
    }
    if let Some(applied) = wait.and_then(|wait| format!("wait={}", wait.as_secs()).parse().ok()) {
        response.headers_mut().insert("preference-applied", applied);
    }
    Ok(response)
}

/// `Prefer: wait=N`.
pub(super) fn wanted_wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split([',', ';']));
    let seconds = preferences.find_map(|preference| preference.trim().strip_prefix("wait="))?;
    seconds.trim_matches('"').parse().ok().map(Duration::from_secs)
}

#[derive(Deserialize)]
struct Wanted {
    /// The same as `status`, by the name that gate and relay have for it.
    state: Option<String>,
    status: Option<String>,
    lane: Option<String>,
    key: Option<String>,
    limit: Option<u32>,
    after: Option<i64>,
    before: Option<i64>,
    order: Option<String>,
}

async fn list(
    State(api): State<Api>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let malformed = |why: &str| refusal(StatusCode::BAD_REQUEST, "malformed", why);
    let Query(wanted) = wanted.map_err(|error| malformed(&error.body_text()))?;
    let status = wanted.state.or(wanted.status).filter(|status| !status.is_empty());
    let status = match status.as_deref() {
        None => None,
        Some(name) => Some(Status::parse(name).ok_or_else(|| malformed(&no_such_status(name)))?),
    };
    let order = match wanted.order.as_deref() {
        None | Some("oldest") => Order::OldestFirst,
        Some("newest") => Order::NewestFirst,
        Some(_) => return Err(malformed("order is newest or oldest").into()),
    };
    let limit = wanted.limit.unwrap_or(100).clamp(1, semel_delivery::limits::LIST_ROWS_MAX);
    let (after, before) = (wanted.after.unwrap_or(0), wanted.before);
    let filter = Filter { status, lane: wanted.lane, key: wanted.key, after, before, order, limit };
    let rows = api.outbox.list(filter).await.map_err(|error| failed(&error))?;
    let is_full = rows.len() == limit as usize;
    let last = rows.last().filter(|_| is_full).map(|row| row.id);
    let (next_after, next_before) = match order {
        Order::OldestFirst => (last, None),
        Order::NewestFirst => (None, last),
    };
    let messages = receipts(&api.outbox, &rows).await.map_err(|error| failed(&error))?;
    let mut body = json!({"messages": messages, "next_after": next_after, "next_before": next_before});
    if let Some(jump) = api.outbox.clock_jump() {
        body["clock_jump_ms"] = json!(jump);
    }
    Ok(json_answer(StatusCode::OK, &body))
}

fn no_such_status(name: &str) -> String {
    let known: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
    format!("there is no status {name:?}: expected one of {}", known.join(", "))
}

async fn show(State(api): State<Api>, Path(id): Path<String>) -> Answered {
    let row = api.outbox.named(&id).await.map_err(|error| failed(&error))?;
    let mut body = full_receipt(&api.outbox, &row).await.map_err(|error| failed(&error))?;
    if row.client_message_id != id && row.id.to_string() != id {
        body["alias_of"] = json!(row.client_message_id);
    }
    let log = api.outbox.attempts(row.id).await.map_err(|error| failed(&error))?;
    body["log"] = log.iter().map(answer::attempt).collect();
    body["chain"] = chain(&api.outbox, &row).await.map_err(|error| failed(&error))?;
    Ok(json_answer(StatusCode::OK, &body))
}

/// Receipts that say what their messages wait for.
async fn receipts(outbox: &Outbox, rows: &[Row]) -> Result<Vec<Value>, OutboxError> {
    let reasons = outbox.waits_for(rows).await?;
    let receipt = |(row, reason): (&Row, Option<String>)| {
        let mut receipt = answer::receipt(row);
        receipt["waits_for"] = json!(reason);
        receipt
    };
    Ok(rows.iter().zip(reasons).map(receipt).collect())
}

async fn full_receipt(outbox: &Outbox, row: &Row) -> Result<Value, OutboxError> {
    let receipts = receipts(outbox, std::slice::from_ref(row)).await?;
    Ok(receipts.into_iter().next().unwrap_or_default())
}

/// A message, what it took the place of and what took its place, oldest first.
async fn chain(outbox: &Outbox, row: &Row) -> Result<Value, OutboxError> {
    let mut chain = std::collections::VecDeque::from([row.clone()]);
    while let Some(before) = chain.front().and_then(|row| row.supersedes).filter(|_| chain.len() < CHAIN_MAX)
    {
        let Some(row) = outbox.found(Find::Row(before)).await? else { break };
        chain.push_front(row);
    }
    while let Some(after) = chain.back().and_then(|row| row.superseded_by).filter(|_| chain.len() < CHAIN_MAX)
    {
        let Some(row) = outbox.found(Find::Row(after)).await? else { break };
        chain.push_back(row);
    }
    let link = |row: &Row| {
        json!({
            "id": row.id,
            "client_message_id": row.client_message_id,
            "status": row.status.name(),
            "possibly_delivered": row.is_possibly_delivered(),
        })
    };
    Ok(chain.iter().map(link).collect())
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RequeueAsked {
    new_client_id: Option<String>,
    auto: bool,
    patch_body_base64: Option<String>,
    force: bool,
    reason: Option<String>,
}

async fn requeue(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: BodyRead,
) -> Answered {
    let asked: RequeueAsked = parsed(&whole(body)?)?;
    let malformed = |why: &str| refusal(StatusCode::BAD_REQUEST, "malformed", why);
    if asked.auto && asked.new_client_id.is_some() {
        return Err(malformed("give new_client_id or auto, not both").into());
    }
    if asked
        .new_client_id
        .as_deref()
        .is_some_and(|id| id.is_empty() || id.len() > 255 || !id.bytes().all(|b| b.is_ascii_graphic()))
    {
        return Err(malformed("new_client_id must have 1 to 255 printable characters").into());
    }
    let body = match asked.patch_body_base64 {
        None => NewBody::Same,
        Some(encoded) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded);
            NewBody::Patched(bytes.map_err(|error| malformed(&format!("patch_body_base64: {error}")))?)
        }
    };
    let row = api.outbox.named(&id).await.map_err(|error| failed(&error))?;
    let how = Requeue { new_client_id: asked.new_client_id, body, force: asked.force };
    let outbox = acting(&api, &headers, asked.reason.as_deref())?;
    let done = outbox.requeue(&row, how).await.map_err(|error| failed(&error))?;
    let body = json!({
        "old": answer::receipt(&done.old),
        "new": answer::receipt(&done.new),
        "sealed": done.is_sealed,
        "possibly_delivered": done.old.is_possibly_delivered(),
    });
    Ok(json_answer(StatusCode::OK, &body))
}

async fn abort(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: BodyRead,
) -> Answered {
    let outbox = acting_for(&api, &headers, body)?;
    let row = outbox.named(&id).await.map_err(|error| failed(&error))?;
    let row = outbox.abort(row.id, "aborted by an operator").await.map_err(|error| failed(&error))?;
    Ok(json_answer(StatusCode::OK, &answer::receipt(&row)))
}

/// Where a page of lanes begins, and how long it is; without a length it is all of them.
#[derive(Deserialize)]
struct LanePage {
    after: Option<String>,
    limit: Option<usize>,
}

async fn lanes(
    State(api): State<Api>,
    page: Result<Query<LanePage>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let malformed = |why: &str| refusal(StatusCode::BAD_REQUEST, "malformed", why);
    let Query(page) = page.map_err(|error| malformed(&error.body_text()))?;
    let mut lanes = api.outbox.lanes().await.map_err(|error| failed(&error))?;
    lanes.retain(|lane| page.after.as_ref().is_none_or(|after| lane.lane > *after));
    let limit = page.limit.unwrap_or(usize::MAX).max(1);
    let next = lanes.get(limit - 1).filter(|_| lanes.len() > limit).map(|last| last.lane.clone());
    lanes.truncate(limit);
    // What each waits for is asked lane by lane, for those of the page alone.
    let mut shown = Vec::with_capacity(lanes.len());
    for lane in &lanes {
        shown.push(full_lane(&api.outbox, lane).await.map_err(|error| failed(&error))?);
    }
    Ok(json_answer(StatusCode::OK, &json!({"lanes": shown, "next_after": next})))
}

async fn pause(
    State(api): State<Api>,
    Path(lane): Path<String>,
    headers: HeaderMap,
    body: BodyRead,
) -> Answered {
    acting_for(&api, &headers, body)?.pause(&lane).await.map_err(|error| failed(&error))?;
    lane_now(&api, lane).await
}

async fn resume(
    State(api): State<Api>,
    Path(lane): Path<String>,
    headers: HeaderMap,
    body: BodyRead,
) -> Answered {
    acting_for(&api, &headers, body)?.resume(&lane).await.map_err(|error| failed(&error))?;
    lane_now(&api, lane).await
}

async fn lane_now(api: &Api, lane: String) -> Answered {
    let state = api.outbox.lane(&lane).await.map_err(|error| failed(&error))?;
    let shown = full_lane(&api.outbox, &state).await.map_err(|error| failed(&error))?;
    Ok(json_answer(StatusCode::OK, &shown))
}

/// A lane that says what its head waits for.
async fn full_lane(outbox: &Outbox, lane: &LaneState) -> Result<Value, OutboxError> {
    let mut shown = answer::lane(lane);
    let head = match lane.head {
        Some(head) => outbox.found(Find::Row(head)).await?,
        None => None,
    };
    shown["head_status"] = json!(head.as_ref().map(|head| head.status.name()));
    shown["head_client_message_id"] = json!(head.as_ref().map(|head| &head.client_message_id));
    shown["waits_for"] = json!(head.and_then(|head| waits_for(&head, lane, None, outbox.now())));
    Ok(shown)
}

#[derive(Deserialize)]
struct From {
    after: Option<i64>,
}

/// Events as they happen, from after `Last-Event-ID` or `?after=` on. A number that was never given begins at the newest,
/// with an event `reset` that says so.
async fn events(State(api): State<Api>, Query(from): Query<From>, headers: HeaderMap) -> Response<Body> {
    let last =
        headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let watch = api.outbox.watch();
    let newest = *watch.borrow();
    let mut after = last.or(from.after).unwrap_or(newest);
    let mut ready = std::collections::VecDeque::new();
    if after > newest {
        // A number of another file, or of one that was restored: waiting for it would be waiting for ever.
        let reset = json!({"asked": after, "newest": newest});
        let id = newest.to_string();
        ready.push_back(sse::Event::default().id(id).event("reset").data(reset.to_string()));
        after = newest;
    }
    let state = (api.outbox, watch, after, ready);
    let stream =
        futures_util::stream::unfold(state, |(outbox, mut watch, mut after, mut ready)| async move {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Some((Ok::<sse::Event, Infallible>(event), (outbox, watch, after, ready)));
                }
                // Marked as seen before the look, so that an event in between wakes us.
                watch.mark_unchanged();
                let Ok((found, first)) = outbox.events(after, EVENTS_MAX).await else { return None };
                if after > 0 && after + 1 < first {
                    let gap = json!({"from": after + 1, "to": first - 1});
                    ready.push_back(sse::Event::default().event("gap").data(gap.to_string()));
                }
                for event in &found {
                    after = event.number;
                    let data = answer::event(event).to_string();
                    ready.push_back(
                        sse::Event::default().id(after.to_string()).event(event.kind.as_str()).data(data),
                    );
                }
                if ready.is_empty() && watch.changed().await.is_err() {
                    return None;
                }
            }
        });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
}

async fn clock(State(api): State<Api>) -> Answered {
    let body = json!({"now": api.outbox.now().to_string(), "jump_ms": api.outbox.clock_jump()});
    Ok(json_answer(StatusCode::OK, &body))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Confirmed {
    reason: String,
}

async fn confirm_clock(State(api): State<Api>, headers: HeaderMap, body: BodyRead) -> Answered {
    let said: Confirmed = parsed(&whole(body)?)?;
    if said.reason.trim().is_empty() {
        return Err(refusal(StatusCode::BAD_REQUEST, "reason-missing", "say why, in `reason`").into());
    }
    if api.outbox.clock_jump().is_none() {
        let why = "the clock is believed: there is nothing to confirm";
        return Err(refusal(StatusCode::CONFLICT, "clock-not-frozen", why).into());
    }
    let reason = semel_delivery::limits::shorten(&said.reason, semel_delivery::limits::ERROR_CHARS_MAX);
    let outbox = acting(&api, &headers, Some(&reason))?;
    outbox.confirm_clock(&reason).await.map_err(|error| failed(&error))?;
    clock(State(api)).await
}

async fn metrics(State(api): State<Api>) -> Answered {
    let mut text = api.outbox.metrics().await.map_err(|error| failed(&error))?;
    if let Some(receiving) = &api.receiving {
        text.push_str(&receiving.metrics());
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

async fn healthz(State(api): State<Api>) -> Answered {
    api.outbox.ready().await.map_err(|error| failed(&error))?;
    api.outbox.found(Find::Row(0)).await.map_err(|error| failed(&error))?;
    Ok("ok\n".into_response())
}
