//! Settling inside a sqlx transaction on PostgreSQL: the handler's own transaction commits its effect, its record and its
//! answer together. Refuses a savepoint: what the transaction around it does later would not be covered.
//!
//! ```no_run
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use semel_gate::Grant;
//! use semel_sqlx::{SqlxGrant, failed};
//! use sqlx::PgPool;
//!
//! async fn create_order(State(pool): State<PgPool>, grant: Grant, item: String) -> impl IntoResponse {
//!     let mut tx = pool.begin().await.map_err(failed)?;
//!     sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item).execute(&mut *tx).await.map_err(failed)?;
//!     grant.commit_sqlx(tx, (StatusCode::CREATED, "created")).await
//! }
//! ```
//!
//! The records live in the application's database, and the pool is on that database, as a role that may do what
//! `semel_service` may: `GRANT semel_service TO app`.

#![warn(missing_docs)]

mod settle;

use std::future::Future;

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use http::Response;
use semel_gate::{Grant, SettleError, settling};
use semel_store::postgres::{Fate, PostgresStore};
use semel_store::{StoreError, Written};
use sqlx::{Database, Postgres, Transaction};
use sqlx_core::transaction::TransactionManager;

/// Grants in sqlx transactions.
pub trait SqlxGrant {
    /// Settles inside a transaction that the handler opened, and commits it.
    ///
    /// Before: the transaction is a top-level one on the database in which the gate keeps its records. After `Ok`: effect,
    /// record and answer are durable, and the response is the recorded one. After `Err`: the transaction was rolled back,
    /// but for [`SettleError::Unknown`].
    fn commit_sqlx(
        &self,
        tx: Transaction<'_, Postgres>,
        response: impl IntoResponse + Send,
    ) -> impl Future<Output = Result<Response<Body>, SettleError>> + Send;
}

/// The handler's own failure, in its words. The transaction is rolled back when it is dropped.
pub fn failed(error: impl std::fmt::Display) -> SettleError {
    SettleError::failed(error.to_string())
}

impl SqlxGrant for Grant {
    async fn commit_sqlx(
        &self,
        mut tx: Transaction<'_, Postgres>,
        response: impl IntoResponse + Send,
    ) -> Result<Response<Body>, SettleError> {
        let store = store_of(self)?;
        if depth(&tx) != 1 {
            return Err(failed("a savepoint cannot be settled in; give the outermost transaction"));
        }
        let answer = settling::answer_of(response)?;
        match settle::settle(&mut tx, self, &answer).await {
            Ok(Written::Done) => {}
            Ok(Written::Superseded) => return Err(rolled_back(tx, SettleError::Superseded).await),
            Err(error) => {
                let error = StoreError::Unavailable(error.to_string());
                return Err(rolled_back(tx, SettleError::Store(error)).await);
            }
        }
        if let Err(error) = tx.commit().await {
            // The commit may have happened all the same: only a locking look tells.
            match store.fate(self.id(), self.fence()).await {
                Ok(Fate::Committed) => {}
                Ok(Fate::NotCommitted) => return Err(failed(error)),
                Err(unreachable) => return Err(SettleError::Unknown(format!("{error}; {unreachable}").into())),
            }
        }
        store.announce(self.id());
        Ok(settling::confirm(self, answer))
    }
}

fn store_of(grant: &Grant) -> Result<&PostgresStore, SettleError> {
    settling::store_of(grant).map_err(SettleError::failed)
}

/// How many transactions are open on this connection, one inside the other. All but the first are savepoints, which sqlx
/// gives the same type.
fn depth(tx: &Transaction<'_, Postgres>) -> usize {
    <Postgres as Database>::TransactionManager::get_transaction_depth(tx)
}

/// Rolls back now rather than when the connection is next used: until then others wait for the record.
async fn rolled_back(tx: Transaction<'_, Postgres>, why: SettleError) -> SettleError {
    // One that cannot be rolled back is rolled back by the server, when the connection ends.
    let _ = tx.rollback().await;
    why
}
