//! Settling on the embedded store: the handler's writes, its record and its answer in one commit, which thousands of
//! requests share.
//!
//! ```no_run
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use semel_gate::sqlite::SqliteGrant;
//! use semel_gate::{Grant, answer};
//!
//! async fn create_order(grant: Grant, body: String) -> impl IntoResponse {
//!     grant.transact(move |db| {
//!         db.execute("INSERT INTO orders (item) VALUES (?1)", [&body])?;
//!         Ok(answer::text(StatusCode::CREATED, format!("order {}", db.last_insert_rowid())))
//!     }).await
//! }
//! ```

use std::time::Duration;

use axum_core::body::Body;
use http::Response;
use semel_store::sqlite::{SqliteStore, TransactOutcome, Work, WorkError};
use semel_store::{Answer, ClaimStore, Settlement, StoreError};

use crate::answer;
use crate::grant::{Grant, NotDone};

/// How often a commit whose result is not known is looked into before the handler is told so.
const UNKNOWN_TRIES: u32 = 5;
/// The pause before the first of them; it doubles. A store that lost its disk needs a moment to recover.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);

/// Grants on the embedded store.
pub trait SqliteGrant {
    /// Runs the handler's writes and commits them together with its answer.
    ///
    /// The closure runs on the store's writer, in a savepoint of its own: it may read and write the database and nothing
    /// else, it may run more than once, and only its last run counts. After `Ok`: effect, record and answer are durable,
    /// and the response is the recorded one. After `Err`: nothing of it took effect, but for [`NotDone::Unknown`].
    fn transact<W>(&self, work: W) -> impl Future<Output = Result<Response<Body>, NotDone>> + Send
    where
        W: Fn(&Work<'_>) -> Result<Answer, WorkError> + Clone + Send + Sync + 'static;
}

impl SqliteGrant for Grant {
    async fn transact<W>(&self, work: W) -> Result<Response<Body>, NotDone>
    where
        W: Fn(&Work<'_>) -> Result<Answer, WorkError> + Clone + Send + Sync + 'static,
    {
        let store: &SqliteStore = self.store()?;
        let mut pause = UNKNOWN_PAUSE;
        for tries_left in (0..UNKNOWN_TRIES).rev() {
            let work = work.clone();
            let settling = move |db: &Work<'_>| {
                let answer = answer::cleaned(work(db)?);
                Ok((answer.clone(), Settlement::Settle(answer)))
            };
            match store.transact(self.id(), self.fence(), self.lifetime(), settling).await {
                Ok(TransactOutcome::Done(answer)) => return Ok(done(self, answer)),
                Ok(TransactOutcome::AlreadyDone) => return recorded(self, store).await,
                Ok(TransactOutcome::Superseded) => return Err(NotDone::Superseded),
                Ok(TransactOutcome::Failed(error)) => return Err(NotDone::Failed(error.to_string())),
                // The same call again tells, and runs the closure only if nothing is there.
                Err(StoreError::Unknown(why)) if tries_left == 0 => return Err(NotDone::Unknown(why)),
                Err(StoreError::Unknown(_)) => tokio::time::sleep(pause).await,
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    return Err(NotDone::Store(error));
                }
            }
            pause *= 2;
        }
        Err(NotDone::Unknown("the store did not recover in time".to_owned()))
    }
}

fn done(grant: &Grant, answer: Answer) -> Response<Body> {
    let response = answer::restored(&answer);
    grant.settled_with(answer);
    response
}

/// An earlier commit of this fence, whose reply was lost, was a commit: its answer is on record.
async fn recorded(grant: &Grant, store: &SqliteStore) -> Result<Response<Body>, NotDone> {
    let (entry, _) = store.look_up(grant.id()).await.map_err(NotDone::Store)?;
    let answer = entry.filter(|entry| entry.record.fence == grant.fence()).and_then(|entry| entry.answer);
    answer.map(|answer| done(grant, answer)).ok_or(NotDone::Superseded)
}
