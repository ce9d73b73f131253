//! The same handler behind `axum-idempotent` with its PostgreSQL store. It keeps answers in a session, so a client logs in
//! first and sends the cookie with every request.

use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::Ttl;
use ruts::store::postgres::{PostgresStore, PostgresStoreBuilder};
use ruts::{CookieOptions, Session, SessionLayer};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use tower_cookies::CookieManagerLayer;

/// As many connections as it can use at 64 requests at a time.
const CONNECTIONS: u32 = 32;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, url] = args.as_slice() else { return Err("Usage: semel-bench-peers LISTEN POSTGRES_URL".into()) };
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
    let store = Arc::new(PostgresStoreBuilder::new(pool).create_table(true).build().await?);
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("idempotency-key"), true)
        .expire_after(24 * 3600);
    let cookie = CookieOptions::build().name("session").max_age(24 * 3600).path("/").secure(false);
    let app = Router::new()
        .route("/orders", post(take))
        .layer(IdempotentLayer::<PostgresStore>::new(options))
        .route("/login", post(login))
        .layer(SessionLayer::new(store).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("ready");
    Ok(axum::serve(listener, app).await?)
}

async fn login(session: Session<PostgresStore>) -> Result<(), String> {
    let day = Ttl::new(24 * 3600).map_err(|error| error.to_string())?;
    session.set("user", &4711, day, None).await.map_err(|error| error.to_string())
}

async fn take(Json(order): Json<Value>) -> Json<Value> {
    Json(json!({"id": 1, "customer": order["customer"], "note": "x".repeat(250)}))
}
