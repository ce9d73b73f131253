//! One handler, four ways: without any storage; with its row alone in a transaction on PostgreSQL; and with the gate's layer
//! around it, where the order's row, the record and the answer are one commit on SQLite or on PostgreSQL.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use deadpool_postgres::{Manager, Pool};
use semel_contract::identity::Identity;
use semel_gate::{GateLayer, Route, SettleError, postgres, sqlite};
use semel_store::ClaimStore;
use semel_store::postgres::{Options, PostgresStore};
use semel_store::sqlite::SqliteStore;
use semel_store::sqlite::rusqlite::Connection;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_postgres::NoTls;

use crate::upstream::runtime;

type Failure = Box<dyn std::error::Error>;

/// Connections of the handler's own pool.
const POOL: usize = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
    /// sqlite:PATH or postgres://…; without it, no storage and no layer.
    #[arg(long)]
    store: Option<String>,
    /// On PostgreSQL, without the layer: the order's row and nothing else.
    #[arg(long)]
    bare: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct NewOrder {
    customer: i64,
    amount: i64,
}

impl NewOrder {
    fn taken(&self, id: i64) -> Value {
        // As long as the answers of every other load.
        const NOTE: &str = "This order was taken once. Sending the same request again, with the same key, brings this \
answer again and takes no second order; with another key it would take one more. What was asked and what was answered \
is kept for as long as one may ask again.";
        json!({"id": id, "customer": self.customer, "amount": self.amount, "note": NOTE})
    }
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    runtime()?.block_on(serve(args)).map_err(|error| format!("failed to serve: {error}"))
}

async fn serve(args: &Args) -> Result<(), Failure> {
    let app = match args.store.as_deref().map(|url| (url.strip_prefix("sqlite:"), url)) {
        None => Router::new().route("/orders", post(without_storage)),
        Some((Some(path), _)) => on_sqlite(path)?,
        Some((None, url)) => on_postgres(url, args.bare).await?,
    };
    let listener = TcpListener::bind(args.listen).await?;
    println!("ready");
    Ok(axum::serve(listener, app).await?)
}

async fn without_storage(Json(new): Json<NewOrder>) -> Response {
    (StatusCode::CREATED, Json(new.taken(1))).into_response()
}

fn on_sqlite(path: &str) -> Result<Router, Failure> {
    let store = Arc::new(SqliteStore::open(path)?);
    let table =
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER)";
    Connection::open(path)?.execute(table, [])?;
    gated(Router::new().route("/orders", post(take_on_sqlite)), store)
}

async fn take_on_sqlite(grant: sqlite::Grant, Json(new): Json<NewOrder>) -> impl IntoResponse {
    grant
        .transact(move |db| {
            db.execute("INSERT INTO orders (customer, amount) VALUES (?1, ?2)", (new.customer, new.amount))?;
            Ok((StatusCode::CREATED, Json(new.taken(db.last_insert_rowid()))))
        })
        .await
}

const INSERT: &str = "INSERT INTO orders (customer, amount) VALUES ($1, $2) RETURNING id";

async fn on_postgres(url: &str, is_bare: bool) -> Result<Router, Failure> {
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).max_size(POOL).build()?;
    let table = "CREATE TABLE IF NOT EXISTS orders \
        (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL, amount bigint NOT NULL)";
    pool.get().await?.batch_execute(table).await?;
    if is_bare {
        return Ok(Router::new().route("/orders", post(take_bare)).with_state(pool));
    }
    let store = Arc::new(PostgresStore::connect(url, Options::default()).await?);
    gated(Router::new().route("/orders", post(take_on_postgres)).with_state(pool), store)
}

/// The same handler and transaction, without semel.
async fn take_bare(State(pool): State<Pool>, Json(new): Json<NewOrder>) -> Result<Response, SettleError> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let insert = tx.prepare_cached(INSERT).await?;
    let row = tx.query_one(&insert, &[&new.customer, &new.amount]).await?;
    tx.commit().await?;
    Ok((StatusCode::CREATED, Json(new.taken(row.get(0)))).into_response())
}

async fn take_on_postgres(
    State(pool): State<Pool>,
    grant: postgres::Grant,
    Json(new): Json<NewOrder>,
) -> Result<Response, SettleError> {
    let taking = grant.transact(&pool, |tx| {
        let new = new.clone();
        Box::pin(async move {
            let insert = tx.prepare_cached(INSERT).await?;
            let row = tx.query_one(&insert, &[&new.customer, &new.amount]).await?;
            Ok((StatusCode::CREATED, Json(new.taken(row.get(0)))))
        })
    });
    taking.await
}

fn gated(routes: Router, store: Arc<dyn ClaimStore>) -> Result<Router, Failure> {
    let route = Route::new("create-order", "POST /orders")?.atomic();
    let gate = GateLayer::builder(store).identity(Identity::Authorization).route(route).build()?;
    Ok(routes.layer(gate))
}
