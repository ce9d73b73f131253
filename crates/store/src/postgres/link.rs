//! Runs statements, and says of each failure whether it may have been committed. A connection that failed, or whose
//! caller went away in the middle, is never used again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use semel_contract::time::Timestamp;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use super::base::error_chain;
use super::clock::{Belief, Jump, Seen, ServerClock, stored_ticks};
use super::sql;
use crate::claims::StoreError;
use crate::clock::boot_time;

/// How long after the server's own time limit a statement is given up here.
const GRACE: Duration = Duration::from_secs(2);

/// Connections that are tried for one statement before the server counts as away.
const CONNECTIONS_TRIED_MAX: u32 = 4;

/// A parameter of a statement.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// Why a statement or a transaction did not end well.
#[derive(Clone, Debug)]
pub(super) enum PgFailure {
    /// It never reached the server: nothing was written, and others would fare no better.
    NotSent(StoreError),
    /// The server refused it: nothing was written.
    Refused(StoreError),
    /// The same, because another was there first.
    Taken(StoreError),
    /// It may or may not have been committed.
    Unsure(String),
}

impl PgFailure {
    /// What a caller that writes is told.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            PgFailure::NotSent(error) | PgFailure::Refused(error) | PgFailure::Taken(error) => error,
            PgFailure::Unsure(why) => StoreError::Unknown(why),
        }
    }

    /// What a caller that only reads is told.
    pub(super) fn of_read(self) -> StoreError {
        match self {
            PgFailure::NotSent(error) | PgFailure::Refused(error) | PgFailure::Taken(error) => error,
            PgFailure::Unsure(why) => StoreError::Unavailable(why),
        }
    }
}

/// The way to the server.
pub(super) struct Link {
    pool: Pool,
    /// For renewals, notifications and the clock, so that they never queue behind requests.
    side: Pool,
    clock: ServerClock,
    call_timeout: Duration,
    transactions: AtomicU64,
}

/// Rows, with the store's time at which the statement acted.
pub(super) struct Timed {
    pub(super) rows: Vec<Row>,
    pub(super) now: Timestamp,
}

impl Link {
    pub(super) fn new(pool: Pool, side: Pool, clock: ServerClock, statement_timeout: Duration) -> Self {
        let call_timeout = statement_timeout + GRACE;
        Self { pool, side, clock, call_timeout, transactions: AtomicU64::new(0) }
    }

    /// Transactions begun so far; a statement by itself is one.
    pub(super) fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// The latest time seen.
    pub(super) fn last_seen(&self) -> Timestamp {
        self.clock.last()
    }

    /// Runs one timed statement that only reads. One that fails with its connection is run again on another.
    pub(super) async fn read(&self, sql: &str, values: &[Value<'_>]) -> Result<Timed, StoreError> {
        match self.run(sql, values).await {
            Ok(answer) => Ok(answer),
            Err(PgFailure::Refused(error) | PgFailure::Taken(error)) => Err(error),
            Err(PgFailure::NotSent(_) | PgFailure::Unsure(_)) => {
                self.run(sql, values).await.map_err(PgFailure::of_read)
            }
        }
    }

    /// Runs one timed statement in a transaction of its own.
    pub(super) async fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Timed, PgFailure> {
        self.run_on(&self.pool, sql, values).await
    }

    /// The same, past the queue of requests.
    pub(super) async fn run_aside(&self, sql: &str, values: &[Value<'_>]) -> Result<Timed, PgFailure> {
        self.run_on(&self.side, sql, values).await
    }

    /// A connection of the pool may have died since it was used: if nothing was executed, the next is taken.
    async fn run_on(&self, pool: &Pool, sql: &str, values: &[Value<'_>]) -> Result<Timed, PgFailure> {
        let mut tries = 1;
        let (rows, sent) = loop {
            match self.wire(pool).await?.run(self, sql, values).await {
                Ok(answered) => break answered,
                Err(PgFailure::NotSent(_)) if tries < CONNECTIONS_TRIED_MAX => tries += 1,
                Err(failure) => return Err(failure),
            }
        };
        // Past here the connection is free again, since a jump of the clock takes another one to write down.
        let now = self.learn(&rows, sent).await?;
        Ok(Timed { rows, now })
    }

    /// Runs one statement that does not ask for the time.
    pub(super) async fn query(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, PgFailure> {
        let wire = self.wire(&self.pool).await?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        wire.query(self, sql, values).await
    }

    /// Runs one statement that does not ask for the time, past the queue of requests.
    pub(super) async fn run_untimed(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, PgFailure> {
        let wire = self.wire(&self.side).await?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        wire.query(self, sql, values).await
    }

    /// How many connections for requests are in use, and how many there may be.
    pub(super) fn connections(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size.saturating_sub(status.available), status.max_size)
    }

    /// A connection for a transaction of several statements.
    pub(super) async fn connection(&self) -> Result<Wire, PgFailure> {
        self.wire(&self.pool).await
    }

    async fn wire(&self, pool: &Pool) -> Result<Wire, PgFailure> {
        let object = pool.get().await.map_err(|error| {
            PgFailure::NotSent(StoreError::Unavailable(format!("no connection: {}", error_chain(&error))))
        })?;
        Ok(Wire { object: Some(object), spoiled: AtomicBool::new(false) })
    }

    /// Takes in the time that a statement reports. A jump is written into the clock's row, so that every process and
    /// every handler keeps to the time as it ticked.
    async fn learn(&self, rows: &[Row], sent: Duration) -> Result<Timestamp, PgFailure> {
        let seen = rows.first().and_then(seen).ok_or_else(|| {
            PgFailure::Unsure("the server answered without the time; is the schema another one?".to_owned())
        })?;
        if let Some(jump) = self.clock.learn(seen, sent, boot_time()) {
            // If this fails, the next statement finds the jump again; until then nobody here believes it.
            let _ = self.write_down(jump).await;
        }
        Ok(Timestamp::from_millis(seen.now))
    }

    async fn write_down(&self, jump: Jump) -> Result<(), PgFailure> {
        let wire = self.wire(&self.side).await?;
        let values: [Value<'_>; 3] = [&jump.by_millis, &jump.revision, &!jump.is_contradicted];
        wire.query(self, sql::CORRECT, &values).await.map(drop)
    }

    /// Keeps what is counted here, for the next process.
    pub(super) async fn mark_time(&self, boot: u64) -> Result<(), PgFailure> {
        let ticks = boot_time();
        let Belief { ticked, .. } = self.clock.belief(ticks);
        self.run_untimed(sql::MARK, &[&boot.cast_signed(), &ticked, &stored_ticks(ticks)]).await.map(drop)
    }
}

fn seen(row: &Row) -> Option<Seen> {
    Some(Seen {
        now: row.try_get("now").ok()?,
        wall: row.try_get("wall").ok()?,
        revision: row.try_get("revision").ok()?,
    })
}

/// A connection in use. It goes back to its pool only if every statement on it ended.
pub(super) struct Wire {
    object: Option<Object>,
    spoiled: AtomicBool,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(object) = self.object.take().filter(|_| *self.spoiled.get_mut()) {
            drop(Object::take(object));
        }
    }
}

impl Wire {
    /// The rows, and the ticks at which they were asked for.
    async fn run(
        &self,
        link: &Link,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<(Vec<Row>, Duration), PgFailure> {
        link.transactions.fetch_add(1, Ordering::Relaxed);
        let sent = boot_time();
        let belief = link.clock.belief(sent);
        let mut all: Vec<Value<'_>> = vec![&belief.ticked, &belief.last, &belief.within];
        all.extend(values);
        Ok((self.query(link, sql, &all).await?, sent))
    }

    async fn query(&self, link: &Link, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, PgFailure> {
        let client = self.object.as_ref().expect("a wire has its connection until it is dropped");
        // Until the answer is complete the connection is not fit for anybody else.
        self.spoiled.store(true, Ordering::Relaxed);
        let prepare = tokio::time::timeout(link.call_timeout, client.prepare_cached(sql));
        let statement = match prepare.await {
            Ok(Ok(statement)) => statement,
            // Preparing executes nothing.
            Ok(Err(error)) => return Err(self.not_executed(&error)),
            Err(_) => return Err(silent()),
        };
        let query = tokio::time::timeout(link.call_timeout, client.query(&statement, values));
        match query.await {
            Ok(Ok(rows)) => {
                self.spoiled.store(false, Ordering::Relaxed);
                Ok(rows)
            }
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => Err(PgFailure::Unsure("the server does not answer".to_owned())),
        }
    }

    /// Begins a transaction.
    pub(super) async fn begin<'a>(&'a mut self, link: &'a Link) -> Result<Tx<'a>, PgFailure> {
        let Wire { object, spoiled } = self;
        let client = object.as_mut().expect("a wire has its connection until it is dropped");
        *spoiled.get_mut() = true;
        link.transactions.fetch_add(1, Ordering::Relaxed);
        let begin = tokio::time::timeout(link.call_timeout, client.transaction());
        match begin.await {
            Ok(Ok(transaction)) => Ok(Tx { transaction, spoiled, link }),
            Ok(Err(error)) => Err(PgFailure::NotSent(StoreError::Unavailable(error_chain(&error)))),
            Err(_) => Err(silent()),
        }
    }

    fn failure(&self, error: &tokio_postgres::Error) -> PgFailure {
        self.spoiled.store(spoils(error), Ordering::Relaxed);
        match error.code() {
            _ if !was_refused(error) => PgFailure::Unsure(error_chain(error)),
            Some(code) if *code == SqlState::UNIQUE_VIOLATION => PgFailure::Taken(refusal(error)),
            Some(_) | None => PgFailure::Refused(refusal(error)),
        }
    }

    fn not_executed(&self, error: &tokio_postgres::Error) -> PgFailure {
        self.spoiled.store(spoils(error), Ordering::Relaxed);
        if was_refused(error) {
            PgFailure::Refused(refusal(error))
        } else {
            PgFailure::NotSent(refusal(error))
        }
    }
}

/// A transaction of several statements. Dropped without commit, it is rolled back.
pub(super) struct Tx<'a> {
    transaction: deadpool_postgres::Transaction<'a>,
    spoiled: &'a AtomicBool,
    link: &'a Link,
}

impl Tx<'_> {
    /// Runs a timed statement. Its failure is never unsure: without a commit nothing is written.
    pub(super) async fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Timed, PgFailure> {
        let sent = boot_time();
        let belief = self.link.clock.belief(sent);
        let mut all: Vec<Value<'_>> = vec![&belief.ticked, &belief.last, &belief.within];
        all.extend(values);
        let rows = self.query(sql, &all).await?;
        let now = self.link.learn(&rows, sent).await?;
        Ok(Timed { rows, now })
    }

    /// Runs a statement that does not ask for the time.
    pub(super) async fn query(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, PgFailure> {
        let transaction: &Transaction<'_> = &self.transaction;
        let call = async {
            let statement = self.transaction.prepare_cached(sql).await?;
            transaction.query(&statement, values).await
        };
        match tokio::time::timeout(self.link.call_timeout, call).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(PgFailure::Refused(refusal(&error))),
            Err(_) => Err(silent()),
        }
    }

    /// Commits.
    pub(super) async fn commit(self) -> Result<(), PgFailure> {
        let Tx { transaction, spoiled, link } = self;
        match tokio::time::timeout(link.call_timeout, transaction.commit()).await {
            Ok(Ok(())) => {
                spoiled.store(false, Ordering::Relaxed);
                Ok(())
            }
            Ok(Err(error)) if was_refused(&error) => Err(PgFailure::Refused(refusal(&error))),
            Ok(Err(error)) => Err(PgFailure::Unsure(error_chain(&error))),
            Err(_) => Err(PgFailure::Unsure("the server does not answer a commit".to_owned())),
        }
    }

    /// Rolls back, so that the connection is fit for the next at once.
    pub(super) async fn roll_back(self) {
        let Tx { transaction, spoiled, link } = self;
        let rolled_back = tokio::time::timeout(link.call_timeout, transaction.rollback()).await;
        spoiled.store(!matches!(rolled_back, Ok(Ok(()))), Ordering::Relaxed);
    }
}

/// Nothing was executed, since nothing was asked to be.
fn silent() -> PgFailure {
    PgFailure::NotSent(StoreError::Unavailable("the server is silent".to_owned()))
}

/// Whether the server itself says that the statement had no effect. An error does; the last words of a session that is
/// being ended do not: they may come after its commit.
fn was_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

/// Whether the connection is of no use after this error: it is gone, it leads to a server that does not accept writes, or
/// its prepared statements no longer fit the schema.
fn spoils(error: &tokio_postgres::Error) -> bool {
    let stale = [
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::INVALID_SQL_STATEMENT_NAME,
    ];
    !was_refused(error) || error.code().is_some_and(|code| stale.contains(code))
}

fn refusal(error: &tokio_postgres::Error) -> StoreError {
    match error.code() {
        Some(code) if *code == SqlState::DISK_FULL => StoreError::Full(error_chain(error)),
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
            StoreError::Unavailable("another transaction is writing this key, and does not end".to_owned())
        }
        Some(_) | None => StoreError::Unavailable(error_chain(error)),
    }
}
