//! Orders in SQLite, in the file in which semel keeps its records. Writes go through the grant; reads have connections of
//! their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use semel_gate::sqlite::Grant;

use semel_store::ClaimStore;
use semel_store::sqlite::SqliteStore;
use semel_store::sqlite::rusqlite::{self, Connection, Row};

use crate::Failure;
use crate::order::{NewOrder, Order, unreadable};

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, quantity INTEGER NOT NULL)";

/// Opens the file: the store of the records, and the routes of the orders.
pub(crate) fn open(path: &Path) -> Result<(Arc<dyn ClaimStore>, Router), Failure> {
    let store = Arc::new(SqliteStore::open(path)?);
    Connection::open(path)?.execute(TABLE, [])?;
    let routes = Router::new().route("/orders", get(list).post(create)).with_state(path.to_owned());
    Ok((store, routes))
}

async fn create(grant: Grant, Json(new): Json<NewOrder>) -> impl IntoResponse {
    grant
        .transact(move |db| {
            let insert = "INSERT INTO orders (item, quantity) VALUES (?1, ?2)";
            db.execute(insert, (&new.item, new.quantity))?;
            Ok((StatusCode::CREATED, Json(new.created(db.last_insert_rowid()))))
        })
        .await
}

async fn list(State(path): State<PathBuf>) -> Response {
    // On a thread of its own: SQLite waits for its disk.
    let read = tokio::task::spawn_blocking(move || read(&path)).await.expect("reading does not panic");
    read.map_or_else(unreadable, |orders| Json(orders).into_response())
}

fn read(path: &Path) -> rusqlite::Result<Vec<Order>> {
    let connection = Connection::open(path)?;
    let mut statement = connection.prepare("SELECT id, item, quantity FROM orders ORDER BY id")?;
    let order = |row: &Row<'_>| Ok(Order { id: row.get(0)?, item: row.get(1)?, quantity: row.get(2)? });
    statement.query_map([], order)?.collect()
}
