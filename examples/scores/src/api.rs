//! The score API before the external service: leaders send points, the relay inside writes them.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::accept::{Accepted, NewItem, Submission};
use semel_delivery::relay::{Engine, Worker, intake};
use serde::Deserialize;
use serde_json::{Value, json};

/// The one target of this program.
pub const TARGET: &str = "scores";
/// Patrols of one request.
const PATROLS_MAX: usize = 100;

/// What the handlers work on.
#[derive(Clone, Debug)]
pub struct Api {
    /// The relay's engine.
    pub engine: Arc<Engine>,
    /// What keeps it moving.
    pub worker: Arc<Worker>,
}

#[derive(Deserialize)]
struct Points {
    id: String,
    name: Option<String>,
    points: i64,
}

#[derive(Deserialize)]
struct Scores {
    patrols: Vec<Points>,
}

impl Api {
    /// Its routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/api/sections/{section}/scores", get(patrols).post(submit))
            .route("/api/session", get(session))
            .with_state(self)
    }
}

/// Why a request is not answered as it wished.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"message": self.1}))).into_response()
    }
}

fn refused(status: StatusCode, why: &str) -> Refusal {
    Refusal(status, why.to_owned())
}

fn away(error: &StoreError) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// Whoever stands before this program has verified the leader.
fn leader(headers: &HeaderMap) -> Result<String, Refusal> {
    let name = headers.get("x-leader").and_then(|name| name.to_str().ok()).filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| refused(StatusCode::UNAUTHORIZED, "who are you?"))
}

async fn submit(
    State(api): State<Api>,
    Path(section): Path<String>,
    headers: HeaderMap,
    Json(scores): Json<Scores>,
) -> Response {
    submitted(&api, section, &headers, scores).await.into_response()
}

async fn submitted(
    api: &Api,
    section: String,
    headers: &HeaderMap,
    scores: Scores,
) -> Result<Response, Refusal> {
    let principal = leader(headers)?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let key = text("x-idempotency-key").filter(|key| !key.is_empty() && key.chars().count() <= 255);
    let key = key.ok_or_else(|| refused(StatusCode::BAD_REQUEST, "Idempotency key required"))?;
    let mode = Mode::parse(text("x-sync-mode").as_deref().unwrap_or("interactive"));
    let mode =
        mode.ok_or_else(|| refused(StatusCode::BAD_REQUEST, "X-Sync-Mode is interactive or background"))?;
    if scores.patrols.is_empty() || scores.patrols.len() > PATROLS_MAX {
        return Err(refused(StatusCode::BAD_REQUEST, "from 1 to 100 patrols"));
    }
    let item = |points: Points| NewItem {
        lane: points.id,
        group: section.clone(),
        label: points.name,
        session: text("x-session"),
        value: points.points,
    };
    let items: Vec<NewItem> = scores.patrols.into_iter().map(item).collect();
    let target = api.engine.targets.get(TARGET).ok_or_else(|| refused(StatusCode::NOT_FOUND, "no target"))?;
    let submission = Submission {
        target: TARGET.to_owned(),
        principal,
        key,
        fingerprint: intake::fingerprint(TARGET, &items),
        mode,
        debounce: target.debounce,
        groups: target.groups,
        items,
    };
    let request = match api.engine.store.accept(&submission).await.map_err(|error| away(&error))? {
        Accepted::Mismatch => {
            return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "this key was used for other points"));
        }
        Accepted::Known { request } => request,
        Accepted::New { request, lanes, .. } => {
            if mode == Mode::Interactive {
                api.worker.wait(&submission, request, &lanes).await.map_err(|error| away(&error))?;
            }
            request
        }
    };
    let found = api.engine.store.request(request).await.map_err(|error| away(&error))?;
    let found = found.ok_or_else(|| refused(StatusCode::NOT_FOUND, "the request is gone"))?;
    let patrols: Vec<Value> = found
        .items
        .iter()
        .map(|item| json!({"id": item.lane, "name": item.label, "score": item.applied}))
        .collect();
    if found.open == 0 && found.dead == 0 {
        return Ok(Json(json!({"success": true, "patrols": patrols})).into_response());
    }
    let mut body = json!({"success": found.dead == 0, "patrols": patrols});
    if found.open > 0 {
        let message = "Your points are saved and will be added automatically.";
        body["pending"] = json!({"count": found.open, "message": message});
    }
    if found.dead > 0 {
        // What was given up is no success, whatever became of the rest.
        let message = "Some points were given up and are not added; they are kept for an operator.";
        body["failed"] = json!({"count": found.dead, "message": message});
    }
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

async fn patrols(State(api): State<Api>, Path(section): Path<String>, headers: HeaderMap) -> Response {
    if let Err(refusal) = leader(&headers) {
        return refusal.into_response();
    }
    let Some(target) = api.engine.targets.get(TARGET) else {
        return refused(StatusCode::NOT_FOUND, "no target").into_response();
    };
    let views = match api.engine.store.lanes(TARGET, Some(&section), target.reducer).await {
        Ok(views) => views,
        Err(error) => return away(&error).into_response(),
    };
    let patrol = |view: &semel_delivery::relay::store::look::LaneView| {
        json!({
            "id": view.lane.name,
            "name": view.lane.label,
            "score": view.lane.applied,
            "pendingDelta": view.delta,
            "hasPending": view.pending > 0,
        })
    };
    Json(json!({"patrols": views.iter().map(patrol).collect::<Vec<_>>()})).into_response()
}

async fn session(State(api): State<Api>, headers: HeaderMap) -> Response {
    let principal = match leader(&headers) {
        Ok(principal) => principal,
        Err(refusal) => return refusal.into_response(),
    };
    match api.engine.store.pending(&principal, None, None).await {
        Ok(lanes) => {
            let pending: i64 = lanes.iter().map(|(_, count)| count).sum();
            Json(json!({"leader": principal, "pendingWrites": pending})).into_response()
        }
        Err(error) => away(&error).into_response(),
    }
}
