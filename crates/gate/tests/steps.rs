//! The list of steps is the walk: a fresh request takes every step, once, in order.
#![cfg(feature = "failpoints")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use semel_contract::identity::Identity;
use semel_contract::profile::{Rate, presets};
use semel_gate::{GateLayer, Route, Step, on_step};
use semel_store::clock::{Clock, SystemClock};
use semel_store::memory::MemoryStore;
use tower::ServiceExt;

#[tokio::test]
async fn a_fresh_request_takes_every_step_once_and_in_order() {
    let taken: Arc<Mutex<Vec<Step>>> = Arc::default();
    let seen = Arc::clone(&taken);
    on_step(move |step| seen.lock().unwrap().push(step));
    let mut profile = presets::walker();
    profile.limits.request = Some(Rate { count: 100, window: Duration::from_secs(60) });
    profile.limits.admission = Some(Rate { count: 100, window: Duration::from_secs(60) });
    let gate = GateLayer::builder(MemoryStore::new())
        .identity("trusted:X-User".parse::<Identity>().unwrap())
        .route(Route::new("r", "POST /r").unwrap().profile(profile))
        .build()
        .unwrap();
    let app = Router::new().route("/r", post(|| async { "done" })).layer(gate);
    let body = format!(r#"{{"clientGeneratedAt":"{}"}}"#, SystemClock.read().wall);
    let request = || {
        let request = Request::post("/r").header("x-user", "alice");
        request
            .header("idempotency-key", "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f")
            .body(Body::from(body.clone()))
            .unwrap()
    };
    assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), 200);
    assert_eq!(*taken.lock().unwrap(), Step::ALL);
    taken.lock().unwrap().clear();
    assert_eq!(app.oneshot(request()).await.unwrap().status(), 200);
    let replay = [
        Step::Accepted,
        Step::Identified,
        Step::Limited,
        Step::Keyed,
        Step::Fingerprinted,
        Step::LookedUp,
        Step::Answered,
    ];
    assert_eq!(*taken.lock().unwrap(), replay, "a replay goes as far as the look-up");
}
