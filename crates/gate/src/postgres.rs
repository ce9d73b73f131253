//! Settling on PostgreSQL: the handler's own transaction commits its effect, its record and its answer together. The
//! records live in the application's database, and the transaction is on that database.
//!
//! ```no_run
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use deadpool_postgres::Pool;
//! use semel_gate::postgres::PostgresGrant;
//! use semel_gate::{Grant, NotDone, answer};
//!
//! async fn create_order(State(pool): State<Pool>, grant: Grant, body: String) -> impl IntoResponse {
//!     let mut connection = pool.get().await.map_err(|error| NotDone::Failed(error.to_string()))?;
//!     let tx = connection.transaction().await.map_err(|error| NotDone::Failed(error.to_string()))?;
//!     tx.execute("INSERT INTO orders (item) VALUES ($1)", &[&body]).await.map_err(|error| NotDone::Failed(error.to_string()))?;
//!     grant.commit(tx, answer::text(StatusCode::CREATED, "created")).await
//! }
//! ```

use std::pin::Pin;

use axum_core::body::Body;
use http::Response;
use semel_store::postgres::{Fate, PostgresStore};
use semel_store::{Answer, Settlement, Written};
use tokio_postgres::{Error, Transaction};

use crate::answer;
use crate::grant::{Grant, NotDone};

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

/// Grants on PostgreSQL.
pub trait PostgresGrant {
    /// Settles inside a transaction that the handler opened, and commits it.
    ///
    /// After `Ok`: effect, record and answer are durable, and the response is the recorded one. After `Err`: the
    /// transaction was rolled back, but for [`NotDone::Unknown`].
    fn commit<T: TopLevel>(
        &self,
        tx: T,
        answer: Answer,
    ) -> impl Future<Output = Result<Response<Body>, NotDone>> + Send;

    /// Opens a transaction, runs the handler's writes in it, settles and commits.
    fn transact<W>(
        &self,
        pool: &deadpool_postgres::Pool,
        work: W,
    ) -> impl Future<Output = Result<Response<Body>, NotDone>> + Send
    where
        W: for<'a> FnOnce(&'a Transaction<'a>) -> Working<'a> + Send;
}

/// What a handler does inside its transaction: `|tx| Box::pin(async move { … })`.
pub type Working<'a> = Pin<Box<dyn Future<Output = Result<Answer, NotDone>> + Send + 'a>>;

impl PostgresGrant for Grant {
    async fn commit<T: TopLevel>(&self, tx: T, answer: Answer) -> Result<Response<Body>, NotDone> {
        let store: &PostgresStore = self.store()?;
        let answer = answer::cleaned(answer);
        let settlement = Settlement::Settle(answer.clone());
        match PostgresStore::settle_in(tx.transaction(), self.id(), self.fence(), settlement, self.lifetime())
            .await
        {
            Ok(Written::Done) => {}
            Ok(Written::Superseded) => {
                // A transaction that is dropped is rolled back as well; saying so only makes it sooner.
                let _ = tx.rollback().await;
                return Err(NotDone::Superseded);
            }
            Err(error) => {
                let _ = tx.rollback().await;
                return Err(NotDone::Store(error));
            }
        }
        let committed = match tx.commit().await {
            Ok(()) => Ok(()),
            // The commit may have happened all the same: only a locking look tells.
            Err(error) => match store.fate(self.id(), self.fence()).await {
                Ok(Fate::Committed) => Ok(()),
                Ok(Fate::NotCommitted) => Err(NotDone::Failed(error.to_string())),
                Err(unreachable) => Err(NotDone::Unknown(format!("{error}; {unreachable}"))),
            },
        };
        committed.map(|()| {
            store.announce(self.id());
            let response = answer::restored(&answer);
            self.settled_with(answer);
            response
        })
    }

    async fn transact<W>(&self, pool: &deadpool_postgres::Pool, work: W) -> Result<Response<Body>, NotDone>
    where
        W: for<'a> FnOnce(&'a Transaction<'a>) -> Working<'a> + Send,
    {
        let failed = |error: String| NotDone::Failed(error);
        let mut connection = pool.get().await.map_err(|error| failed(error.to_string()))?;
        let tx = connection.transaction().await.map_err(|error| failed(error.to_string()))?;
        let answer = work(&tx).await;
        match answer {
            Ok(answer) => self.commit(tx, answer).await,
            Err(error) => {
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }
}
