//! Settling on PostgreSQL: the handler's own transaction commits its effect, its record and its answer together. The
//! records live in the application's database, and the transaction is on that database.
//!
//! ```no_run
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use deadpool_postgres::Pool;
//! use semel_gate::postgres::Grant;
//!
//! async fn create_order(State(pool): State<Pool>, grant: Grant, item: String) -> impl IntoResponse {
//!     let mut connection = pool.get().await?;
//!     let tx = connection.transaction().await?;
//!     tx.execute("INSERT INTO orders (item) VALUES ($1)", &[&item]).await?;
//!     grant.commit(tx, (StatusCode::CREATED, "created")).await
//! }
//! ```

use std::ops::Deref;
use std::pin::Pin;

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::IntoResponse;
use http::Response;
use http::request::Parts;
use semel_store::postgres::{Fate, PostgresStore};
use semel_store::{Settlement, Written};
use tokio_postgres::{Error, Transaction};

use crate::grant::{self, NotGranted, SettleError};
use crate::settling::{answer_of, confirm};

/// A top-level transaction: tokio-postgres' own or deadpool's. A savepoint inside another transaction is not one: what
/// the outer transaction does later would not be covered.
pub trait TopLevel: Send {
    /// The transaction itself.
    fn transaction(&self) -> &Transaction<'_>;

    /// Commits it.
    fn commit(self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Rolls it back.
    fn rollback(self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl TopLevel for Transaction<'_> {
    fn transaction(&self) -> &Transaction<'_> {
        self
    }

    async fn commit(self) -> Result<(), Error> {
        Transaction::commit(self).await
    }

    async fn rollback(self) -> Result<(), Error> {
        Transaction::rollback(self).await
    }
}

impl TopLevel for deadpool_postgres::Transaction<'_> {
    fn transaction(&self) -> &Transaction<'_> {
        self
    }

    async fn commit(self) -> Result<(), Error> {
        deadpool_postgres::Transaction::commit(self).await
    }

    async fn rollback(self) -> Result<(), Error> {
        deadpool_postgres::Transaction::rollback(self).await
    }
}

/// What a handler does inside its transaction: `|tx| Box::pin(async move { … })`.
pub type Working<'a, R> = Pin<Box<dyn Future<Output = Result<R, SettleError>> + Send + 'a>>;

/// The handler's own statement failed: its transaction is rolled back.
impl From<Error> for SettleError {
    fn from(error: Error) -> Self {
        SettleError::failed(error)
    }
}

/// No connection could be had: nothing was begun.
impl From<deadpool_postgres::PoolError> for SettleError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        SettleError::failed(error)
    }
}

/// The right to execute one request, once, on a gate whose records are in a [`PostgresStore`]. Found in the request by
/// axum's extractors; elsewhere by [`Grant::try_from`].
#[derive(Clone, Debug)]
pub struct Grant(grant::Grant);

impl Deref for Grant {
    type Target = grant::Grant;

    fn deref(&self) -> &grant::Grant {
        &self.0
    }
}

impl TryFrom<grant::Grant> for Grant {
    type Error = NotGranted;

    fn try_from(grant: grant::Grant) -> Result<Self, NotGranted> {
        grant.store::<PostgresStore>()?;
        Ok(Self(grant))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Grant {
    type Rejection = NotGranted;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotGranted> {
        grant::Grant::from_request_parts(parts, state).await?.try_into()
    }
}

impl Grant {
    /// Settles inside a transaction that the handler opened, and commits it.
    ///
    /// After `Ok`: effect, record and answer are durable, and the response is the recorded one. After `Err`: the
    /// transaction was rolled back, but for [`SettleError::Unknown`].
    ///
    /// # Errors
    /// Another attempt holds the key, or the database did not take it.
    pub async fn commit<T: TopLevel>(
        &self,
        tx: T,
        response: impl IntoResponse,
    ) -> Result<Response<Body>, SettleError> {
        let store: &PostgresStore =
            self.0.store().expect("a grant of this kind was made of one on this store");
        let answer = match answer_of(response) {
            Ok(answer) => answer,
            Err(error) => {
                let _ = tx.rollback().await;
                return Err(error);
            }
        };
        let settlement = Settlement::Settle(answer.clone());
        match PostgresStore::settle_in(tx.transaction(), self.id(), self.fence(), settlement, self.lifetime())
            .await
        {
            Ok(Written::Done) => {}
            Ok(Written::Superseded) => {
                // A transaction that is dropped is rolled back as well; saying so only makes it sooner.
                let _ = tx.rollback().await;
                return Err(SettleError::Superseded);
            }
            Err(error) => {
                let _ = tx.rollback().await;
                return Err(SettleError::Store(error));
            }
        }
        if let Err(error) = tx.commit().await {
            // The commit may have happened all the same: only a locking look tells.
            match store.fate(self.id(), self.fence()).await {
                Ok(Fate::Committed) => {}
                Ok(Fate::NotCommitted) => return Err(error.into()),
                Err(unreachable) => {
                    return Err(SettleError::Unknown(format!("{error}; {unreachable}").into()));
                }
            }
        }
        store.announce(self.id());
        Ok(confirm(self, answer))
    }

    /// Opens a transaction, runs the handler's writes in it, settles and commits.
    ///
    /// # Errors
    /// The handler's work failed, another attempt holds the key, or the database did not take it.
    pub async fn transact<W, R>(
        &self,
        pool: &deadpool_postgres::Pool,
        work: W,
    ) -> Result<Response<Body>, SettleError>
    where
        W: for<'a> FnOnce(&'a Transaction<'a>) -> Working<'a, R> + Send,
        R: IntoResponse + Send,
    {
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        let done = work(&tx).await;
        match done {
            Ok(response) => self.commit(tx, response).await,
            Err(error) => {
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }
}
