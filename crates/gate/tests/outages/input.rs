//! What a client sends is never a reason for the store to seem away: the server takes it, or the gate refuses it.

use std::fmt::Write;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use semel_contract::identity::{Caller, Identity};
use semel_gate::{CallerExtension, GateLayer, Identify, Route};
use tower::ServiceExt;

use crate::shop::Shop;

fn app(shop: &Shop, identity: impl Identify) -> Router {
    let gate = GateLayer::builder(std::sync::Arc::clone(&shop.store))
        .identity(identity)
        .route(Route::new("orders", "POST /orders").expect("a pattern"))
        .build()
        .expect("a safe gate");
    Router::new().route("/orders", post(|| async { StatusCode::CREATED })).layer(gate)
}

async fn status(app: &Router, request: Request<Body>) -> u16 {
    app.clone().oneshot(request).await.expect("the gate answers").status().as_u16()
}

/// Text that nothing makes shorter.
fn noise(bytes: usize) -> String {
    let mut text = String::new();
    let mut state = 1_u64;
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write!(text, "{:x}", state >> 16).expect("text can be written");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_of_any_length_is_answered() {
    let _turn = crate::turn().await;
    let shop = Shop::create().await;
    let app = app(&shop, "trusted:X-User".parse::<Identity>().expect("an identity"));
    for bytes in [100, 1_000, 2_600, 8_000, 60_000] {
        let request = Request::post("/orders").header("x-user", noise(bytes));
        let request = request.header("idempotency-key", "k").body(Body::empty()).expect("a request");
        let status = status(&app, request).await;
        assert!(status < 500, "a principal of {bytes} bytes: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_any_characters_is_answered() {
    let _turn = crate::turn().await;
    let shop = Shop::create().await;
    let app = app(&shop, CallerExtension);
    for (tenant, principal) in
        [(None, "a\0b"), (Some("a\0b"), "alice"), (None, "\u{10ffff}"), (Some(""), "\n")]
    {
        let caller = Caller { tenant: tenant.map(str::to_owned), principal: principal.to_owned() };
        let request = Request::post("/orders").extension(caller).header("idempotency-key", "k");
        let status = status(&app, request.body(Body::empty()).expect("a request")).await;
        assert!(status < 500, "tenant {tenant:?}, principal {principal:?}: {status}");
    }
}
