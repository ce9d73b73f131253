//! Settling inside a sqlx transaction on PostgreSQL: the handler's own transaction commits its effect, its record and its
//! answer together. The transaction enters the key as its first write, so that no other runs it; nothing is written before,
//! and a crash leaves nothing. Refuses a savepoint: what the transaction around it does later would not be covered.
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
//!     let mut tx = grant.begin_sqlx(&pool).await?;
//!     sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&item).execute(&mut *tx).await.map_err(failed)?;
//!     grant.commit_sqlx(tx, (StatusCode::CREATED, "created")).await
//! }
//! ```
//!
//! The records live in the application's database, and the pool is on that database, as a role that may call semel's
//! functions: `GRANT semel_library TO app`.

#![warn(missing_docs)]

use std::future::Future;
use std::ops::{Deref, DerefMut};

use axum_core::body::Body;
use axum_core::response::IntoResponse;
use http::Response;
use semel_gate::postgres::{ANSWER_MAX, PAUSE_FIRST, enter_arguments, is_held_up, wait_for_turn};
use semel_gate::{Grant, SettleError, settling};
use semel_store::StoreError;
use semel_store::postgres::once::{
    ENTER, EnterArguments, Entry, IS_ENTERED, LEAVE, LeaveArguments, says_outside,
};
use semel_store::postgres::{Fate, PostgresStore};
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{Database, PgConnection, PgPool, Postgres, Row, Transaction};
use sqlx_core::rt::timeout;
use sqlx_core::transaction::TransactionManager;

/// What is said of a server that keeps silent.
const SILENT: &str = "the server does not answer";

/// A transaction that has entered its key, and holds it until it ends. It is used as the connection that it is on.
#[derive(Debug)]
pub struct Entered<'a>(Transaction<'a, Postgres>);

impl Deref for Entered<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

/// Grants in sqlx transactions.
pub trait SqlxGrant {
    /// Begins a transaction that holds this key. Waits for another that holds it, as long as the route says, and holds no
    /// connection meanwhile.
    fn begin_sqlx(&self, pool: &PgPool)
    -> impl Future<Output = Result<Entered<'static>, SettleError>> + Send;

    /// Enters the key in a transaction that the handler began, of whatever isolation level, and in which it has written
    /// nothing yet. Waits for nobody. After `Err` it is rolled back; return the error.
    fn enter_sqlx<'a>(
        &self,
        tx: Transaction<'a, Postgres>,
    ) -> impl Future<Output = Result<Entered<'a>, SettleError>> + Send;

    /// Leaves the key and commits.
    ///
    /// After `Ok`: effect, record and answer are durable, and the response is the recorded one; or the answer is one that
    /// frees the key, and everything was rolled back. After `Err`: the transaction was rolled back, but for
    /// [`SettleError::Unknown`] and [`SettleError::Outside`].
    fn commit_sqlx(
        &self,
        tx: Entered<'_>,
        response: impl IntoResponse + Send,
    ) -> impl Future<Output = Result<Response<Body>, SettleError>> + Send;
}

/// The handler's own failure, in its words. The transaction is rolled back when it is dropped.
pub fn failed(error: impl std::fmt::Display) -> SettleError {
    SettleError::failed(error.to_string())
}

impl SqlxGrant for Grant {
    async fn begin_sqlx(&self, pool: &PgPool) -> Result<Entered<'static>, SettleError> {
        let mut pause = PAUSE_FIRST;
        loop {
            let tx = pool.begin().await.map_err(failed)?;
            match enter(self, tx).await? {
                Some(entered) => return Ok(entered),
                None => wait_for_turn(self, &mut pause).await?,
            }
        }
    }

    async fn enter_sqlx<'a>(&self, tx: Transaction<'a, Postgres>) -> Result<Entered<'a>, SettleError> {
        enter(self, tx).await?.ok_or(SettleError::Superseded)
    }

    async fn commit_sqlx(
        &self,
        Entered(mut tx): Entered<'_>,
        response: impl IntoResponse + Send,
    ) -> Result<Response<Body>, SettleError> {
        let store: &PostgresStore = settling::store_of(self).map_err(SettleError::failed)?;
        let response = response.into_response();
        match settling::is_released(self, &response) {
            Ok(false) => {}
            Ok(true) => return undo(self, tx).await.map(|()| response),
            Err(error) => return Err(undo(self, tx).await.err().unwrap_or(error)),
        }
        let answer = settling::answer_of(response)?;
        let LeaveArguments { id, status, headers, body } = LeaveArguments::new(self.id(), &answer);
        let leave = sqlx::query(LEAVE).bind(id).bind(status).bind(headers).bind(body);
        match timeout(ANSWER_MAX, leave.execute(&mut *tx)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                if is_outside(&error) {
                    settling::note_outside(self);
                }
                roll_back(tx).await;
                return Err(refused(&error));
            }
            Err(_) => return Err(SettleError::Store(StoreError::Unavailable(SILENT.to_owned()))),
        }
        let why = match timeout(ANSWER_MAX, tx.commit()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) if was_refused(&error) => return Err(refused(&error)),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(SILENT.to_owned()),
        };
        // The commit may have happened all the same: only once the transaction has surely ended does its record tell.
        if let Some(why) = why {
            match store.fate(self.id(), self.fence()).await {
                Ok(Fate::Committed) => {}
                Ok(Fate::NotCommitted) => return Err(failed(why)),
                Err(unreachable) => return Err(SettleError::Unknown(format!("{why}; {unreachable}").into())),
            }
        }
        store.announce(self.id());
        Ok(settling::confirm(self, answer))
    }
}

/// Enters; `None` where another transaction holds the key. Whatever keeps it from executing rolls it back.
async fn enter<'a>(
    grant: &Grant,
    mut tx: Transaction<'a, Postgres>,
) -> Result<Option<Entered<'a>>, SettleError> {
    if depth(&tx) != 1 {
        return Err(failed("a savepoint cannot be entered in; give the outermost transaction"));
    }
    let EnterArguments { id, scope, key, fingerprints, about, options } = enter_arguments(grant)?;
    let enter =
        sqlx::query(ENTER).bind(id).bind(scope).bind(key).bind(fingerprints).bind(about).bind(options);
    let verdict = match enter.fetch_one(&mut *tx).await.and_then(|row| row.try_get::<String, _>(0)) {
        Ok(verdict) => verdict,
        Err(error) => {
            roll_back(tx).await;
            return Err(not_entered(&error));
        }
    };
    match Entry::read(&verdict) {
        Entry::Execute if is_held_up(grant) => {
            roll_back(tx).await;
            Err(SettleError::Superseded)
        }
        Entry::Execute => Ok(Some(Entered(tx))),
        Entry::InFlight => {
            roll_back(tx).await;
            Ok(None)
        }
        Entry::Known => {
            roll_back(tx).await;
            Err(SettleError::Superseded)
        }
    }
}

/// How many transactions are open on this connection, one inside the other. All but the first are savepoints, which sqlx
/// gives the same type.
fn depth(tx: &Transaction<'_, Postgres>) -> usize {
    <Postgres as Database>::TransactionManager::get_transaction_depth(tx)
}

/// What the function itself refuses is the program's fault, and no outage: to try it again would be in vain.
fn not_entered(error: &sqlx::Error) -> SettleError {
    match told(error).is_some_and(|error| error.code().starts_with("SM0")) {
        true => failed(error),
        false => SettleError::Store(StoreError::Unavailable(error.to_string())),
    }
}

/// Rolls back now rather than when the connection is next used: until then others wait for the key. One that cannot be
/// rolled back is rolled back by the server, when the connection ends.
async fn roll_back(tx: Transaction<'_, Postgres>) {
    let _ = tx.rollback().await;
}

/// Rolls back, unless the handler has ended the transaction by itself: what it wrote since stands. One in which a statement failed
/// answers nothing more, and is taken for that transaction.
async fn undo(grant: &Grant, mut tx: Transaction<'_, Postgres>) -> Result<(), SettleError> {
    let asked = timeout(ANSWER_MAX, sqlx::query_scalar(IS_ENTERED).fetch_one(&mut *tx)).await;
    let is_outside = matches!(asked, Ok(Ok(false)));
    if is_outside {
        settling::note_outside(grant);
    }
    roll_back(tx).await;
    match is_outside {
        true => Err(SettleError::Outside("the connection is no longer in the transaction".into())),
        false => Ok(()),
    }
}

/// Whether the handler was outside of its transaction when it left the key.
fn is_outside(error: &sqlx::Error) -> bool {
    told(error).is_some_and(|error| says_outside(error.code(), error.message()))
}

fn told(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error().and_then(|error| error.try_downcast_ref())
}

/// Whether the server itself says that nothing was committed.
fn was_refused(error: &sqlx::Error) -> bool {
    told(error).is_some_and(|error| error.severity() == PgSeverity::Error)
}

/// What a transaction came to that the server refused: another one may have stood in its way.
fn refused(error: &sqlx::Error) -> SettleError {
    if is_outside(error) {
        return SettleError::Outside(error.to_string().into());
    }
    match told(error).map(PgDatabaseError::code) {
        Some("40001" | "40P01") => SettleError::Superseded,
        // A constraint that is checked late is the handler's own business.
        Some(code) if was_refused(error) && !code.starts_with("23") => {
            SettleError::Refused(error.to_string().into())
        }
        Some(_) | None => failed(error),
    }
}
