//! A service with visible runs, behind a gate on the store in memory, and what a client sees of it.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use std::time::Duration;

pub(crate) use axum::body::Body;
pub(crate) use axum::extract::{Path, State};
pub(crate) use axum::http::{HeaderMap, Request, Response, StatusCode};
pub(crate) use axum::response::IntoResponse;
pub(crate) use axum::routing::post;
pub(crate) use axum::{Json, Router};
pub(crate) use http_body_util::BodyExt;
pub(crate) use semel_contract::identity::{Caller, Identity};
pub(crate) use semel_contract::problem::Kind;
pub(crate) use semel_contract::profile::{InFlight, OnError, OnUnknown, Profile, Rate, presets};
pub(crate) use semel_gate::testing::{MemoryStore, TestClock};
pub(crate) use semel_gate::{Finding, GateBuilder, GateLayer, Grant, NoAnswer, Probe, Route};
pub(crate) use semel_store::{Answer, ClaimStore, Entry, Filter};
pub(crate) use serde_json::{Value, json};
pub(crate) use tokio::sync::Semaphore;
pub(crate) use tower::ServiceExt;

/// What the handlers of the tests share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) runs: Arc<AtomicU32>,
    /// Handlers of `/slow` wait for a permit.
    pub(crate) go: Arc<Semaphore>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: Arc<TestClock>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(TestClock::default());
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        Self { runs: Arc::default(), go: Arc::new(Semaphore::new(0)), store, clock }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn gate(&self) -> GateBuilder {
        GateLayer::builder(Arc::clone(&self.store))
            .identity("trusted:X-User".parse::<Identity>().unwrap())
            .clock(Arc::clone(&self.clock) as _)
    }

    pub(crate) fn app(&self, gate: GateBuilder) -> Router {
        self.behind(gate.build().unwrap())
    }

    pub(crate) fn behind(&self, gate: GateLayer) -> Router {
        let handlers = Router::new()
            .route("/orders", post(order))
            .route("/orders/{id}/refund", post(refund))
            .route("/slow", post(slow))
            .route("/status/{status}", post(status))
            .route("/large", post(large))
            .route("/panic", post(panics))
            .route("/events", post(events))
            .with_state(self.clone());
        handlers.layer(gate)
    }

    /// The app with one route of this profile.
    pub(crate) fn with(&self, pattern: &str, profile: Profile) -> Router {
        self.app(self.gate().route(Route::new("r", pattern).unwrap().profile(profile)))
    }

    pub(crate) async fn entries(&self) -> Vec<Entry> {
        self.store.list(&Filter { limit: 100, ..Filter::default() }).await.unwrap()
    }
}

pub(crate) async fn order(State(world): State<World>, headers: HeaderMap, body: String) -> Response<Body> {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(!headers.contains_key("semel-guarantee"));
    let mut response = (StatusCode::CREATED, format!("order {run}: {body}")).into_response();
    for (name, value) in [
        ("x-tag", "a"),
        ("x-tag", "b"),
        ("set-cookie", "secret=1"),
        ("date", "today"),
        ("location", "/orders/1"),
    ] {
        response.headers_mut().append(name, value.parse().unwrap());
    }
    response
}

pub(crate) async fn refund(State(world): State<World>, Path(id): Path<u32>) -> String {
    world.runs.fetch_add(1, Ordering::SeqCst);
    format!("refunded {id}")
}

pub(crate) async fn slow(State(world): State<World>) -> String {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    world.go.acquire().await.unwrap().forget();
    format!("slow {run}")
}

pub(crate) async fn status(
    State(world): State<World>,
    Path(status): Path<u16>,
    headers: HeaderMap,
) -> Response<Body> {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let mut response = (StatusCode::from_u16(status).unwrap(), format!("run {run}")).into_response();
    if let Some(told) = headers.get("x-tell") {
        response.headers_mut().insert("semel-outcome", told.clone());
    }
    response
}

pub(crate) async fn large(State(world): State<World>) -> Response<Body> {
    world.runs.fetch_add(1, Ordering::SeqCst);
    ([("location", "/large/1")], "x".repeat(2 << 20)).into_response()
}

pub(crate) async fn events(State(world): State<World>) -> Response<Body> {
    world.runs.fetch_add(1, Ordering::SeqCst);
    ([("content-type", "text/event-stream")], "data: 1\n\n").into_response()
}

pub(crate) async fn panics(State(world): State<World>) -> String {
    world.runs.fetch_add(1, Ordering::SeqCst);
    panic!("on purpose")
}

/// An answer, read in full.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn problem(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or(Value::Null);
        body["type"].as_str().unwrap_or("").rsplit(':').next().unwrap().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }
}

pub(crate) fn request(path: &str, key: Option<&str>, body: &str) -> Request<Body> {
    let mut request =
        Request::post(path).header("x-user", "alice").header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Seen {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Seen { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub(crate) async fn post_to(app: &Router, path: &str, key: &str, body: &str) -> Seen {
    send(app, request(path, Some(key), body)).await
}
