//! Transactions on PostgreSQL as a grant uses them: begun and entered in one exchange with the server, left and committed in
//! another; and what is known of one that did not end well. Nothing here knows what a grant is.

use std::ops::Deref;
use std::time::Duration;

use axum_core::BoxError;
use futures_util::FutureExt;
use futures_util::future::join;
use semel_store::postgres::once::IS_ENTERED;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement, Transaction};

use crate::step::Step;

/// How long the server may take to answer one of semel's own statements. None of them waits for another transaction for
/// long: whoever does not answer by then is out of reach.
pub const ANSWER_MAX: Duration = Duration::from_secs(25);
/// The same for what only tidies up.
pub(super) const ROLLBACK_MAX: Duration = Duration::from_secs(2);

/// A value of a statement, with its type.
pub type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

/// Why a transaction was not committed, or is not known to be.
#[derive(Debug)]
pub enum NotCommitted {
    /// It was not, and will not be: this is what the database said.
    Refused(Error),
    /// It was not, and will not be: COMMIT was never sent.
    Unsent(BoxError),
    /// COMMIT may have been sent, and nothing was heard of it.
    Unheard {
        /// What was heard instead.
        why: BoxError,
        /// The key was left, and COMMIT alone is in doubt.
        is_left: bool,
        /// The connection broke, where otherwise nothing came in time.
        is_broken: bool,
    },
}

/// A top-level transaction: one that was begun here, tokio-postgres' own or deadpool's. A savepoint inside another
/// transaction is not one: what the outer transaction does later would not be covered.
pub trait TopLevel: Send + Sync + Sized {
    /// Runs one of semel's statements, prepared where the connection remembers what it has prepared.
    fn run(
        &self,
        sql: &'static str,
        values: &[Typed<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Runs the statement that leaves the key, and commits.
    fn leave(
        self,
        sql: &'static str,
        values: &[Typed<'_>],
    ) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// Rolls it back.
    fn rollback(self) -> impl Future<Output = ()> + Send;
}

/// A connection on which a transaction can be begun.
pub trait Connection: Send + Sync {
    /// The connection itself.
    fn client(&self) -> &Client;

    /// One of semel's statements, where the connection remembers what it has prepared.
    fn prepare(&self, sql: &'static str) -> impl Future<Output = Result<Option<Statement>, Error>> + Send;
}

impl Connection for Client {
    fn client(&self) -> &Client {
        self
    }

    /// Unnamed statements: a pooler may stand between.
    async fn prepare(&self, _: &'static str) -> Result<Option<Statement>, Error> {
        Ok(None)
    }
}

impl Connection for deadpool_postgres::Client {
    fn client(&self) -> &Client {
        self
    }

    async fn prepare(&self, sql: &'static str) -> Result<Option<Statement>, Error> {
        self.prepare_cached(sql).await.map(Some)
    }
}

/// Runs a statement in one exchange.
async fn run(
    client: &Client,
    prepared: Option<&Statement>,
    sql: &str,
    values: &[Typed<'_>],
) -> Result<Vec<Row>, Error> {
    let Some(statement) = prepared else { return client.query_typed(sql, values).await };
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
    client.query(statement, &values).await
}

/// Waits for an answer no longer than this.
pub(super) async fn within<T>(longest: Duration, answer: impl Future<Output = T>) -> Result<T, BoxError> {
    tokio::time::timeout(longest, answer).await.map_err(|_| "the server does not answer".into())
}

/// Whether a connection is no longer in the transaction that entered its key: the handler has ended it by itself. One in which a
/// statement failed answers nothing more, and is taken for that transaction; so is a connection that broke.
pub(super) async fn is_outside(tx: &impl TopLevel) -> bool {
    match within(ROLLBACK_MAX, tx.run(IS_ENTERED, &[])).await {
        Ok(Ok(rows)) => rows.first().is_some_and(|row| !row.get::<_, bool>(0)),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Whether the server itself says that nothing was committed. The last words of a session that is being ended do not: they
/// may come after its commit.
pub(super) fn was_refused(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

/// A transaction that was begun here. It is used as the connection that it is on; dropped, it is rolled back.
#[derive(Debug)]
pub struct Begun<'a, C: Connection> {
    connection: &'a mut C,
    is_over: bool,
}

impl<C: Connection> Deref for Begun<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection
    }
}

impl<C: Connection> Drop for Begun<'_, C> {
    fn drop(&mut self) {
        if !self.is_over {
            // What is sent is sent when it is first polled; whatever follows on this connection comes after it.
            let _ = self.connection.client().batch_execute("ROLLBACK").now_or_never();
        }
    }
}

impl<'a, C: Connection> Begun<'a, C> {
    /// Begins, and runs the first statement, in one exchange. Where the transaction could not be begun, that statement is
    /// refused at its own end: it is not for autocommit.
    pub(super) async fn with(
        connection: &'a mut C,
        sql: &'static str,
        values: &[Typed<'_>],
    ) -> Result<(Self, Vec<Row>), Error> {
        let prepared = connection.prepare(sql).await?;
        let tx = Self { connection, is_over: false };
        let client = tx.connection.client();
        let begin = client.batch_execute("BEGIN");
        let (begun, rows) = join(begin, run(client, prepared.as_ref(), sql, values)).await;
        match (begun, rows) {
            (Ok(()), Ok(rows)) => Ok((tx, rows)),
            (Err(error), _) | (Ok(()), Err(error)) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

impl<C: Connection> TopLevel for Begun<'_, C> {
    async fn run(&self, sql: &'static str, values: &[Typed<'_>]) -> Result<Vec<Row>, Error> {
        let prepared = self.connection.prepare(sql).await?;
        run(self.connection.client(), prepared.as_ref(), sql, values).await
    }

    /// In one exchange: COMMIT of a transaction in which leaving failed is a rollback.
    async fn leave(mut self, sql: &'static str, values: &[Typed<'_>]) -> Result<(), NotCommitted> {
        let prepared = match within(ANSWER_MAX, self.connection.prepare(sql)).await {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(error)) => {
                self.rollback().await;
                return Err(NotCommitted::Refused(error));
            }
            Err(silent) => return Err(NotCommitted::Unsent(silent)),
        };
        let client = self.connection.client();
        let leave = async {
            let left = run(client, prepared.as_ref(), sql, values).await;
            if left.is_ok() {
                Step::Left.reached();
            }
            left
        };
        let ended = within(ANSWER_MAX, join(leave, client.batch_execute("COMMIT"))).await;
        self.is_over = true;
        let (is_left, error) = match ended {
            Ok((Ok(_), Ok(()))) => return Ok(()),
            Ok((Err(error), _)) => (false, error),
            Ok((Ok(_), Err(error))) => (true, error),
            Err(why) => return Err(NotCommitted::Unheard { why, is_left: false, is_broken: false }),
        };
        Err(match was_refused(&error) {
            true => NotCommitted::Refused(error),
            false => NotCommitted::Unheard { why: error.into(), is_left, is_broken: true },
        })
    }

    async fn rollback(mut self) {
        self.is_over = true;
        let _ = within(ROLLBACK_MAX, self.connection.client().batch_execute("ROLLBACK")).await;
    }
}

/// Leaves and commits in two exchanges.
macro_rules! top_level {
    ($transaction:ty, |$tx:ident, $sql:ident, $values:ident| $run:expr) => {
        impl TopLevel for $transaction {
            async fn run(&self, $sql: &'static str, $values: &[Typed<'_>]) -> Result<Vec<Row>, Error> {
                let $tx = self;
                $run
            }

            async fn leave(self, sql: &'static str, values: &[Typed<'_>]) -> Result<(), NotCommitted> {
                match within(ANSWER_MAX, TopLevel::run(&self, sql, values)).await {
                    Ok(Ok(_)) => Step::Left.reached(),
                    Ok(Err(error)) => {
                        TopLevel::rollback(self).await;
                        return Err(NotCommitted::Refused(error));
                    }
                    Err(silent) => return Err(NotCommitted::Unsent(silent)),
                }
                match within(ANSWER_MAX, self.commit()).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) if was_refused(&error) => Err(NotCommitted::Refused(error)),
                    Ok(Err(error)) => {
                        Err(NotCommitted::Unheard { why: error.into(), is_left: true, is_broken: true })
                    }
                    Err(why) => Err(NotCommitted::Unheard { why, is_left: true, is_broken: false }),
                }
            }

            async fn rollback(self) {
                let _ = within(ROLLBACK_MAX, <$transaction>::rollback(self)).await;
            }
        }
    };
}

// With the types given, one exchange with the server is enough.
top_level!(Transaction<'_>, |tx, sql, values| tx.query_typed(sql, values).await);
top_level!(deadpool_postgres::Transaction<'_>, |tx, sql, values| {
    let statement = tx.prepare_cached(sql).await?;
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
    tx.query(&statement, &values).await
});
