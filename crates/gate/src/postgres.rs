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

use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::IntoResponse;
use http::Response;
use http::request::Parts;
use semel_contract::profile::InFlight;
pub use semel_store::postgres::once::PAUSE_FIRST;
use semel_store::postgres::once::{
    ENTER, ENTER_NEW, EnterArguments, Entry, Former, LEAVE, LEAVE_NEW, LeaveArguments, NewKey, PAUSE_LONGEST,
    print,
};
use semel_store::postgres::{Fate, PostgresStore};
use semel_store::{Answer, StoreError};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Transaction};

use crate::grant::{self, NotGranted, SettleError};
use crate::settling::{answer_of, confirm, is_released};
use crate::step::Step;

/// How often a closure runs again because its transaction and another's could not both be.
const RETRIES_MAX: u32 = 5;

/// A value of a statement, with its type.
type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

/// A top-level transaction: tokio-postgres' own or deadpool's. A savepoint inside another transaction is not one: what
/// the outer transaction does later would not be covered.
pub trait TopLevel: Send + Sync {
    /// Runs one of semel's statements, prepared where the connection remembers what it has prepared.
    fn run(
        &self,
        sql: &'static str,
        values: &[Typed<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Commits it.
    fn commit(self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Rolls it back.
    fn rollback(self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl TopLevel for Transaction<'_> {
    async fn run(&self, sql: &'static str, values: &[Typed<'_>]) -> Result<Vec<Row>, Error> {
        // With the types given, one exchange with the server is enough.
        self.query_typed(sql, values).await
    }

    async fn commit(self) -> Result<(), Error> {
        Transaction::commit(self).await
    }

    async fn rollback(self) -> Result<(), Error> {
        Transaction::rollback(self).await
    }
}

impl TopLevel for deadpool_postgres::Transaction<'_> {
    async fn run(&self, sql: &'static str, values: &[Typed<'_>]) -> Result<Vec<Row>, Error> {
        let statement = self.prepare_cached(sql).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
        self.query(&statement, &values).await
    }

    async fn commit(self) -> Result<(), Error> {
        deadpool_postgres::Transaction::commit(self).await
    }

    async fn rollback(self) -> Result<(), Error> {
        deadpool_postgres::Transaction::rollback(self).await
    }
}

/// A connection on which a transaction can be begun.
pub trait Connection: Send {
    /// Its transactions.
    type Transaction<'a>: TopLevel
    where
        Self: 'a;

    /// Begins one.
    fn begin(&mut self) -> impl Future<Output = Result<Self::Transaction<'_>, Error>> + Send;
}

impl Connection for Client {
    type Transaction<'a> = Transaction<'a>;

    async fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        self.transaction().await
    }
}

impl Connection for deadpool_postgres::Client {
    type Transaction<'a> = deadpool_postgres::Transaction<'a>;

    async fn begin(&mut self) -> Result<deadpool_postgres::Transaction<'_>, Error> {
        self.transaction().await
    }
}

/// A transaction that has entered its key, and holds it until it ends.
#[derive(Debug)]
pub struct Entered<T> {
    tx: T,
    /// The key, where nobody knew it: it is left as it was entered.
    new: Option<NewKey>,
}

impl<T> Deref for Entered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.tx
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

/// How a transaction did not end well.
enum Ended {
    /// It was rolled back, and so may be begun again: another transaction stood in its way.
    InTheWay(SettleError),
    /// It is over.
    Over(SettleError),
}

impl Ended {
    fn error(self) -> SettleError {
        match self {
            Ended::InTheWay(error) | Ended::Over(error) => error,
        }
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
    ) -> Result<Entered<C::Transaction<'a>>, SettleError> {
        let mut pause = PAUSE_FIRST;
        if self.store().is_entered(self.id()).await.map_err(SettleError::Store)? {
            wait_for_turn(self, &mut pause).await?;
        }
        let tx = connection.begin().await.map_err(away)?;
        self.enter(tx).await
    }

    /// Enters the key in a transaction that the handler began, of whatever isolation level, and in which it has written
    /// nothing yet. Waits for nobody.
    ///
    /// # Errors
    /// Another attempt is faster, or the database could not be reached. It is rolled back; return the error.
    pub async fn enter<T: TopLevel>(&self, tx: T) -> Result<Entered<T>, SettleError> {
        match enter(self, tx, new_key(self)).await? {
            Turn::Entered(tx) => Ok(tx),
            Turn::Busy | Turn::NotNew => Err(SettleError::Superseded),
        }
    }

    /// Leaves the key in a transaction that [`Grant::begin`] began, and commits it.
    ///
    /// After `Ok`: effect, record and answer are durable, and the response is the recorded one; or the answer is one that
    /// frees the key, and everything was rolled back. After `Err`: the transaction was rolled back, but for
    /// [`SettleError::Unknown`].
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
        Entered { tx, new }: Entered<T>,
        response: impl IntoResponse,
    ) -> Result<Response<Body>, Ended> {
        let response = response.into_response();
        match is_released(self, &response) {
            Ok(false) => {}
            Ok(true) => {
                let _ = tx.rollback().await;
                return Ok(response);
            }
            Err(error) => {
                let _ = tx.rollback().await;
                return Err(Ended::Over(error));
            }
        }
        let answer = match answer_of(response) {
            Ok(answer) => answer,
            Err(error) => {
                let _ = tx.rollback().await;
                return Err(Ended::Over(error));
            }
        };
        Step::Worked.taken();
        if let Err(error) = write_answer(&tx, new.as_ref(), LeaveArguments::new(self.id(), &answer)).await {
            // A transaction that is dropped is rolled back as well; saying so only makes it sooner.
            let _ = tx.rollback().await;
            return Err(ended(error));
        }
        Step::Left.taken();
        match tx.commit().await {
            Ok(()) => Step::Committed.taken(),
            Err(error) if was_refused(&error) => return Err(ended(error)),
            // The commit may have happened all the same: only once the transaction has surely ended does its record tell.
            Err(error) => match self.store().fate(self.id(), self.fence()).await {
                Ok(Fate::Committed) => {}
                Ok(Fate::NotCommitted) => return Err(Ended::InTheWay(error.into())),
                Err(unreachable) => {
                    let why = format!("{error}; {unreachable}");
                    return Err(Ended::Over(SettleError::Unknown(why.into())));
                }
            },
        }
        Ok(self.confirm(answer))
    }

    fn confirm(&self, answer: Answer) -> Response<Body> {
        self.store().announce(self.id());
        confirm(self, answer)
    }

    /// Opens a transaction that holds this key, runs the handler's writes in it, leaves and commits. Where it and another
    /// transaction could not both be committed, all of it runs again; so does the closure. No connection is held while
    /// another transaction holds the key.
    ///
    /// # Errors
    /// The handler's work failed, another attempt was faster, or the database did not take it.
    pub async fn transact<W, R>(
        &self,
        pool: &deadpool_postgres::Pool,
        work: W,
    ) -> Result<Response<Body>, SettleError>
    where
        W: for<'a> Fn(&'a deadpool_postgres::Transaction<'a>) -> Working<'a, R> + Send + Sync,
        R: IntoResponse + Send,
    {
        let (mut retries, mut pause) = (0, PAUSE_FIRST);
        let mut new = new_key(self);
        loop {
            let is_new = new.is_some();
            match self.transact_once(pool, &work, new.take()).await? {
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
        pool: &deadpool_postgres::Pool,
        work: &W,
        new: Option<NewKey>,
    ) -> Result<Option<Result<Response<Body>, Ended>>, SettleError>
    where
        W: for<'a> Fn(&'a deadpool_postgres::Transaction<'a>) -> Working<'a, R> + Send + Sync,
        R: IntoResponse + Send,
    {
        let mut connection = pool.get().await?;
        let tx = connection.begin().await.map_err(away)?;
        let tx = match enter(self, tx, new).await? {
            Turn::Entered(tx) => tx,
            Turn::Busy | Turn::NotNew => return Ok(None),
        };
        let done = work(&tx.tx).await;
        Ok(Some(match done {
            Ok(response) => self.leave(tx, response).await,
            Err(error) => {
                let _ = tx.tx.rollback().await;
                Err(match is_in_the_way(&error) {
                    true => Ended::InTheWay(error),
                    false => Ended::Over(error),
                })
            }
        }))
    }
}

/// Whether a transaction holds its key now.
enum Turn<T> {
    Entered(Entered<T>),
    Busy,
    NotNew,
}

/// The key as one that nobody knows, where that may be so.
fn new_key(grant: &Grant) -> Option<NewKey> {
    let is_plain = grant.context().arrival.formers.is_empty();
    is_plain.then(|| grant.store().new_key(grant.id(), grant.fence())).flatten()
}

/// Enters; whatever keeps it from executing rolls it back.
async fn enter<T: TopLevel>(grant: &Grant, tx: T, new: Option<NewKey>) -> Result<Turn<T>, SettleError> {
    let turn = match new {
        Some(new) => enter_new(tx, new).await,
        None => enter_known(grant, tx).await,
    }?;
    match turn {
        Turn::Entered(Entered { tx, .. }) if is_held_up(grant) => {
            let _ = tx.rollback().await;
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

/// Enters a key that nobody knew a moment ago.
async fn enter_new<T: TopLevel>(tx: T, new: NewKey) -> Result<Turn<T>, SettleError> {
    let rotation = new.wish.rotation.map(Vec::from);
    let values: [Typed<'_>; 3] = [(&new.id, Type::BYTEA), (&rotation, Type::BYTEA), (&new.hold, Type::TEXT)];
    match tx.run(ENTER_NEW, &values).await {
        Ok(rows) if rows.first().is_some_and(|row| row.get(0)) => {
            Step::Entered.taken();
            Ok(Turn::Entered(Entered { tx, new: Some(new) }))
        }
        Ok(_) => {
            let _ = tx.rollback().await;
            Ok(Turn::NotNew)
        }
        Err(error) => {
            let _ = tx.rollback().await;
            Err(not_entered(error))
        }
    }
}

/// Writes the answer's record into the transaction, by the function that belongs to how it entered.
async fn write_answer<T: TopLevel>(
    tx: &T,
    new: Option<&NewKey>,
    answer: LeaveArguments,
) -> Result<(), Error> {
    let LeaveArguments { id, status, headers, body } = answer;
    let Some(new) = new else {
        let values: [Typed<'_>; 4] =
            [(&id, Type::BYTEA), (&status, Type::INT4), (&headers, Type::BYTEA), (&body, Type::BYTEA)];
        return tx.run(LEAVE, &values).await.map(drop);
    };
    let (wish, about) = (&new.wish, &new.wish.about);
    let (scope, key) = (wish.id.scope.as_bytes().as_slice(), wish.id.key.as_str());
    let fingerprint = wish.fingerprint.as_ref().map(print);
    let generated_at = about.client_generated_at.map(|at| at.millis());
    let payload_hash = wish.payload_hash.as_ref().map(<[u8; 32]>::as_slice);
    let rotation = wish.rotation.as_ref().map(<[u8; 16]>::as_slice);
    let nonce = wish.nonce.cast_signed();
    let values: [Typed<'_>; 19] = [
        (&id, Type::BYTEA),
        (&scope, Type::BYTEA),
        (&key, Type::TEXT),
        (&fingerprint, Type::BYTEA),
        (&about.endpoint, Type::TEXT),
        (&about.tenant, Type::TEXT),
        (&about.principal, Type::TEXT),
        (&about.request_id, Type::TEXT),
        (&generated_at, Type::INT8),
        (&payload_hash, Type::BYTEA),
        (&new.request_headers, Type::BYTEA),
        (&rotation, Type::BYTEA),
        (&nonce, Type::INT8),
        (&new.lifetime, Type::INT8),
        (&new.is_from_creation, Type::BOOL),
        (&new.max_response_bytes, Type::INT4),
        (&status, Type::INT4),
        (&headers, Type::BYTEA),
        (&body, Type::BYTEA),
    ];
    tx.run(LEAVE_NEW, &values).await.map(drop)
}

/// Enters by the function that knows every case; whatever keeps it from executing rolls it back.
async fn enter_known<T: TopLevel>(grant: &Grant, tx: T) -> Result<Turn<T>, SettleError> {
    let arguments = match enter_arguments(grant) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = tx.rollback().await;
            return Err(error);
        }
    };
    let EnterArguments { id, scope, key, fingerprints, about, options } = arguments;
    let values: [Typed<'_>; 6] = [
        (&id, Type::BYTEA),
        (&scope, Type::BYTEA),
        (&key, Type::TEXT),
        (&fingerprints, Type::BYTEA_ARRAY),
        (&about, Type::TEXT),
        (&options, Type::TEXT),
    ];
    let verdict = match tx.run(ENTER, &values).await {
        Ok(rows) => rows.first().map(|row| Entry::read(row.get(0))),
        Err(error) => {
            let _ = tx.rollback().await;
            return Err(not_entered(error));
        }
    };
    match verdict {
        Some(Entry::Execute) => {
            Step::Entered.taken();
            Ok(Turn::Entered(Entered { tx, new: None }))
        }
        Some(Entry::InFlight) => {
            let _ = tx.rollback().await;
            Ok(Turn::Busy)
        }
        Some(Entry::Known) | None => {
            let _ = tx.rollback().await;
            Err(SettleError::Superseded)
        }
    }
}

/// Nothing was begun, or nothing of it stays.
fn away(error: Error) -> SettleError {
    SettleError::Store(StoreError::Unavailable(error_chain(&error)))
}

fn error_chain(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// For integrations: what a transaction of this grant enters with.
///
/// # Errors
/// The gate keeps its records elsewhere, or the grant no longer holds its key.
pub fn enter_arguments(grant: &grant::Grant) -> Result<EnterArguments, SettleError> {
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

/// What the functions themselves refuse is the program's fault, and no outage: to try it again would be in vain.
fn not_entered(error: Error) -> SettleError {
    match error.code().is_some_and(|code| code.code().starts_with("SM0")) {
        true => error.into(),
        false => away(error),
    }
}

/// Whether the server itself says that nothing was committed.
fn was_refused(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

fn stands_in_the_way(error: &Error) -> bool {
    let ways = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| ways.contains(code))
}

/// What a transaction came to that the server refused.
fn ended(error: Error) -> Ended {
    if stands_in_the_way(&error) {
        return Ended::InTheWay(SettleError::Superseded);
    }
    // A constraint that is checked late is the handler's own business.
    let is_constraint = error.code().is_some_and(|code| code.code().starts_with("23"));
    Ended::Over(match was_refused(&error) {
        true if is_constraint => error.into(),
        true => SettleError::Refused(error.into()),
        // The session is gone, and COMMIT was not said.
        false => away(error),
    })
}

/// Whether the handler's own statement failed because of another transaction.
fn is_in_the_way(error: &SettleError) -> bool {
    match error {
        SettleError::Failed(why) => why.downcast_ref::<Error>().is_some_and(stands_in_the_way),
        SettleError::Superseded
        | SettleError::Refused(_)
        | SettleError::Store(_)
        | SettleError::Unknown(_) => false,
    }
}
