//! Settling on PostgreSQL: the handler's own transaction commits its effect, its record and its answer together. The
//! records live in the application's database, and the transaction is on that database. Nothing is written before it: the
//! transaction enters the key as its first write, so that no other runs it, and a crash leaves nothing.
//!
//! ```no_run
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use deadpool_postgres::Pool;
//! use semel_gate::postgres::Grant;
//!
//! async fn create_order(State(pool): State<Pool>, grant: Grant, item: String) -> impl IntoResponse {
//!     grant.transact(&pool, |tx| { let item = item.clone(); Box::pin(async move {
//!         tx.execute("INSERT INTO orders (item) VALUES ($1)", &[&item]).await?;
//!         Ok((StatusCode::CREATED, "created"))
//!     }) }).await
//! }
//! ```

mod errors;
mod key;
mod transaction;

use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::IntoResponse;
use http::Response;
use http::request::Parts;
use semel_contract::profile::InFlight;
use semel_store::Answer;
pub use semel_store::postgres::once::PAUSE_FIRST;
use semel_store::postgres::once::{EnterArguments, Former, LeaveArguments, NewKey, PAUSE_LONGEST};
use semel_store::postgres::{Fate, PostgresStore};
use tokio_postgres::Error;

use self::errors::{Ended, ended, is_in_the_way, not_entered, silent_store};
pub use self::key::Entered;
use self::key::{Entrance, Turn, leave};
pub use self::transaction::ANSWER_MAX;
pub use self::transaction::{Begun, Connection, NotCommitted, TopLevel, Typed};
use self::transaction::{ROLLBACK_MAX, is_outside, within};
use crate::grant::{self, NotGranted, SettleError};
use crate::settling::{answer_of, confirm, is_released};
use crate::step::Step;

/// How often a closure runs again because its transaction and another's could not both be.
const RETRIES_MAX: u32 = 5;

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
    fn store(&self) -> &PostgresStore {
        self.0.store().expect("a grant of this kind was made of one on this store")
    }

    /// Begins a transaction that holds this key: its first write enters it, so that no other transaction or gate runs it.
    /// Waits for another that holds the key, as long as the route says, and holds the connection meanwhile;
    /// [`Grant::transact`] holds none, and runs again what met another transaction.
    ///
    /// # Errors
    /// Another attempt was faster, or the database could not be reached. Return the error: the gate answers from the other
    /// attempt's record.
    pub async fn begin<'a, C: Connection>(
        &self,
        connection: &'a mut C,
    ) -> Result<Entered<Begun<'a, C>>, SettleError> {
        let mut pause = PAUSE_FIRST;
        if self.store().is_entered(self.id()).await.map_err(SettleError::Store)? {
            wait_for_turn(self, &mut pause).await?;
        }
        match begin(self, connection, new_key(self)).await? {
            Turn::Entered(tx) => Ok(tx),
            Turn::Busy | Turn::NotNew | Turn::Known => Err(SettleError::Superseded),
        }
    }

    /// Enters the key in a transaction that the handler began, of whatever isolation level, and in which it has written
    /// nothing yet. Waits for nobody.
    ///
    /// # Errors
    /// Another attempt is faster, or the database could not be reached. It is rolled back; return the error.
    pub async fn enter<T: TopLevel>(&self, tx: T) -> Result<Entered<T>, SettleError> {
        let entrance = entrance(self, new_key(self))?;
        let values = entrance.values();
        let told = match within(ANSWER_MAX, tx.run(entrance.sql(), &values)).await {
            Ok(Ok(told)) => told,
            Ok(Err(error)) => {
                tx.rollback().await;
                return Err(not_entered(error));
            }
            Err(silent) => return Err(silent_store(silent.as_ref())),
        };
        drop(values);
        match keep_up(self, entrance.turn(tx, &told).await).await? {
            Turn::Entered(tx) => Ok(tx),
            Turn::Busy | Turn::NotNew | Turn::Known => Err(SettleError::Superseded),
        }
    }

    /// Leaves the key in a transaction that [`Grant::begin`] began, and commits it.
    ///
    /// After `Ok`: effect, record and answer are durable, and the response is the recorded one; or the answer is one that
    /// frees the key, and everything was rolled back. After `Err`: the transaction was rolled back, but for
    /// [`SettleError::Unknown`] and [`SettleError::Outside`].
    ///
    /// # Errors
    /// Another attempt has the key, or the database did not take it.
    pub async fn commit<T: TopLevel>(
        &self,
        tx: Entered<T>,
        response: impl IntoResponse,
    ) -> Result<Response<Body>, SettleError> {
        self.leave(tx, response).await.map_err(Ended::error)
    }

    async fn leave<T: TopLevel>(
        &self,
        tx: Entered<T>,
        response: impl IntoResponse,
    ) -> Result<Response<Body>, Ended> {
        let response = response.into_response();
        let is_released = is_released(self, &response);
        if let Ok(true) = is_released {
            return match self.undo(tx).await {
                Ok(()) => Ok(response),
                Err(outside) => Err(Ended::Over(outside)),
            };
        }
        let answer = match is_released.and_then(|_| answer_of(response)) {
            Ok(answer) => answer,
            Err(error) => return Err(Ended::Over(self.undo(tx).await.err().unwrap_or(error))),
        };
        Step::Worked.reached();
        // Until it is known what became of it, nobody says anything: whoever drops this on its way leaves it so.
        self.note_committing(true);
        match leave(tx, LeaveArguments::new(self.id(), &answer)).await {
            Ok(()) => Step::Committed.reached(),
            Err(not_committed) => {
                if let Some(ended) = self.judge(not_committed).await {
                    return Err(ended);
                }
            }
        }
        // Noted as settled before it is no longer noted as committing: in between nobody may find neither.
        let response = self.confirm(answer);
        self.note_committing(false);
        Ok(response)
    }

    /// What a transaction came to that is not known to be committed; `None` where it was, all the same.
    async fn judge(&self, not_committed: NotCommitted) -> Option<Ended> {
        let (why, is_left, is_broken) = match not_committed {
            NotCommitted::Refused(error) => {
                let ended = ended(error);
                if let Ended::Over(SettleError::Outside(_)) = ended {
                    self.note_outside();
                }
                self.note_committing(false);
                return Some(ended);
            }
            NotCommitted::Unsent(why) => {
                self.note_committing(false);
                return Some(Ended::Over(silent_store(why.as_ref())));
            }
            NotCommitted::Unheard { why, is_left, is_broken } => (why, is_left, is_broken),
        };
        // It may have been committed all the same: only once it has surely ended does its record tell.
        match self.store().fate(self.id(), self.fence()).await {
            Ok(Fate::Committed) => None,
            Ok(Fate::NotCommitted) => {
                self.note_committing(false);
                let error = match is_left {
                    true => SettleError::Failed(why),
                    false => silent_store(why.as_ref()),
                };
                // Nothing of it stays, so that the whole of it may run again; but not where nobody answers in time.
                Some(if is_left || is_broken { Ended::InTheWay(error) } else { Ended::Over(error) })
            }
            Err(unreachable) => {
                Some(Ended::Over(SettleError::Unknown(format!("{why}; {unreachable}").into())))
            }
        }
    }

    /// Rolls back, unless the handler has ended the transaction by itself: what it wrote since stands.
    async fn undo<T: TopLevel>(&self, Entered { tx, .. }: Entered<T>) -> Result<(), SettleError> {
        let is_outside = is_outside(&tx).await;
        if is_outside {
            self.note_outside();
        }
        tx.rollback().await;
        match is_outside {
            true => Err(SettleError::Outside("the connection is no longer in the transaction".into())),
            false => Ok(()),
        }
    }

    fn confirm(&self, answer: Answer) -> Response<Body> {
        self.store().announce(self.id());
        confirm(self, answer)
    }

    /// Opens a transaction that holds this key, runs the handler's writes in it, leaves and commits. Where it and another
    /// transaction could not both be committed, all of it runs again; so does the closure. No connection is held while
    /// another transaction holds the key. The closure is given the connection that the transaction is on.
    ///
    /// # Errors
    /// The handler's work failed, another attempt was faster, or the database did not take it.
    pub async fn transact<W, R>(
        &self,
        pool: &deadpool_postgres::Pool,
        work: W,
    ) -> Result<Response<Body>, SettleError>
    where
        W: for<'a> Fn(&'a deadpool_postgres::Client) -> Working<'a, R> + Send + Sync,
        R: IntoResponse + Send,
    {
        let (mut retries, mut pause) = (0, PAUSE_FIRST);
        let mut new = new_key(self);
        loop {
            let is_new = new.is_some();
            let mut connection = pool.get().await?;
            let ended = self.transact_once(&mut connection, &work, new.take()).await;
            if !matches!(ended, Ok(None | Some(Ok(_)))) {
                discard_unless_sound(connection).await;
            }
            match ended? {
                // Somebody was faster, or holds it: the functions that know every case say so.
                None if is_new => {}
                None => wait_for_turn(self, &mut pause).await?,
                Some(Err(Ended::InTheWay(_))) if retries < RETRIES_MAX => retries += 1,
                Some(ended) => return ended.map_err(Ended::error),
            }
        }
    }

    /// One transaction; `None` where another holds the key, or where it is not new.
    async fn transact_once<W, R>(
        &self,
        connection: &mut deadpool_postgres::Client,
        work: &W,
        new: Option<NewKey>,
    ) -> Result<Option<Result<Response<Body>, Ended>>, SettleError>
    where
        W: for<'a> Fn(&'a deadpool_postgres::Client) -> Working<'a, R> + Send + Sync,
        R: IntoResponse + Send,
    {
        let tx = match begin(self, connection, new).await? {
            Turn::Entered(tx) => tx,
            Turn::Busy | Turn::NotNew => return Ok(None),
            Turn::Known => return Err(SettleError::Superseded),
        };
        let done = work(&tx.tx).await;
        Ok(Some(match done {
            Ok(response) => self.leave(tx, response).await,
            Err(error) => Err(match self.undo(tx).await {
                Ok(()) if is_in_the_way(&error) => Ended::InTheWay(error),
                Ok(()) => Ended::Over(error),
                Err(outside) => Ended::Over(outside),
            }),
        }))
    }
}

/// Gives a connection on which something failed back to its pool, unless nobody answers on it any more.
async fn discard_unless_sound(connection: deadpool_postgres::Client) {
    let is_sound = matches!(within(ROLLBACK_MAX, connection.simple_query("")).await, Ok(Ok(_)));
    if !is_sound {
        drop(deadpool_postgres::Object::take(connection));
    }
}

/// The key as one that nobody knows, where that may be so.
fn new_key(grant: &Grant) -> Option<NewKey> {
    let is_plain = grant.context().arrival.formers.is_empty();
    is_plain.then(|| grant.store().new_key(grant.id(), grant.fence())).flatten()
}

fn entrance(grant: &Grant, new: Option<NewKey>) -> Result<Entrance, SettleError> {
    Ok(match new {
        Some(new) => Entrance::new(new),
        None => Entrance::Any(arguments(grant)?),
    })
}

/// Begins and enters; whatever keeps it from executing rolls it back.
async fn begin<'a, C: Connection>(
    grant: &Grant,
    connection: &'a mut C,
    new: Option<NewKey>,
) -> Result<Turn<Begun<'a, C>>, SettleError> {
    let entrance = entrance(grant, new)?;
    let values = entrance.values();
    let (tx, told) = match within(ANSWER_MAX, Begun::with(connection, entrance.sql(), &values)).await {
        Ok(Ok(begun)) => begun,
        Ok(Err(error)) => return Err(not_entered(error)),
        Err(silent) => return Err(silent_store(silent.as_ref())),
    };
    drop(values);
    keep_up(grant, entrance.turn(tx, &told).await).await
}

/// Refuses a transaction that has entered too late after the gate looked which other forms the key may have.
async fn keep_up<T: TopLevel>(grant: &Grant, turn: Turn<T>) -> Result<Turn<T>, SettleError> {
    match turn {
        Turn::Entered(entered) if is_held_up(grant) => {
            entered.tx.rollback().await;
            Err(SettleError::Superseded)
        }
        turn => Ok(turn),
    }
}

/// For integrations, once a transaction has entered its key: whether it comes too late after the gate looked which other forms
/// the key may have. Others may have turned to one since that this gate does not know. Roll it back then, and return
/// [`SettleError::Superseded`].
pub fn is_held_up(grant: &grant::Grant) -> bool {
    let context = grant.context();
    context.shared.forms.is_outdated(context.arrival.as_of)
}

/// Whether the transaction of a grant that was told to commit was committed; `None` where it cannot be found out.
pub(crate) async fn is_committed(grant: &grant::Grant) -> Option<bool> {
    let store: &PostgresStore = grant.store().ok()?;
    let fate = store.fate(grant.id(), grant.fence()).await.ok()?;
    Some(fate == Fate::Committed)
}

/// For integrations: what a transaction of this grant enters with. From here on the gate takes it that such a transaction may
/// have been committed until the grant is confirmed, and finds out before it says anything else.
///
/// # Errors
/// The gate keeps its records elsewhere, or the grant no longer holds its key.
pub fn enter_arguments(grant: &grant::Grant) -> Result<EnterArguments, SettleError> {
    grant.note_committing(true);
    arguments(grant)
}

fn arguments(grant: &grant::Grant) -> Result<EnterArguments, SettleError> {
    let store: &PostgresStore = grant.store().map_err(SettleError::failed)?;
    // The names under which the key may be known beside its present one.
    let formers = grant.context().arrival.formers.iter().map(|former| Former {
        scope: former.id.as_ref().map(|id| id.scope),
        fingerprints: former.fingerprints.clone(),
        rotation: former.rotation,
    });
    let formers: Vec<Former> = formers.collect();
    store.enter_arguments(grant.id(), grant.fence(), &formers).ok_or(SettleError::Superseded)
}

/// For integrations: waits while another transaction holds the key, at most as long as the route lets a request wait. The
/// pause begins with [`PAUSE_FIRST`].
///
/// # Errors
/// The time is up, or the store cannot be reached.
pub async fn wait_for_turn(grant: &grant::Grant, pause: &mut Duration) -> Result<(), SettleError> {
    let store: &PostgresStore = grant.store().map_err(SettleError::failed)?;
    let context = grant.context();
    let until = match context.route.profile.in_flight {
        InFlight::Wait { deadline } => context.arrived + deadline,
        InFlight::Reject { .. } | InFlight::Accepted => return Err(SettleError::Superseded),
    };
    loop {
        if tokio::time::Instant::now() + *pause > until {
            return Err(SettleError::Superseded);
        }
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_LONGEST);
        if !store.is_entered(grant.id()).await.map_err(SettleError::Store)? {
            return Ok(());
        }
    }
}
