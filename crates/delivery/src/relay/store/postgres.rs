//! The database of the relay, or of the broker, on PostgreSQL: several replicas on one schema. Connections are pinned to what the
//! promise needs, whatever the server or the role prefer.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures_util::future::{MaybeDone, maybe_done};
use semel_store::postgres::base::{self, FirstConnection, Migration, Schema, Session, error_chain};
use semel_store::postgres::time::{Answer, MARK_EVERY, Question, ServerTime};
use semel_store::postgres::{Migrations, channel};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};
use tokio_postgres::{NoTls, Socket, Statement};

use super::sql::{Asked, Database, Heard, Listening, NOW, Row, StoreError, Transaction, Value};

/// The schema `semel_relay`. Its lock is "relay" in ASCII. A migration with a new table ends by granting rights again, since
/// those speak of all tables.
const SCHEMA: Schema = Schema { name: "semel_relay", lock: 0x72_65_6c_61_79, migrations: MIGRATIONS };
const MIGRATIONS: &[Migration] = &[
    migration(1, "relay", include_str!("../migrations/postgres_0001_relay.sql"), 1),
    migration(2, "state", include_str!("../migrations/postgres_0002_state.sql"), 2),
    migration(3, "done", include_str!("../migrations/postgres_0003_done.sql"), 3),
    migration(4, "rights", include_str!("../migrations/postgres_roles.sql"), 3),
    migration(5, "given", include_str!("../migrations/postgres_0005_given.sql"), 3),
    migration(6, "clock", include_str!("../migrations/postgres_0006_clock.sql"), 3),
    migration(7, "reason", include_str!("../migrations/postgres_0007_reason.sql"), 3),
];

const fn migration(number: i32, name: &'static str, sql: &'static str, works_for: i32) -> Migration {
    Migration { number, name, sql, works_for }
}

/// How long the clock is left alone after it was written down, also where that failed.
const KEEP_PAUSE: Duration = Duration::from_millis(100);
/// The name of a relay among the server's sessions.
const APPLICATION_NAME: &str = "semel relay";

/// Statistics count the rows that are alive, and there are few: a bitmap of all versions of a lane would look cheap, and
/// read every one that another transaction keeps. With these settings an index is read in its order.
const SESSION: Session = Session {
    statement_timeout: Duration::from_secs(10),
    lock_timeout: Duration::from_secs(5),
    search_path: "semel_relay, pg_catalog",
    plans_off: &["enable_bitmapscan"],
};

/// What a part keeps in PostgreSQL, and how its connections are pinned.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Its schema.
    pub schema: Schema,
    /// Its connections.
    pub session: Session,
    /// Its name among the server's sessions.
    pub application_name: &'static str,
}

const RELAY: Tables = Tables { schema: SCHEMA, session: SESSION, application_name: APPLICATION_NAME };

/// Opens a channel of a server.
type Listen = Arc<dyn Fn(&'static str, Heard) -> Listening<'static> + Send + Sync>;

/// A database of a server.
pub struct Postgres {
    pool: Pool,
    listen: Listen,
    time: Arc<Guarded>,
    keeping: AbortHandle,
}

/// The server's clock, as it is believed, and the word that a jump of it is to be written down.
struct Guarded {
    time: ServerTime,
    found: Notify,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Postgres {
    /// Connects, and brings the schema up to date where it may.
    ///
    /// # Errors
    /// The server cannot be reached, may forget what it confirmed, or has a schema that this release does not know.
    pub async fn connect(url: &str, connections: usize) -> Result<Self, StoreError> {
        Self::connect_tls(url, connections, Migrations::Apply, NoTls).await
    }

    /// The same, over TLS or not, and with or without the right to change the schema.
    ///
    /// # Errors
    /// As above; and the schema is older than this release's, where it may not be changed.
    pub async fn connect_tls<T>(
        url: &str,
        connections: usize,
        migrations: Migrations,
        tls: T,
    ) -> Result<Self, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Self::connect_tables(url, connections, migrations, tls, &RELAY).await
    }

    /// The same with the tables of another part.
    ///
    /// # Errors
    /// As above.
    pub async fn connect_tables<T>(
        url: &str,
        connections: usize,
        migrations: Migrations,
        tls: T,
        tables: &Tables,
    ) -> Result<Self, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let config = base::config(url, tables.application_name).map_err(failed)?;
        let mut first = FirstConnection::open(&config, tls.clone()).await.map_err(failed)?;
        first.prepare(&tables.session, &tables.schema, migrations).await.map_err(failed)?;
        let time = ServerTime::begin(first.client(), tables.schema.name).await.map_err(failed)?;
        let pool = base::pool(config.clone(), tls.clone(), connections, &tables.session).map_err(failed)?;
        let listen: Listen = Arc::new(move |channel, heard| {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move { channel::listen(&config, tls, channel, move |text| heard(text)).await })
        });
        let time = Arc::new(Guarded { time, found: Notify::new() });
        let keeping = keep_time(pool.clone(), Arc::clone(&time), tables.application_name);
        Ok(Self { pool, listen, time, keeping: tokio::spawn(keeping).abort_handle() })
    }

    /// The newest migration that is applied, and the numbers of those that are missing. Changes nothing.
    ///
    /// # Errors
    /// The server cannot be reached, or the schema is one that this release does not know.
    pub async fn migration_plan<T>(url: &str, tls: T) -> Result<(i32, Vec<i32>), StoreError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        Self::migration_plan_of(url, tls, &RELAY).await
    }

    /// The same of another part's tables.
    ///
    /// # Errors
    /// As above.
    pub async fn migration_plan_of<T>(
        url: &str,
        tls: T,
        tables: &Tables,
    ) -> Result<(i32, Vec<i32>), StoreError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let config = base::config(url, tables.application_name).map_err(failed)?;
        let first = FirstConnection::open(&config, tls).await.map_err(failed)?;
        let plan = base::plan(&tables.schema, first.client()).await.map_err(failed)?;
        Ok((plan.found, plan.missing.iter().map(|step| step.number).collect()))
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(failed)
    }
}

/// Writes the time down now and then, and a jump of the clock at once, so that it is noticed though nobody asks for anything.
async fn keep_time(pool: Pool, guarded: Arc<Guarded>, part: &'static str) {
    let mut was_ahead = 0;
    loop {
        let ahead = guarded.time.ahead();
        if ahead != 0 && was_ahead == 0 {
            tracing::warn!(
                ahead,
                "the server's clock is ahead by so many milliseconds and nothing explains it: nothing expires until it is set \
                 back, or somebody confirms it: {part} clock"
            );
        }
        was_ahead = ahead;
        let _ = tokio::time::timeout(MARK_EVERY, guarded.found.notified()).await;
        // Whatever fails here is tried again, and meanwhile every statement keeps time by itself.
        if let Ok(client) = pool.get().await
            && ask_time(&client, &guarded).await.is_ok()
        {
            let _ = guarded.time.keep(&client).await;
        }
        tokio::time::sleep(KEEP_PAUSE).await;
    }
}

/// The store's time.
async fn ask_time(client: &Object, guarded: &Guarded) -> Result<i64, StoreError> {
    let asked = guarded.time.ask();
    let statement = client.prepare_cached(guarded.time.sql()).await.map_err(failed)?;
    let rows = query(client, &statement, &args_of(asked)).await?;
    time_of(guarded, asked, &rows)
}

fn args_of(asked: Question) -> Vec<Value> {
    asked.args.map(Value::Int).to_vec()
}

/// What a server said of the time.
fn time_of(guarded: &Guarded, asked: Question, rows: &[Row]) -> Result<i64, StoreError> {
    let row = rows.first().ok_or_else(|| StoreError::Failed("no time".to_owned()))?;
    let (now, wall, revision, jump) = (row.int(0)?, row.int(1)?, row.int(2)?, row.maybe_int(3)?);
    let now = guarded.time.learn(asked, Answer { now, wall, revision, jump });
    if guarded.time.has_found() {
        guarded.found.notify_one();
    }
    Ok(now)
}

fn failed(error: impl Error + 'static) -> StoreError {
    StoreError::Failed(error_chain(&error))
}

struct Begun {
    time: Arc<Guarded>,
    // Given back to the pool only when nothing is open on it.
    client: Option<Object>,
    /// Whether the server was told: it is told together with the first question.
    is_begun: bool,
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(value) if *kind == Type::INT4 => i32::try_from(*value)?.to_sql(kind, out),
            Value::Int(value) => value.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT4, Type::INT8, Type::TEXT, Type::VARCHAR, Type::BYTEA].contains(kind)
    }

    to_sql_checked!();
}

impl Begun {
    /// Runs statements in one round trip, in their order.
    async fn rows(&mut self, statements: Vec<(&str, Vec<Value>)>) -> Result<Vec<Vec<Row>>, StoreError> {
        let client = self.client.as_ref().ok_or_else(has_ended)?;
        let only_asks = statements.iter().all(|(sql, _)| sql.trim_start().starts_with("SELECT"));
        let mut prepared = Vec::with_capacity(statements.len());
        let mut times = Vec::new();
        for (at, (sql, args)) in statements.into_iter().enumerate() {
            if sql == NOW {
                let statement = client.prepare_cached(self.time.time.sql()).await.map_err(failed)?;
                let asked = self.time.time.ask();
                times.push((at, asked));
                prepared.push((statement, args_of(asked)));
            } else {
                prepared.push((prepare(client, sql).await?, args));
            }
        }
        // Before it is sent: whoever drops this meanwhile must roll back.
        let is_begun = std::mem::replace(&mut self.is_begun, true);
        let begin = async { if is_begun { Ok(()) } else { client.batch_execute("BEGIN").await } };
        let mut begin = Box::pin(maybe_done(begin));
        look_once(begin.as_mut()).await;
        // A question changes nothing, should there be no transaction around it after all; anything else waits for it.
        if !only_asks {
            begin.as_mut().await;
        }
        // Each is sent when it is first looked at, and that happens here, in order.
        let mut sent = Vec::with_capacity(prepared.len());
        if only_asks || matches!(*begin, MaybeDone::Done(Ok(()))) {
            for (statement, args) in &prepared {
                let mut one = Box::pin(maybe_done(query(client, statement, args)));
                look_once(one.as_mut()).await;
                sent.push(one);
            }
        }
        begin.as_mut().await;
        begin.as_mut().take_output().ok_or_else(has_ended)?.map_err(failed)?;
        let mut found = Vec::with_capacity(sent.len());
        for mut one in sent {
            one.as_mut().await;
            found.push(one.as_mut().take_output().ok_or_else(has_ended)??);
        }
        for (at, asked) in times {
            let now = time_of(&self.time, asked, &found[at])?;
            found[at] = vec![Row(vec![now.into()])];
        }
        Ok(found)
    }

    /// Begins, where nothing was asked so far.
    async fn begun(&mut self) -> Result<&Object, StoreError> {
        let client = self.client.as_ref().ok_or_else(has_ended)?;
        if !std::mem::replace(&mut self.is_begun, true) {
            client.batch_execute("BEGIN").await.map_err(failed)?;
        }
        Ok(client)
    }
}

/// Lets a future do what it does at first.
async fn look_once<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

fn has_ended() -> StoreError {
    StoreError::Failed("it has ended".to_owned())
}

/// A statement in PostgreSQL's words.
async fn prepare(client: &Object, sql: &str) -> Result<Statement, StoreError> {
    const ALONE: &str = "pg_advisory_xact_lock(hashtextextended($1, 0)) IS NOT NULL AND";
    const HURRY: &str = "pg_catalog.set_config('lock_timeout', '300ms', true),";
    let sql = sql.replace("/*LOCK*/", "FOR UPDATE").replace("/*ALONE*/", ALONE);
    let sql = sql.replace("/*HURRY*/", HURRY);
    client.prepare_cached(&sql).await.map_err(failed)
}

async fn query(client: &Object, statement: &Statement, args: &[Value]) -> Result<Vec<Row>, StoreError> {
    let args: Vec<&(dyn ToSql + Sync)> = args.iter().map(|arg| arg as &(dyn ToSql + Sync)).collect();
    rows_of(&client.query(statement, &args).await.map_err(failed)?)
}

fn rows_of(found: &[tokio_postgres::Row]) -> Result<Vec<Row>, StoreError> {
    found
        .iter()
        .map(|row| {
            let value = |at: usize| match row.columns()[at].type_() {
                &Type::INT8 => row.try_get::<_, Option<i64>>(at).map(Value::from).map_err(failed),
                &Type::INT4 => row
                    .try_get::<_, Option<i32>>(at)
                    .map(|value| Value::from(value.map(i64::from)))
                    .map_err(failed),
                &Type::TEXT => row.try_get::<_, Option<String>>(at).map(Value::from).map_err(failed),
                &Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map(Value::from).map_err(failed),
                other => Err(StoreError::Failed(format!("a value of no known kind, {other}"))),
            };
            (0..row.len()).map(value).collect::<Result<_, _>>().map(Row)
        })
        .collect()
}

/// Rows as one statement: `VALUES ($1, …)` becomes a selection from an array for each column, and from a single value where
/// a column has the same in every row, which most have.
async fn insert_all(client: &Object, sql: &str, rows: &[Vec<Value>]) -> Result<Vec<Row>, StoreError> {
    let no_insert = || StoreError::Failed("not an INSERT … VALUES ($1, …)".to_owned());
    let one = client.prepare_cached(sql).await.map_err(failed)?;
    let (head, rest) = sql.split_once("VALUES (").ok_or_else(no_insert)?;
    let (_, tail) = rest.split_once(')').ok_or_else(no_insert)?;
    let mut columns: Vec<Box<dyn ToSql + Sync + Send + '_>> = Vec::new();
    let (mut selected, mut arrays, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let last = one.params().len().saturating_sub(1);
    for (at, kind) in one.params().iter().enumerate() {
        let name = match *kind {
            Type::INT8 => "bigint",
            Type::BYTEA => "bytea",
            _ => "text",
        };
        let mut values = rows.iter().map(|row| row.get(at));
        // There is at least one array: it says how many rows there are.
        let is_same = rows.windows(2).all(|two| two[0].get(at) == two[1].get(at));
        if is_same && (at < last || !arrays.is_empty()) {
            selected.push(format!("${}::{name}", at + 1));
            columns.push(Box::new(values.next().flatten().cloned().unwrap_or(Value::Null)));
            continue;
        }
        selected.push(format!("c{at}"));
        names.push(format!("c{at}"));
        arrays.push(format!("${}::{name}[]", at + 1));
        columns.push(match name {
            "bigint" => Box::new(values.map(int).collect::<Vec<_>>()),
            "bytea" => Box::new(values.map(bytes).collect::<Vec<_>>()),
            _ => Box::new(values.map(text).collect::<Vec<_>>()),
        });
    }
    let (selected, arrays, names) = (selected.join(", "), arrays.join(", "), names.join(", "));
    let sql = format!("{head}SELECT {selected} FROM unnest({arrays}) AS rows ({names}){tail}");
    let statement = client.prepare_cached(&sql).await.map_err(failed)?;
    let args: Vec<&(dyn ToSql + Sync)> = columns.iter().map(|column| &**column as _).collect();
    rows_of(&client.query(&statement, &args).await.map_err(failed)?)
}

fn int(value: Option<&Value>) -> Option<i64> {
    match value {
        Some(Value::Int(value)) => Some(*value),
        Some(Value::Text(_) | Value::Bytes(_) | Value::Null) | None => None,
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::Text(text)) => Some(text),
        Some(Value::Int(_) | Value::Bytes(_) | Value::Null) | None => None,
    }
}

fn bytes(value: Option<&Value>) -> Option<&[u8]> {
    match value {
        Some(Value::Bytes(bytes)) => Some(bytes),
        Some(Value::Int(_) | Value::Text(_) | Value::Null) | None => None,
    }
}

impl Transaction for Begun {
    fn run<'a>(&'a mut self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move { Ok(self.rows(vec![(sql, args)]).await?.pop().unwrap_or_default()) })
    }

    fn run_all<'a>(&'a mut self, statements: Vec<(&'a str, Vec<Value>)>) -> Asked<'a, Vec<Vec<Row>>> {
        Box::pin(self.rows(statements))
    }

    fn run_each<'a>(&'a mut self, sql: &'a str, rows: Vec<Vec<Value>>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            let client = self.begun().await?;
            match rows.as_slice() {
                [] => Ok(Vec::new()),
                [one] => query(client, &prepare(client, sql).await?, one).await,
                many => insert_all(client, sql, many).await,
            }
        })
    }

    fn confirm_clock(&mut self) -> Asked<'_, ()> {
        Box::pin(async move {
            let time = Arc::clone(&self.time);
            time.time.confirm(self.begun().await?).await.map_err(failed)
        })
    }

    fn commit(mut self: Box<Self>) -> Asked<'static, ()> {
        Box::pin(async move {
            let client = self.client.take().ok_or_else(has_ended)?;
            if !self.is_begun {
                return Ok(());
            }
            match client.batch_execute("COMMIT").await {
                Ok(()) => Ok(()),
                Err(error) if error.as_db_error().is_some() => {
                    drop(Object::take(client));
                    Err(failed(error))
                }
                Err(error) => {
                    // The connection broke off: the server may have committed.
                    drop(Object::take(client));
                    Err(StoreError::Unknown(error_chain(&error)))
                }
            }
        })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(client) = self.client.take().filter(|_| self.is_begun) else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                if client.batch_execute("ROLLBACK").await.is_err() {
                    drop(Object::take(client));
                }
            })),
            // Without a runtime the connection is closed, which rolls back too.
            Err(_) => drop(Object::take(client)),
        }
    }
}

impl Database for Postgres {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        Box::pin(async move {
            let client = Some(self.client().await?);
            let time = Arc::clone(&self.time);
            Ok(Box::new(Begun { time, client, is_begun: false }) as Box<dyn Transaction>)
        })
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            let client = self.client().await?;
            if sql == NOW {
                return Ok(vec![Row(vec![ask_time(&client, &self.time).await?.into()])]);
            }
            query(&client, &prepare(&client, sql).await?, &args).await
        })
    }

    fn now(&self) -> Asked<'_, i64> {
        Box::pin(async move { ask_time(&self.client().await?, &self.time).await })
    }

    fn clock_ahead(&self) -> i64 {
        self.time.time.ahead()
    }

    fn is_owned(&self) -> bool {
        false
    }

    fn say<'a>(&'a self, channel: &'static str, text: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            let statement = prepare(&client, channel::SAY).await?;
            client.execute(&statement, &[&channel, &text]).await.map(drop).map_err(failed)
        })
    }

    fn listen(&self, channel: &'static str, heard: Heard) -> Listening<'_> {
        (self.listen)(channel, heard)
    }
}
