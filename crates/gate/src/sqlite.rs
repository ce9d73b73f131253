//! Settling on the embedded store: the handler's writes, its record and its answer in one commit, which thousands of
//! requests share.
//!
//! ```no_run
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use semel_gate::sqlite::Grant;
//!
//! async fn create_order(grant: Grant, item: String) -> impl IntoResponse {
//!     grant.transact(move |db| {
//!         db.execute("INSERT INTO orders (item) VALUES (?1)", [&item])?;
//!         Ok((StatusCode::CREATED, format!("order {}", db.last_insert_rowid())))
//!     }).await
//! }
//! ```

use std::ops::Deref;
use std::time::Duration;

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::IntoResponse;
use http::Response;
use http::request::Parts;
use semel_store::sqlite::{SqliteStore, TransactOutcome};
use semel_store::{ClaimStore, Settlement, StoreError};

use crate::answer;
use crate::grant::{self, NotGranted, SettleError};
use crate::settling::confirm;

pub use semel_store::sqlite::{Work, WorkError};

/// How often a commit whose result is not known is looked into before the handler is told so.
const UNKNOWN_TRIES: u32 = 5;
/// The pause before the first of them; it doubles. A store that lost its disk needs a moment to recover.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);

/// The right to execute one request, once, on a gate whose records are in a [`SqliteStore`]. Found in the request by
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
        grant.store::<SqliteStore>()?;
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
    /// Runs the handler's writes and commits them together with its answer.
    ///
    /// The closure runs on the store's writer, in a savepoint of its own: it may read and write the database and nothing
    /// else, it may run more than once, and only its last run counts. After `Ok`: effect, record and answer are durable,
    /// and the response is the recorded one. After `Err`: nothing of it took effect, but for [`SettleError::Unknown`].
    ///
    /// # Errors
    /// The closure failed, another attempt holds the key, or the store did not take it.
    pub async fn transact<W, R>(&self, work: W) -> Result<Response<Body>, SettleError>
    where
        W: Fn(&Work<'_>) -> Result<R, WorkError> + Clone + Send + Sync + 'static,
        R: IntoResponse,
    {
        let store: &SqliteStore = self.0.store().expect("a grant of this kind was made of one on this store");
        let mut pause = UNKNOWN_PAUSE;
        for tries_left in (0..UNKNOWN_TRIES).rev() {
            let work = work.clone();
            let settling = move |db: &Work<'_>| {
                let answer = answer::record_of(work(db)?)
                    .map_err(|streams| WorkError::Handler(streams.to_string()))?;
                Ok((answer.clone(), Settlement::Settle(answer)))
            };
            match store.transact(self.id(), self.fence(), self.lifetime(), settling).await {
                Ok(TransactOutcome::Done(answer)) => return Ok(confirm(self, answer)),
                Ok(TransactOutcome::AlreadyDone) => return self.read_record(store).await,
                Ok(TransactOutcome::Superseded) => return Err(SettleError::Superseded),
                Ok(TransactOutcome::Failed(error)) => return Err(SettleError::failed(error)),
                // The same call again tells, and runs the closure only if nothing is there.
                Err(error @ StoreError::Unknown(_)) if tries_left == 0 => {
                    return Err(SettleError::Unknown(error.into()));
                }
                Err(StoreError::Unknown(_)) => tokio::time::sleep(pause).await,
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    return Err(SettleError::Store(error));
                }
            }
            pause *= 2;
        }
        Err(SettleError::Unknown("the store did not recover in time".into()))
    }

    /// An earlier commit of this fence, whose reply was lost, was a commit: its answer is on record.
    async fn read_record(&self, store: &SqliteStore) -> Result<Response<Body>, SettleError> {
        let (entry, _) = store.look_up(self.id()).await.map_err(SettleError::Store)?;
        let answer = entry.filter(|entry| entry.record.fence == self.fence()).and_then(|entry| entry.answer);
        answer.map(|answer| confirm(self, answer)).ok_or(SettleError::Superseded)
    }
}
