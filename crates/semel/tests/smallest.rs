//! The smallest program that protects a route, as the README shows it, with nothing added but this crate and axum.
#![cfg(feature = "sqlite")]

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http_body_util::BodyExt;
use semel::sqlite::Grant;
use semel::{Identity, Route, SqliteStore};
use tower::ServiceExt;

async fn create(grant: Grant, item: String) -> impl IntoResponse {
    grant
        .transact(move |db| {
            db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)", [])?;
            db.execute("INSERT INTO orders (item) VALUES (?1)", [&item])?;
            Ok((StatusCode::CREATED, format!("order {}", db.last_insert_rowid())))
        })
        .await
}

fn app(folder: &std::path::Path) -> Result<Router, Box<dyn std::error::Error>> {
    let gate = semel::GateLayer::builder(SqliteStore::open(folder.join("orders.db"))?)
        .identity(Identity::header("X-User"))
        .route(Route::post("/orders").name("create-order").atomic())
        .build()?;
    Ok(Router::new().route("/orders", post(create)).layer(gate))
}

#[tokio::test]
async fn two_requests_with_one_key_are_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let app = app(folder.path()).unwrap();
    let mut replays = Vec::new();
    for key in ["k1", "k1", "k2"] {
        let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", key);
        let response = app.clone().oneshot(request.body(Body::from("tea")).unwrap()).await.unwrap();
        assert_eq!(response.status(), 201);
        let is_replay = response.headers().contains_key("idempotency-replayed");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        replays.push((String::from_utf8(body.to_vec()).unwrap(), is_replay));
    }
    let expected = [("order 1", false), ("order 1", true), ("order 2", false)];
    assert_eq!(replays, expected.map(|(order, is_replay)| (order.to_owned(), is_replay)));
}
