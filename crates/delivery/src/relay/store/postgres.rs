//! The relay's database on PostgreSQL: several replicas on one schema, `semel_relay`. Connections are pinned to what the
//! promise needs, whatever the server or the role prefer.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use futures_util::future::{MaybeDone, maybe_done};
use semel_http::error_chain;
use semel_store::postgres::Migrations;
use sha2::{Digest, Sha256};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};
use tokio_postgres::{Config, NoTls, Socket, Statement};

use super::sql::{Asked, Database, NOW, Row, StoreError, Transaction, Value};

/// Every migration: its number, the newest that the oldest release knew which still works once it is applied, its text.
const MIGRATIONS: &[(i32, i32, &str)] = &[
    (1, 1, include_str!("../migrations/postgres_0001_relay.sql")),
    (2, 2, include_str!("../migrations/postgres_0002_state.sql")),
    (3, 3, include_str!("../migrations/postgres_0003_done.sql")),
];
/// Who may do what. Applied with every migration, since it speaks of all tables.
const ROLES: &str = include_str!("../migrations/postgres_roles.sql");
/// The lock under which migrations are applied: "relay" in ASCII.
const LOCK: i64 = 0x72_65_6c_61_79;
/// How long it may take to get a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Statistics count the rows that are alive, and there are few: a bitmap of all versions of a lane would look cheap, and
/// read every one that another transaction keeps. With these settings an index is read in its order.
const SESSION: &str = "
    SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SET synchronous_commit = on;
    SET statement_timeout = '10s';
    SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '10s';
    SET search_path = semel_relay, pg_catalog;
    SET client_min_messages = warning;
    SET jit = off;
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET enable_bitmapscan = off";

/// A database of a server.
#[derive(Debug)]
pub struct Postgres {
    pool: Pool,
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
        let store = Self::reach(url, connections, tls)?;
        match migrations {
            Migrations::Apply => store.migrate().await?,
            Migrations::Refuse => match store.versions().await? {
                (_, missing) if missing.is_empty() => {}
                (found, missing) => {
                    let known = found + missing.len() as i32;
                    return Err(StoreError::Failed(format!(
                        "the schema semel_relay is at migration {found} of {known}; run `semel migrate` with a role that \
                         may change it"
                    )));
                }
            },
        }
        Ok(store)
    }

    /// The newest migration that is applied, and the numbers of those that are missing. Changes nothing.
    ///
    /// # Errors
    /// The server cannot be reached, or the schema is one that this release does not know.
    pub async fn migration_plan<T>(url: &str, tls: T) -> Result<(i32, Vec<i32>), StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        Self::reach(url, 1, tls)?.versions().await
    }

    async fn versions(&self) -> Result<(i32, Vec<i32>), StoreError> {
        let client = self.client().await?;
        let there = "SELECT pg_catalog.to_regclass('semel_relay.migration') IS NOT NULL";
        let applied = match client.query_one(there, &[]).await.map_err(failed)?.get(0) {
            true => client.query(APPLIED, &[]).await.map_err(failed)?,
            false => Vec::new(),
        };
        let applied = known_ones(&applied)?;
        let missing =
            MIGRATIONS.iter().map(|(number, ..)| *number).filter(|number| !applied.contains(number));
        Ok((applied.last().copied().unwrap_or(0), missing.collect()))
    }

    fn reach<T>(url: &str, connections: usize, tls: T) -> Result<Self, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let mut config: Config = url.parse().map_err(failed)?;
        config.application_name("semel relay");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(Duration::from_secs(15));
        config.tcp_user_timeout(Duration::from_secs(15));
        let manager =
            Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(connections.max(1))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move {
                    client.batch_execute(SESSION).await.map_err(HookError::Backend)?;
                    let row = client
                        .query_one("SELECT pg_catalog.current_setting('fsync')", &[])
                        .await
                        .map_err(HookError::Backend)?;
                    match row.get::<_, &str>(0) {
                        "on" => Ok(()),
                        other => Err(HookError::message(format!(
                            "PostgreSQL runs with fsync={other} and may forget what it confirmed; set fsync=on"
                        ))),
                    }
                })
            }))
            .build()
            .map_err(failed)?;
        Ok(Self { pool })
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(failed)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(failed)?;
        // An index of everything that is kept takes as long as it takes.
        transaction.batch_execute("SET LOCAL statement_timeout = 0").await.map_err(failed)?;
        transaction.execute("SELECT pg_catalog.pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
        transaction
            .batch_execute(
                "CREATE SCHEMA IF NOT EXISTS semel_relay;
                 CREATE TABLE IF NOT EXISTS semel_relay.migration (
                    number integer PRIMARY KEY, checksum text NOT NULL, works_for integer NOT NULL,
                    applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
            )
            .await
            .map_err(failed)?;
        let applied = known_ones(&transaction.query(APPLIED, &[]).await.map_err(failed)?)?;
        for (number, works_for, sql) in MIGRATIONS.iter().filter(|(number, ..)| !applied.contains(number)) {
            transaction.batch_execute(sql).await.map_err(failed)?;
            let sql_text =
                "INSERT INTO semel_relay.migration (number, checksum, works_for) VALUES ($1, $2, $3)";
            transaction.execute(sql_text, &[number, &checksum(sql), works_for]).await.map_err(failed)?;
        }
        let rights = "SELECT pg_catalog.to_regprocedure('semel_relay.grant_rights()') IS NOT NULL";
        let has_rights: bool = transaction.query_one(rights, &[]).await.map_err(failed)?.get(0);
        if !has_rights || applied.len() < MIGRATIONS.len() {
            transaction.batch_execute(ROLES).await.map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)
    }
}

const APPLIED: &str = "SELECT number, checksum, works_for FROM semel_relay.migration ORDER BY number";

fn checksum(sql: &str) -> String {
    Sha256::digest(sql).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The numbers of the migrations that are applied, where this release can work with them.
fn known_ones(applied: &[tokio_postgres::Row]) -> Result<Vec<i32>, StoreError> {
    let newest = MIGRATIONS.iter().map(|(number, ..)| *number).max().unwrap_or(0);
    let number = |row: &tokio_postgres::Row| row.get::<_, i32>(0);
    // A later release may have changed it in a way that this one can still work with.
    if let Some(row) = applied.last().filter(|row| row.get::<_, i32>(2) > newest) {
        let why = format!("the schema semel_relay is at migration {}, of a later release", number(row));
        return Err(StoreError::Failed(why));
    }
    for row in applied {
        let known = MIGRATIONS.iter().find(|(known, ..)| *known == number(row));
        if known.is_some_and(|(.., sql)| row.get::<_, &str>(1) != checksum(sql)) {
            let why = format!("migration {} of semel_relay was applied in another form", number(row));
            return Err(StoreError::Failed(why));
        }
    }
    Ok(applied.iter().map(number).collect())
}

fn failed(error: impl Error) -> StoreError {
    StoreError::Failed(error_chain(&error))
}

struct Begun {
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
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT4, Type::INT8, Type::TEXT, Type::VARCHAR].contains(kind)
    }

    to_sql_checked!();
}

impl Begun {
    /// Runs statements in one round trip, in their order.
    async fn rows(&mut self, statements: Vec<(&str, Vec<Value>)>) -> Result<Vec<Vec<Row>>, StoreError> {
        let client = self.client.as_ref().ok_or_else(has_ended)?;
        let only_asks = statements.iter().all(|(sql, _)| sql.trim_start().starts_with("SELECT"));
        let mut prepared = Vec::with_capacity(statements.len());
        for (sql, args) in statements {
            prepared.push((prepare(client, sql).await?, args));
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
    const CLOCK: &str = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint";
    let sql = sql.replace("/*LOCK*/", "FOR UPDATE").replace("/*ALONE*/", ALONE);
    let sql = sql.replace("/*NOW*/", CLOCK).replace("/*HURRY*/", HURRY);
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
        let name = if *kind == Type::INT8 { "bigint" } else { "text" };
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
        Some(Value::Text(_) | Value::Null) | None => None,
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::Text(text)) => Some(text),
        Some(Value::Int(_) | Value::Null) | None => None,
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
            Ok(Box::new(Begun { client, is_begun: false }) as Box<dyn Transaction>)
        })
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        Box::pin(async move {
            let client = self.client().await?;
            query(&client, &prepare(&client, sql).await?, &args).await
        })
    }

    fn now(&self) -> Asked<'_, i64> {
        Box::pin(async move {
            let rows = self.read(NOW, vec![]).await?;
            rows.first().ok_or_else(|| StoreError::Failed("no time".to_owned()))?.int(0)
        })
    }

    fn is_owned(&self) -> bool {
        false
    }
}
