//! The score API before the external service: leaders sign in and send points, the relay inside writes them.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel_contract::age::FIRST_SENT;
use semel_contract::time::Timestamp;
use semel_delivery::credentials::Credential;
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::accept::{Accepted, Age, NewItem, Submission};
use semel_delivery::relay::store::{Lane, LaneState};
use semel_delivery::relay::{Engine, Worker, intake};
use semel_store::at_rest::KeyRing;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::external::{External, TARGET};
use crate::{CLOCKS_DIFFER, SENT_FOR, list, session};

/// Patrols of one request.
const PATROLS_MAX: usize = 100;

/// What the handlers work on.
#[derive(Clone, Debug)]
pub struct Api {
    /// The relay's engine.
    pub engine: Arc<Engine>,
    /// What keeps it moving.
    pub worker: Arc<Worker>,
    /// The external service.
    pub external: External,
    /// What sessions are sealed under.
    pub keys: KeyRing,
    /// What the external service said last.
    pub lists: list::LastLists,
}

#[derive(Deserialize)]
struct Login {
    leader: String,
    password: String,
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
            .route("/api/login", post(login))
            .route("/api/sections/{section}/scores", get(patrols).post(submit))
            .route("/api/session", get(session))
            .with_state(self)
    }

    /// Who is signed in.
    async fn leader(&self, headers: &HeaderMap) -> Result<String, Refusal> {
        let line = headers.get(header::AUTHORIZATION).and_then(|line| line.to_str().ok()).unwrap_or_default();
        let now = self.engine.store.now().await.map_err(|error| away(&error))?;
        let leader = line.strip_prefix("Bearer ").and_then(|text| session::leader(&self.keys, text, now));
        leader.ok_or_else(|| refused(StatusCode::UNAUTHORIZED, "sign in"))
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

/// Signs a leader in at the external service. What waited for that goes on.
async fn login(State(api): State<Api>, Json(login): Json<Login>) -> Result<Response, Refusal> {
    let failed = |why: &str| refused(StatusCode::SERVICE_UNAVAILABLE, why);
    let body = json!({"leader": login.leader, "password": login.password});
    let answer = api.external.ask("POST", "/login", None, &body).await;
    let answer = answer.ok_or_else(|| failed("the score service does not answer; your points are safe"))?;
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let (200, Some(token)) = (answer.status, said["token"].as_str()) else {
        return Err(refused(
            StatusCode::UNAUTHORIZED,
            "the score service does not know this name and password",
        ));
    };
    let credential = Credential::line("Authorization", token);
    let External { origin, wallet } = &api.external;
    let given = wallet.give(&login.leader, TARGET, origin, &credential, "a sign-in").await;
    given.map_err(|error| failed(&format!("{error:?}")))?;
    api.engine.release(TARGET, &login.leader, "a sign-in").await.map_err(|error| away(&error))?;
    let now = api.engine.store.now().await.map_err(|error| away(&error))?;
    let session = session::begin(&api.keys, &login.leader, now).map_err(|why| failed(&why))?;
    Ok(Json(json!({"leader": login.leader, "session": session})).into_response())
}

async fn submit(
    State(api): State<Api>,
    Path(section): Path<String>,
    headers: HeaderMap,
    Json(scores): Json<Scores>,
) -> Result<Response, Refusal> {
    let principal = api.leader(&headers).await?;
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
        age: first_sent(&headers)?,
    };
    let request = match api.engine.store.accept(&submission).await.map_err(|error| away(&error))? {
        Accepted::Mismatch => {
            return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "this key was used for other points"));
        }
        Accepted::TooOld => {
            return Err(refused(
                StatusCode::UNPROCESSABLE_ENTITY,
                "these points are too old: they may have been added already",
            ));
        }
        Accepted::FromFuture => return Err(refused(StatusCode::BAD_REQUEST, "first sent in the future")),
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

/// When a leader's page first sent the request, as it says.
fn first_sent(headers: &HeaderMap) -> Result<Option<Age>, Refusal> {
    let Some(value) = headers.get(FIRST_SENT) else { return Ok(None) };
    let sent = value.to_str().ok().and_then(|text| Timestamp::parse(text).ok());
    let sent = sent.ok_or_else(|| refused(StatusCode::BAD_REQUEST, "Idempotency-First-Sent is a time"))?;
    Ok(Some(Age::since(sent, SENT_FOR, CLOCKS_DIFFER)))
}

async fn patrols(
    State(api): State<Api>,
    Path(section): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let leader = api.leader(&headers).await?;
    let patrols = list::patrols(&api.engine.store, &api.external, &api.lists, &section, &leader).await;
    Ok(Json(json!({"patrols": patrols.map_err(|error| away(&error))?})).into_response())
}

async fn session(State(api): State<Api>, headers: HeaderMap) -> Result<Response, Refusal> {
    let leader = api.leader(&headers).await?;
    let store = &api.engine.store;
    let lanes = store.pending(&leader, None, None).await.map_err(|error| away(&error))?;
    let refused = store.all_refused().await.map_err(|error| away(&error))?;
    let is_refused = refused.iter().any(|(_, principal, _)| *principal == leader);
    let pending: i64 = lanes.iter().map(|(_, count)| count).sum();
    let waiting: Vec<Value> = lanes
        .iter()
        .map(|(lane, count)| json!({"patrol": lane.label, "count": count, "why": why(lane, is_refused)}))
        .collect();
    let body =
        json!({"leader": leader, "pendingWrites": pending, "signInAgain": is_refused, "waiting": waiting});
    Ok(Json(body).into_response())
}

/// What points wait for, in words for the person who sent them.
fn why(lane: &Lane, is_refused: bool) -> String {
    match (lane.state, &lane.last_error) {
        (LaneState::InDoubt, _) => {
            "nobody knows yet whether the last points arrived; an operator looks".to_owned()
        }
        (LaneState::Blocked, _) => "an operator has to decide about this patrol".to_owned(),
        (LaneState::Open, _) if is_refused => "the score service signed you out: sign in again".to_owned(),
        (LaneState::Open, Some(error)) => {
            format!("the score service did not take them yet: {}", error.replace("the upstream", "it"))
        }
        (LaneState::Open, None) => "they are on their way to the score service".to_owned(),
    }
}
