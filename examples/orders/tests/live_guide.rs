//! What the guide says to other languages, done: its SQL settles a grant, and a retry gets what it settled.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use semel_contract::identity::Identity;
use semel_gate::{GateLayer, Grant, Route, settling};
use semel_store::postgres::{Options, PostgresStore};
use tokio_postgres::{Client, NoTls};
use tower::ServiceExt;

const SERVER: &str = "SEMEL_TEST_POSTGRES";
const GUIDE: &str = include_str!("../../../docs/guides/settling.md");

/// Stands in for a program in another language, and for the handler that passes the request on to it.
async fn pass_on(State(database): State<Arc<Client>>, grant: Grant) -> Response {
    let sql =
        GUIDE.split("```sql\n").nth(1).and_then(|rest| rest.split_once("```")).expect("a block of SQL").0;
    let sql = sql.replace("42-00c0ffee00c0ffee", &grant.fence().to_string());
    if database.batch_execute(&sql).await.is_err() {
        database.batch_execute("ROLLBACK").await.expect("it rolls back");
        return StatusCode::CONFLICT.into_response();
    }
    let answer = (StatusCode::CREATED, axum::Json(serde_json::json!({"id": 1})));
    settling::confirm(&grant, settling::answer_of(answer).expect("a whole answer"))
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

async fn create(app: &Router) -> (u16, bool, String) {
    let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", "k");
    let response =
        app.clone().oneshot(request.body(Body::empty()).expect("a request")).await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    let text = String::from_utf8(body.to_vec()).expect("text");
    (status, headers.contains_key("idempotency-replayed"), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_guides_sql_settles_is_replayed() {
    let server = std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
    let name = format!("orders_guide_{}", std::process::id());
    connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
    let url = server.replace("/postgres", &format!("/{name}"));
    let database = Arc::new(connect(&url).await);
    database.batch_execute("CREATE TABLE orders (item text, quantity integer)").await.expect("a table");
    let store = Arc::new(PostgresStore::connect(&url, Options::default()).await.expect("a store"));
    let gate = GateLayer::builder(store)
        .identity("trusted:X-User".parse::<Identity>().expect("an identity"))
        .route(Route::new("create-order", "POST /orders").expect("a route").atomic())
        .handlers_elsewhere()
        .build()
        .expect("a gate");
    let app = Router::new().route("/orders", post(pass_on)).with_state(Arc::clone(&database)).layer(gate);

    let (first, again) = (create(&app).await, create(&app).await);
    assert_eq!((first.0, first.1, again.0, again.1), (201, false, 201, true), "{first:?} {again:?}");
    assert_eq!(
        (first.2.as_str(), again.2.as_str()),
        (r#"{"id":1}"#, r#"{"id":1}"#),
        "the bytes of the settlement"
    );
    let row = database.query_one("SELECT count(*) FROM orders", &[]).await.expect("a count");
    assert_eq!(row.get::<_, i64>(0), 1);
}
