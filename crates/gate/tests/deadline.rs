//! A handler past its deadline is given up before anything is said of it: what it holds, a lock or a transaction, must not
//! stand in the way of what is written then, and its request must not go on.
#![cfg(feature = "failpoints")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use semel_contract::identity::Identity;
use semel_gate::{GateLayer, Route, Step, on_step};
use semel_store::memory::MemoryStore;
use tower::ServiceExt;

/// Says that it was dropped.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_past_its_deadline_is_dropped_before_its_outcome_is_written() {
    let (dropped, dropped_by_then) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (seen, noted) = (Arc::clone(&dropped), Arc::clone(&dropped_by_then));
    on_step(move |step| {
        if step == Step::Settled {
            noted.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    let gate = GateLayer::builder(MemoryStore::new())
        .identity("trusted:X-User".parse::<Identity>().unwrap())
        .route(Route::new("r", "POST /r").unwrap().deadline(Duration::from_secs(5)))
        .build()
        .unwrap();
    let handler = move || async move {
        let _held = Held(dropped);
        pending::<&str>().await
    };
    let app = Router::new().route("/r", post(handler)).layer(gate);
    let request = Request::post("/r").header("x-user", "alice").header("idempotency-key", "\"k\"");
    let answer = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 504);
    assert!(dropped_by_then.load(Ordering::SeqCst), "it was still there when its outcome was written");
}
