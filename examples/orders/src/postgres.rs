//! Orders in PostgreSQL, in the database in which semel keeps its records. The transaction is the handler's own.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use deadpool_postgres::{Manager, Pool};
use semel_gate::SettleError;
use semel_gate::postgres::Grant;
use semel_store::ClaimStore;
use semel_store::postgres::{Options, PostgresStore};
use tokio_postgres::NoTls;

use crate::Failure;
use crate::order::{NewOrder, Order, unreadable};

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL)";

/// Connects to the database: the store of the records, and the routes of the orders.
pub(crate) async fn open(url: &str) -> Result<(Arc<dyn ClaimStore>, Router), Failure> {
    let store = Arc::new(PostgresStore::connect(url, Options::default()).await?);
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).build()?;
    pool.get().await?.batch_execute(TABLE).await?;
    let routes = Router::new().route("/orders", get(list).post(create)).with_state(pool);
    Ok((store, routes))
}

async fn create(
    State(pool): State<Pool>,
    grant: Grant,
    Json(new): Json<NewOrder>,
) -> Result<Response, SettleError> {
    let mut connection = pool.get().await?;
    let tx = grant.begin(&mut connection).await?;
    let insert = "INSERT INTO orders (item, quantity) VALUES ($1, $2) RETURNING id";
    let row = tx.query_one(insert, &[&new.item, &new.quantity]).await?;
    grant.commit(tx, (StatusCode::CREATED, Json(new.created(row.get(0))))).await
}

async fn list(State(pool): State<Pool>) -> Response {
    read(&pool).await.map_or_else(unreadable, |orders| Json(orders).into_response())
}

async fn read(pool: &Pool) -> Result<Vec<Order>, Failure> {
    let sql = "SELECT id, item, quantity FROM orders ORDER BY id";
    let rows = pool.get().await?.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| Order { id: row.get(0), item: row.get(1), quantity: row.get(2) }).collect())
}
