//! The layer around an axum service, on the store in memory: what a client sees, and how often the handler runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::BodyExt;
use semel_contract::identity::{Caller, Identity};
use semel_contract::problem::Kind;
use semel_contract::profile::{InFlight, OnError, OnUnknown, Profile, Rate, presets};
use semel_gate::testing::{MemoryStore, TestClock};
use semel_gate::{Broken, Finding, Gate, GateBuilder, Grant, Probe, Route};
use semel_store::{Answer, ClaimStore, Entry, Filter};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// What the handlers of the tests share.
#[derive(Clone)]
struct World {
    runs: Arc<AtomicU32>,
    /// Handlers of `/slow` wait for a permit.
    go: Arc<Semaphore>,
    store: Arc<MemoryStore>,
    clock: Arc<TestClock>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(TestClock::default());
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock) as _));
        Self { runs: Arc::default(), go: Arc::new(Semaphore::new(0)), store, clock }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn gate(&self) -> GateBuilder {
        Gate::on(Arc::clone(&self.store) as _)
            .identity("trusted:X-User".parse::<Identity>().unwrap())
            .clock(Arc::clone(&self.clock) as _)
    }

    fn app(&self, gate: GateBuilder) -> Router {
        let handlers = Router::new()
            .route("/orders", post(order))
            .route("/orders/{id}/refund", post(refund))
            .route("/slow", post(slow))
            .route("/status/{status}", post(status))
            .route("/large", post(large))
            .route("/panic", post(panics))
            .route("/events", post(events))
            .with_state(self.clone());
        handlers.layer(gate.build().unwrap())
    }

    /// The app with one route of this profile.
    fn with(&self, pattern: &str, profile: Profile) -> Router {
        self.app(self.gate().route(Route::new("r", pattern).unwrap().profile(profile)))
    }

    async fn entries(&self) -> Vec<Entry> {
        self.store.list(&Filter { limit: 100, ..Filter::default() }).await.unwrap()
    }
}

async fn order(State(world): State<World>, headers: HeaderMap, body: String) -> Response<Body> {
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

async fn refund(State(world): State<World>, Path(id): Path<u32>) -> String {
    world.runs.fetch_add(1, Ordering::SeqCst);
    format!("refunded {id}")
}

async fn slow(State(world): State<World>) -> String {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    world.go.acquire().await.unwrap().forget();
    format!("slow {run}")
}

async fn status(State(world): State<World>, Path(status): Path<u16>, headers: HeaderMap) -> Response<Body> {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let mut response = (StatusCode::from_u16(status).unwrap(), format!("run {run}")).into_response();
    if let Some(told) = headers.get("x-tell") {
        response.headers_mut().insert("semel-outcome", told.clone());
    }
    response
}

async fn large(State(world): State<World>) -> Response<Body> {
    world.runs.fetch_add(1, Ordering::SeqCst);
    ([("location", "/large/1")], "x".repeat(2 << 20)).into_response()
}

async fn events(State(world): State<World>) -> Response<Body> {
    world.runs.fetch_add(1, Ordering::SeqCst);
    ([("content-type", "text/event-stream")], "data: 1\n\n").into_response()
}

async fn panics(State(world): State<World>) -> String {
    world.runs.fetch_add(1, Ordering::SeqCst);
    panic!("on purpose")
}

/// An answer, read in full.
#[derive(Debug, PartialEq)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn problem(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or(Value::Null);
        body["type"].as_str().unwrap_or("").rsplit(':').next().unwrap().to_owned()
    }

    fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }
}

fn request(path: &str, key: Option<&str>, body: &str) -> Request<Body> {
    let mut request =
        Request::post(path).header("x-user", "alice").header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Seen {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Seen { status: parts.status.as_u16(), headers: parts.headers, body }
}

async fn post_to(app: &Router, path: &str, key: &str, body: &str) -> Seen {
    send(app, request(path, Some(key), body)).await
}

#[tokio::test]
async fn a_retry_gets_the_first_answer_byte_for_byte() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let first = post_to(&app, "/orders", "k", r#"{"a":1,"b":2}"#).await;
    let second = post_to(&app, "/orders", "\"k\"", "{ \"b\": 2, \"a\": 1 }").await;
    assert_eq!((first.status, first.body.as_str()), (201, "order 1: {\"a\":1,\"b\":2}"));
    assert_eq!((second.status, &second.body, world.runs()), (201, &first.body, 1));
    assert!(second.is_replay() && !first.is_replay());
    assert_eq!(second.headers.get_all("x-tag").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(second.header("location"), "/orders/1");
    assert_eq!(
        (first.header("set-cookie"), second.header("set-cookie"), second.header("date")),
        ("secret=1", "", "")
    );
    for seen in [first, second] {
        assert_eq!((seen.header("semel-guarantee"), seen.header("semel-retention")), ("fenced", "86400"));
    }
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    post_to(&app, "/orders", "k", r#"{"a":1}"#).await;
    let other = post_to(&app, "/orders", "k", r#"{"a":2}"#).await;
    assert_eq!((other.status, other.problem().as_str(), world.runs()), (422, "fingerprint-mismatch", 1));
    assert_eq!((other.header("x-should-retry"), other.is_replay()), ("false", false));
    let query = post_to(&app, "/orders?x=1", "k", r#"{"a":1}"#).await;
    assert_eq!((query.status, world.runs()), (422, 1));
}

#[tokio::test]
async fn path_parameters_count() {
    let world = World::new();
    let app = world.with("POST /orders/{id}/refund", presets::ietf());
    assert_eq!(post_to(&app, "/orders/1/refund", "k", "").await.body, "refunded 1");
    assert_eq!(post_to(&app, "/orders/2/refund", "k", "").await.status, 422);
    assert_eq!(post_to(&app, "/orders/1/refund", "k", "").await.body, "refunded 1");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn conflicts_show_the_payload_hashes_where_the_profile_says_so() {
    let world = World::new();
    let app = world.with("POST /orders", Profile { guard: None, ..presets::walker() });
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    post_to(&app, "/orders", uuid, r#"{"a":1,"clientSubmittedAt":"x"}"#).await;
    assert!(post_to(&app, "/orders", uuid, r#"{"a":1,"clientSubmittedAt":"y"}"#).await.is_replay());
    let conflict = post_to(&app, "/orders", uuid, r#"{"a":2}"#).await;
    let body: Value = serde_json::from_str(&conflict.body).unwrap();
    assert_eq!((conflict.status, &body["error"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    // printf '{"a":1}' | sha256sum, and the same for 2
    assert_eq!(
        body["details"]["expectedHash"],
        "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    );
    assert_eq!(
        body["details"]["receivedHash"],
        "7e8059f495589fcd981232cc11d00b00da3802c01d688fa1cf1f6bed6e5bb33c"
    );
}

#[tokio::test]
async fn one_of_many_at_once_runs_and_the_others_wait_and_replay() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { post_to(&app, "/slow", "k", "").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.runs(), 1);
    world.go.add_permits(1);
    let mut replays = 0;
    for call in calls {
        let seen = call.await.unwrap();
        assert_eq!((seen.status, seen.body.as_str()), (200, "slow 1"));
        replays += u32::from(seen.is_replay());
    }
    assert_eq!((world.runs(), replays), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn past_the_wait_a_retry_is_told_to_come_back() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = tokio::time::Instant::now();
    let second = post_to(&app, "/slow", "k", "").await;
    assert_eq!((second.status, second.problem().as_str()), (409, "in-flight"));
    assert_eq!((second.header("retry-after"), second.header("x-should-retry")), ("1", "true"));
    assert_eq!(started.elapsed().as_secs(), 25);
    world.go.add_permits(1);
    assert_eq!(first.await.unwrap().body, "slow 1");
}

#[tokio::test]
async fn in_flight_policies_reject_or_accept_at_once() {
    for (policy, status) in
        [(InFlight::Reject { retry_after: Duration::from_secs(2) }, 409), (InFlight::Accepted, 202)]
    {
        let world = World::new();
        let app = world.with("POST /slow", Profile { in_flight: policy, ..presets::ietf() });
        let first = tokio::spawn({
            let app = app.clone();
            async move { post_to(&app, "/slow", "k", "").await }
        });
        while world.runs() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(post_to(&app, "/slow", "k", "").await.status, status);
        world.go.add_permits(1);
        first.await.unwrap();
        assert_eq!(world.runs(), 1);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_cancel_its_request() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.is_err());
    world.go.add_permits(1);
    let second = post_to(&app, "/slow", "k", "").await;
    assert_eq!((second.body.as_str(), second.is_replay(), world.runs()), ("slow 1", true, 1));
}

#[tokio::test]
async fn a_waiter_that_goes_away_never_claims() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let call = |app: Router| tokio::spawn(async move { post_to(&app, "/slow", "k", "").await });
    let first = call(app.clone());
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let waiter = call(app.clone());
    tokio::time::sleep(Duration::from_millis(20)).await;
    waiter.abort();
    let entry = world.entries().await.remove(0);
    let lifetime = presets::ietf().lifetime;
    world
        .store
        .settle(&entry.id, entry.record.fence, semel_store::Settlement::Release, &lifetime)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((world.runs(), world.entries().await.len()), (1, 0), "the released key stays free");
    world.go.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn waiters_are_bounded() {
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /slow").unwrap()).waiters_max(100, 2);
    let app = world.app(gate);
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { post_to(&app, "/slow", "k", "").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.go.add_permits(1);
    let mut statuses = Vec::new();
    for call in calls {
        let seen = call.await.unwrap();
        statuses.push((seen.status, seen.problem()));
    }
    let refused =
        statuses.iter().filter(|(status, problem)| *status == 409 && problem == "too-many-waiters").count();
    assert_eq!((refused, world.runs()), (2, 1), "{statuses:?}");
}

#[tokio::test]
async fn work_in_progress_is_bounded_before_the_claim() {
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /slow").unwrap()).detached_max(1);
    let app = world.app(gate);
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "a", "").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let second = post_to(&app, "/slow", "b", "").await;
    assert_eq!(
        (second.status, second.problem().as_str(), second.header("retry-after")),
        (503, "overloaded", "1")
    );
    assert_eq!(world.entries().await.len(), 1, "nothing was claimed for it");
    world.go.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn identity_comes_first_and_scopes_never_meet() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let as_user = |user: &str| {
        Request::post("/orders")
            .header("x-user", user)
            .header("idempotency-key", "k")
            .body(Body::from("{}"))
            .unwrap()
    };
    let nobody = Request::post("/orders").header("idempotency-key", "k").body(Body::from("{}")).unwrap();
    assert_eq!(send(&app, as_user("alice")).await.body, "order 1: {}");
    assert_eq!(send(&app, as_user("bob")).await.body, "order 2: {}");
    let refused = send(&app, nobody).await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (401, "identity-missing", 2));
    assert!(!refused.body.contains("order"));
}

#[tokio::test]
async fn a_rotated_token_does_not_run_the_request_again() {
    let world = World::new();
    let gate = Gate::on(Arc::clone(&world.store) as _).route(Route::new("r", "POST /orders").unwrap());
    let app = world.app(gate);
    let with = |token: &str, key: &str| {
        Request::post("/orders")
            .header("authorization", token)
            .header("idempotency-key", key)
            .body(Body::from("{}"))
            .unwrap()
    };
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    assert_eq!(send(&app, with("Bearer old", uuid)).await.status, 201);
    let rotated = send(&app, with("Bearer new", uuid)).await;
    assert_eq!((rotated.status, rotated.problem().as_str(), world.runs()), (409, "credential-changed", 1));
    assert_eq!(send(&app, with("Bearer old", "short")).await.status, 201);
    assert_eq!(
        send(&app, with("Bearer new", "short")).await.status,
        201,
        "only a UUID is nobody else's by accident"
    );
}

#[tokio::test]
async fn keys_are_required_or_optional_as_the_profile_says() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let missing = send(&app, request("/orders", None, "{}")).await;
    assert_eq!((missing.status, missing.problem().as_str(), world.runs()), (400, "key-missing", 0));
    let app = world.with("POST /orders", presets::stripe());
    for _ in 0..2 {
        let passed = send(&app, request("/orders", None, "{}")).await;
        assert_eq!(
            (passed.status, passed.header("semel-guarantee"), passed.header("semel-retention")),
            (201, "none", "")
        );
    }
    assert_eq!(world.runs(), 2);
    let replayed = [post_to(&app, "/orders", "k", "{}").await, post_to(&app, "/orders", "k", "{}").await];
    assert_eq!((replayed[1].header("idempotent-replayed"), world.runs()), ("true", 3));
}

#[tokio::test]
async fn a_request_without_a_key_is_given_one_where_the_profile_says_so() {
    let world = World::new();
    let app = world.with("POST /orders", presets::mesh());
    for _ in 0..2 {
        assert_eq!(send(&app, request("/orders", None, "{}")).await.header("semel-guarantee"), "fenced");
    }
    let entries = world.entries().await;
    assert_eq!((entries.len(), world.runs()), (2, 2), "each is a request of its own, on record");
    assert!(entries.iter().all(|entry| entry.id.key.as_str().len() == 26), "under a ULID");
    let body = r#"{"client_message_id":"m-1"}"#;
    send(&app, request("/orders", None, body)).await;
    let duplicate = send(&app, request("/orders", None, body)).await;
    assert_eq!((duplicate.status, duplicate.is_replay(), world.runs()), (200, true, 3));
}

#[tokio::test]
async fn a_replay_tells_the_level_of_its_own_claim() {
    let world = World::new();
    post_to(&world.with("POST /orders", presets::ietf()), "/orders", "k", "{}").await;
    let atomic = world.app(world.gate().route(Route::new("r", "POST /orders").unwrap().atomic()));
    assert_eq!(post_to(&atomic, "/orders", "k", "{}").await.header("semel-guarantee"), "fenced");
}

#[tokio::test]
async fn routes_that_are_not_named_are_left_alone() {
    let world = World::new();
    let app = world.with("POST /other", presets::ietf());
    for run in 1..=2 {
        assert_eq!(post_to(&app, "/orders", "k", "{}").await.body, format!("order {run}: {{}}"));
    }
}

#[tokio::test]
async fn answers_are_kept_or_released_as_the_contract_says() {
    for (status, kept) in
        [(200, true), (404, true), (422, true), (409, false), (429, false), (503, false), (401, false)]
    {
        let world = World::new();
        let app = world.with("POST /status/{s}", presets::ietf());
        let path = format!("/status/{status}");
        let (first, second) = (post_to(&app, &path, "k", "").await, post_to(&app, &path, "k", "").await);
        assert_eq!((first.status, second.status, second.is_replay()), (status, status, kept), "{status}");
        assert_eq!(world.runs(), if kept { 1 } else { 2 }, "{status}");
    }
}

#[tokio::test]
async fn a_server_error_is_replayed_as_unknown_unless_it_surely_rolled_back() {
    let world = World::new();
    let app = world.with("POST /status/{s}", presets::ietf());
    let (first, second) =
        (post_to(&app, "/status/500", "k", "").await, post_to(&app, "/status/500", "k", "").await);
    assert_eq!((first.header("semel-outcome"), second.header("semel-outcome")), ("unknown", "unknown"));
    assert_eq!((second.body.as_str(), second.is_replay(), world.runs()), ("run 1", true, 1));
    let world = World::new();
    let app = world.with("POST /status/{s}", Profile { on_error: OnError::Release, ..presets::ietf() });
    post_to(&app, "/status/500", "k", "").await;
    assert_eq!(post_to(&app, "/status/500", "k", "").await.body, "run 2");
}

#[tokio::test]
async fn a_handler_that_knows_the_outcome_is_believed() {
    let world = World::new();
    let app = world.with("POST /status/{s}", presets::ietf());
    let tell = |told: &str, key: &str| {
        let mut request = request("/status/500", Some(key), "");
        request.headers_mut().insert("x-tell", told.parse().unwrap());
        request
    };
    send(&app, tell("not-applied", "a")).await;
    assert_eq!(send(&app, tell("not-applied", "a")).await.body, "run 2", "released");
    send(&app, tell("applied", "b")).await;
    let second = send(&app, tell("applied", "b")).await;
    assert_eq!(
        (second.body.as_str(), second.is_replay(), second.header("semel-outcome")),
        ("run 3", true, "")
    );
}

#[tokio::test]
async fn large_answers_and_streams_pass_and_are_never_run_again() {
    for (path, length) in [("/large", 2 << 20), ("/events", 9)] {
        let world = World::new();
        let app = world.with(&format!("POST {path}"), presets::ietf());
        let first = post_to(&app, path, "k", "").await;
        assert_eq!((first.status, first.body.len()), (200, length));
        let second = post_to(&app, path, "k", "").await;
        assert_eq!((second.status, second.problem().as_str(), world.runs()), (409, "answer-not-kept", 1));
        assert!(second.body.contains("\"originalStatus\":200"), "{}", second.body);
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let refused = post_to(&app, "/orders", "k", &"x".repeat((1 << 20) + 1)).await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (413, "body-too-large", 0));
    assert_eq!(post_to(&app, "/orders", "k", &"x".repeat(1 << 20)).await.status, 201);
}

#[tokio::test]
async fn a_panic_leaves_the_outcome_unknown_and_says_so() {
    let world = World::new();
    let app = world.with("POST /panic", presets::ietf());
    let first = post_to(&app, "/panic", "k", "").await;
    assert_eq!((first.status, first.header("semel-outcome")), (502, "unknown"));
    let second = post_to(&app, "/panic", "k", "").await;
    assert_eq!((second.status, second.problem().as_str(), world.runs()), (409, "outcome-unknown", 1));
}

#[tokio::test]
async fn unknown_outcomes_follow_the_routes_policy() {
    for (policy, runs) in [(OnUnknown::Hold, 1), (OnUnknown::Rerun, 2), (OnUnknown::Forward, 2)] {
        let world = World::new();
        let app = world.with("POST /panic", Profile { on_unknown: policy, ..presets::ietf() });
        for _ in 0..2 {
            post_to(&app, "/panic", "k", "").await;
        }
        assert_eq!(world.runs(), runs, "{policy:?}");
    }
}

struct Says(Finding);

impl Probe for Says {
    fn ask<'a>(&'a self, _: &'a Entry) -> std::pin::Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

#[tokio::test]
async fn a_probe_resolves_what_is_unknown() {
    for (finding, problem) in [
        (Finding::Unknown, "outcome-unknown"),
        (Finding::Applied(None), "answer-not-kept"),
        (Finding::NotApplied, "outcome-unknown"),
    ] {
        let world = World::new();
        let profile = Profile { on_unknown: OnUnknown::Probe, ..presets::ietf() };
        let app = world.app(
            world.gate().route(Route::new("r", "POST /panic").unwrap().profile(profile)).probe(Says(finding)),
        );
        post_to(&app, "/panic", "k", "").await;
        let second = post_to(&app, "/panic", "k", "").await;
        assert_eq!(
            (second.problem().as_str(), world.runs()),
            (problem, 1),
            "not-applied is not believed while it could still arrive"
        );
    }
    let world = World::new();
    let profile = Profile { on_unknown: OnUnknown::Probe, ..presets::ietf() };
    let app = world.app(
        world
            .gate()
            .route(Route::new("r", "POST /panic").unwrap().profile(profile))
            .probe(Says(Finding::NotApplied)),
    );
    post_to(&app, "/panic", "k", "").await;
    world.clock.advance(Duration::from_secs(91));
    post_to(&app, "/panic", "k", "").await;
    assert_eq!(world.runs(), 2, "but once it no longer can, the request runs");
}

#[tokio::test(start_paused = true)]
async fn a_handler_past_its_deadline_is_unknown() {
    let world = World::new();
    let route = Route::new("r", "POST /slow").unwrap().deadline(Duration::from_secs(5));
    let app = world.app(world.gate().route(route));
    let first = post_to(&app, "/slow", "k", "").await;
    assert_eq!(
        (first.status, first.problem().as_str(), first.header("semel-outcome")),
        (504, "handler-timeout", "unknown")
    );
    assert_eq!(post_to(&app, "/slow", "k", "").await.problem(), "outcome-unknown");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_the_handler_runs() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.clock.advance(Duration::from_secs(5));
    }
    let lease_until = world.entries().await[0].record.lease_until;
    let (_, now) = world.store.look_up(&world.entries().await[0].id).await.unwrap();
    assert!(lease_until > now, "150 seconds later the lease of 30 still holds");
    world.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn an_atomic_handler_that_does_not_settle_is_a_fault() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::new("r", "POST /orders").unwrap().atomic()));
    let call = tokio::spawn(async move { post_to(&app, "/orders", "k", "").await });
    assert!(call.await.unwrap_err().is_panic(), "in tests it is loud");
}

#[tokio::test]
async fn an_atomic_handler_that_settled_is_answered_from_its_record() {
    async fn settles(State(world): State<World>, grant: Grant) -> String {
        world.runs.fetch_add(1, Ordering::SeqCst);
        let kept =
            Answer { status: 201, headers: vec![], body: "from the record".into(), outcome_unknown: false };
        let settlement = semel_store::Settlement::Settle(kept.clone());
        world.store.settle(grant.id(), grant.fence(), settlement, grant.lifetime()).await.unwrap();
        grant.settled_with(kept);
        "not this".to_owned()
    }
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /atomic").unwrap().atomic()).build().unwrap();
    let app = Router::new().route("/atomic", post(settles)).with_state(world.clone()).layer(gate);
    for _ in 0..2 {
        let seen = post_to(&app, "/atomic", "k", "").await;
        assert_eq!(
            (seen.status, seen.body.as_str(), seen.header("semel-guarantee")),
            (201, "from the record", "atomic")
        );
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn child_keys_are_stable_across_attempts() {
    async fn derives(State(world): State<World>, grant: Grant) -> Json<Value> {
        world.runs.fetch_add(1, Ordering::SeqCst);
        Json(json!({"charge": grant.derive("charge"), "mail": grant.derive("mail")}))
    }
    let world = World::new();
    let profile = Profile { record: vec![], on_error: OnError::Release, ..presets::ietf() };
    let gate = world.gate().route(Route::new("r", "POST /derive").unwrap().profile(profile)).build().unwrap();
    let app = Router::new().route("/derive", post(derives)).with_state(world.clone()).layer(gate);
    let keys = |seen: Seen| serde_json::from_str::<Value>(&seen.body).unwrap();
    let (first, second, other) = (
        keys(post_to(&app, "/derive", "k", "").await),
        keys(post_to(&app, "/derive", "k", "").await),
        keys(post_to(&app, "/derive", "other", "").await),
    );
    assert_eq!(
        (&first, world.runs()),
        (&second, 3),
        "the first was released, and ran again under the same child keys"
    );
    assert!(first["charge"] != first["mail"] && first["charge"] != other["charge"]);
}

#[tokio::test]
async fn stale_actions_are_refused_and_recorded() {
    let world = World::new();
    let app = world.with("POST /orders", presets::walker());
    let (_, now) = world
        .store
        .look_up(&semel_store::Id {
            scope: semel_contract::scope::Scope::of(None, None, None),
            key: semel_contract::key::Key::parse(&semel_contract::key::Format::Token255, "x").unwrap(),
        })
        .await
        .unwrap();
    let uuid = |n: u32| format!("3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e{n:02x}");
    let at = |age: Duration| json!({"clientGeneratedAt": now.minus(age).to_string()}).to_string();
    let day = Duration::from_secs(86_400);
    let hour = Duration::from_secs(3600);
    assert_eq!(post_to(&app, "/orders", &uuid(1), &at(7 * day + 5 * hour)).await.status, 201);
    let stale = post_to(&app, "/orders", &uuid(2), &at(8 * day)).await;
    let body: Value = serde_json::from_str(&stale.body).unwrap();
    assert_eq!(
        (stale.status, &body["error"], &body["details"]["ageDays"]),
        (422, &json!("STALE_ACTION"), &json!(8))
    );
    let again = post_to(&app, "/orders", &uuid(2), &at(8 * day)).await;
    assert_eq!(
        (again.status, again.is_replay(), &again.body),
        (422, true, &stale.body),
        "the refusal is on record"
    );
    for bad in ["{}", r#"{"clientGeneratedAt":"yesterday"}"#, r#"{"clientGeneratedAt":5}"#] {
        assert_eq!(post_to(&app, "/orders", &uuid(3), bad).await.status, 400);
    }
    assert_eq!(world.runs(), 1);
    world.clock.advance(3 * hour);
    let replay = post_to(&app, "/orders", &uuid(1), &at(7 * day + 5 * hour)).await;
    assert_eq!(
        (replay.status, replay.is_replay()),
        (201, true),
        "what was accepted stays accepted, however old it grows"
    );
}

#[tokio::test]
async fn required_headers_and_times_are_kept_with_the_record() {
    let world = World::new();
    let app = world.with("POST /orders", presets::feed());
    let mut sent = request("/orders", Some("k"), "{}");
    assert_eq!(send(&app, request("/orders", Some("k"), "{}")).await.status, 400);
    sent.headers_mut().insert("x-client-tx-id", "tx-1".parse().unwrap());
    assert_eq!(send(&app, sent).await.status, 201);
    assert_eq!(world.entries().await[0].about.headers, [("x-client-tx-id".to_owned(), "tx-1".to_owned())]);
}

#[tokio::test]
async fn over_the_request_limit_known_keys_are_still_answered() {
    let rate = Rate { count: 2, window: Duration::from_secs(60) };
    let mut profile = presets::ietf();
    profile.limits.request = Some(rate);
    let world = World::new();
    let app = world.with("POST /orders", profile.clone());
    for _ in 0..4 {
        assert_eq!(
            post_to(&app, "/orders", "k", "{}").await.body,
            "order 1: {}",
            "a replay is never refused"
        );
    }
    let refused = post_to(&app, "/orders", "new", "{}").await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (429, "request-limited", 1));
    assert!(refused.header("ratelimit").starts_with("\"request\";r=0;t="), "{}", refused.header("ratelimit"));
    assert_eq!(refused.header("ratelimit-policy"), "\"request\";q=2;w=60");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    profile.limits.request_refuses_known = true;
    let app = World::new();
    let strict = app.with("POST /orders", profile);
    let statuses = [(); 3].map(|()| post_to(&strict, "/orders", "k", "{}"));
    let mut seen = Vec::new();
    for status in statuses {
        seen.push(status.await.status);
    }
    assert_eq!(seen, [201, 201, 429], "unless the route asks for it");
}

#[tokio::test]
async fn new_keys_pay_once_and_known_keys_never() {
    let world = World::new();
    let mut profile = presets::feed();
    profile.key.require_headers.clear();
    profile.limits.admission = Some(Rate { count: 2, window: Duration::from_secs(3600) });
    let app = world.with("POST /orders", profile);
    for key in ["a", "b", "a", "b", "a"] {
        assert_eq!(post_to(&app, "/orders", key, "{}").await.status, 201);
    }
    let refused = post_to(&app, "/orders", "c", "{}").await;
    assert_eq!((refused.status, world.runs()), (429, 2));
    assert_eq!(post_to(&app, "/orders", "b", "{}").await.status, 201, "the old keys are still answered");
    let other = Request::post("/orders")
        .header("x-user", "bob")
        .header("idempotency-key", "c")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(send(&app, other).await.status, 201, "another principal has a budget of its own");
    world.clock.advance(Duration::from_secs(2 * 3600));
    assert_eq!(post_to(&app, "/orders", "c", "{}").await.status, 201);
}

#[tokio::test]
async fn only_what_surely_was_not_sent_frees_the_key() {
    let not_sent = (Broken::NotSent("refused".to_owned()), 502, "upstream-unreachable", "");
    let reset = (Broken::Reset("gone".to_owned()), 502, "upstream-reset", "unknown");
    let late = (Broken::TimedOut("late".to_owned()), 504, "upstream-timeout", "unknown");
    for (broken, status, problem, outcome) in [not_sent, reset, late] {
        let world = World::new();
        let (runs, is_unknown) = (Arc::clone(&world.runs), outcome == "unknown");
        let handler = move || async move {
            runs.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(broken);
            response
        };
        let gate = world.gate().route(Route::new("r", "POST /forward").unwrap()).build().unwrap();
        let app = Router::new().route("/forward", post(handler)).layer(gate);
        let first = post_to(&app, "/forward", "k", "").await;
        assert_eq!(
            (first.status, first.problem().as_str(), first.header("semel-outcome")),
            (status, problem, outcome)
        );
        post_to(&app, "/forward", "k", "").await;
        assert_eq!(world.runs(), if is_unknown { 1 } else { 2 }, "{problem}");
    }
}

/// A service that takes so long to become ready that the first lease has lapsed.
#[derive(Clone)]
struct SlowToBeReady {
    world: World,
    late: Duration,
}

impl tower::Service<Request<Body>> for SlowToBeReady {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Body>, std::convert::Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        self.world.clock.advance(self.late);
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.world.runs.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(Body::from("done"))))
    }
}

#[tokio::test]
async fn nothing_is_dispatched_once_the_first_lease_has_lapsed() {
    for (late, runs) in [(10, 1), (31, 0)] {
        let world = World::new();
        let gate = world.gate().route(Route::new("r", "POST /r").unwrap()).build().unwrap();
        let service = tower::Layer::layer(
            &gate,
            SlowToBeReady { world: world.clone(), late: Duration::from_secs(late) },
        );
        let response = service.oneshot(request("/r", Some("k"), "")).await.unwrap();
        assert_eq!((response.status() == 200, world.runs()), (runs == 1, runs), "{late} s");
    }
}

#[tokio::test]
async fn an_operation_without_http_runs_once() {
    let world = World::new();
    let gate = world.gate().build().unwrap();
    let route = Route::new("nightly-report", "POST /").unwrap();
    let alice = Caller { tenant: None, principal: "alice".to_owned() };
    let run = async |key: &str, payload: &str| {
        let runs = Arc::clone(&world.runs);
        let operation = move |grant: Grant| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(!grant.derive("mail").is_empty());
            Answer {
                status: 200,
                headers: vec![],
                body: format!("report {run}").into(),
                outcome_unknown: false,
            }
        };
        gate.once(&route, &alice, key, payload.to_owned(), operation).await
    };
    let (first, second) =
        (run("2026-01-31", r#"{"a":1}"#).await.unwrap(), run("2026-01-31", r#"{ "a": 1 }"#).await.unwrap());
    assert_eq!(
        (first.replayed, second.replayed, &first.answer.body, world.runs()),
        (false, true, &second.answer.body, 1)
    );
    let other = run("2026-01-31", r#"{"a":2}"#).await.unwrap_err();
    assert_eq!(other.kind, Kind::FingerprintMismatch);
    assert_eq!(run("", "{}").await.unwrap_err().kind, Kind::KeyInvalid);
    assert_eq!(run("2026-02-01", r#"{"a":1}"#).await.unwrap().answer.body, "report 2");
}

#[tokio::test]
async fn unsafe_routes_are_refused_when_the_gate_is_built() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.lifetime.record = Some(Duration::from_secs(1));
    let error = world.gate().route(Route::new("r", "POST /a").unwrap().profile(profile)).build().unwrap_err();
    assert!(error.to_string().contains("record_lifetime"), "{error}");
    let twice =
        world.gate().route(Route::new("a", "POST /a").unwrap()).route(Route::new("b", "POST /a").unwrap());
    assert!(twice.build().is_err());
}
