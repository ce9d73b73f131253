//! The base under every store on PostgreSQL: how connections are made, pooled and tried, what each is pinned to, and how a
//! schema is brought up to date. Refuses a server that may forget what it confirmed, and one that only reads. Knows no
//! table of any store.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio::task::AbortHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Socket};

mod migrate;

pub use migrate::{Migration, Plan, Schema, Step, plan};

/// How many connections those of one name have to this database, and from how many addresses.
pub const SESSIONS: &str = "SELECT count(*), count(DISTINCT coalesce(client_addr::text, 'this host'))
    FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND application_name = current_setting('application_name')";
/// How long it may take to reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first connection, which tries every host, and its first statements may take.
const FIRST_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a request waits for a connection of the pool.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// After how long without traffic a peer is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long sent bytes may stay unacknowledged before the connection counts as lost.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);
/// A connection that was idle for longer is tried before it is used.
const IDLE_UNTRIED_MAX: Duration = Duration::from_secs(1);

/// What every connection of a store is pinned to, whatever the server, the database or the role prefer.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// How long a statement may run, and a transaction may wait for its next one.
    pub statement_timeout: Duration,
    /// How long a statement waits for a row that another transaction is writing.
    pub lock_timeout: Duration,
    /// Where names without a schema are looked up.
    pub search_path: &'static str,
    /// Kinds of plans that are not made, beside reading whole tables and joining by them.
    pub plans_off: &'static [&'static str],
}

impl Session {
    /// Plans reach rows by index and are made once: one that was made while a table was empty would otherwise read all of
    /// it when it has grown.
    fn sql(&self) -> String {
        let (statement_ms, lock_ms) = (self.statement_timeout.as_millis(), self.lock_timeout.as_millis());
        let plans_off: String = self.plans_off.iter().map(|plan| format!(";\nSET {plan} = off")).collect();
        format!(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
             SET synchronous_commit = on;
             SET statement_timeout = {statement_ms};
             SET lock_timeout = {lock_ms};
             SET idle_in_transaction_session_timeout = {statement_ms};
             SET search_path = {};
             SET client_min_messages = warning;
             SET jit = off;
             SET plan_cache_mode = force_generic_plan;
             SET enable_seqscan = off;
             SET enable_hashjoin = off;
             SET enable_mergejoin = off{plans_off}",
            self.search_path
        )
    }
}

/// What to do about a schema that is not there or is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrations {
    /// Apply what is missing.
    Apply,
    /// Refuse to start: somebody with more rights applies it.
    Refuse,
}

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one of PostgreSQL.
    BadUrl(String),
    /// The server cannot be reached, or does not let us in.
    Unreachable(String),
    /// The server may forget what it confirmed.
    NotDurable {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
    },
    /// The schema was made by a newer release that this one does not understand.
    SchemaNewer {
        /// The schema.
        schema: &'static str,
        /// The newest migration that is applied.
        found: i32,
        /// The newest that this release knows.
        known: i32,
    },
    /// A migration that is applied is not the one that this release knows.
    SchemaChanged {
        /// The schema.
        schema: &'static str,
        /// Its number.
        number: i32,
        /// Its name.
        name: String,
    },
    /// The schema is missing or older, and this store may not change it.
    SchemaOlder {
        /// The schema.
        schema: &'static str,
        /// The newest migration that is applied; 0 where there is none.
        found: i32,
        /// The newest that this release knows.
        known: i32,
    },
    /// A migration failed. Nothing of it was applied.
    MigrationFailed {
        /// The schema.
        schema: &'static str,
        /// Its number; 0 is the table of migrations itself.
        number: i32,
        /// Why.
        why: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::BadUrl(why) => write!(f, "not the URL of a PostgreSQL database: {why}"),
            ConnectError::Unreachable(why) => write!(f, "PostgreSQL cannot be used: {why}"),
            ConnectError::NotDurable { setting, value } => write!(
                f,
                "PostgreSQL runs with {setting}={value} and may forget what it confirmed; set {setting}=on in \
                 postgresql.conf and reload the server"
            ),
            ConnectError::SchemaNewer { schema, found, known } => write!(
                f,
                "the schema {schema} is at migration {found}, this release knows {known} and cannot work with it; \
                 use the newer release"
            ),
            ConnectError::SchemaChanged { schema, number, name } => write!(
                f,
                "migration {number} ({name}) was applied in another form than this release knows; restore the \
                 schema {schema} or use the release that made it"
            ),
            ConnectError::SchemaOlder { schema, found, known } => write!(
                f,
                "the schema {schema} is at migration {found} of {known}; run `semel migrate` with a role that may \
                 change it"
            ),
            ConnectError::MigrationFailed { schema, number, why } => {
                write!(f, "migration {number} of the schema {schema} failed and was rolled back: {why}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}

/// The settings of a connection to this URL, under a name among the server's sessions.
pub fn config(url: &str, application_name: &str) -> Result<Config, ConnectError> {
    let mut config: Config =
        url.parse().map_err(|error: tokio_postgres::Error| ConnectError::BadUrl(error_chain(&error)))?;
    config.application_name(application_name);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config.keepalives_idle(KEEPALIVE_IDLE);
    config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    // After a fail-over some of the hosts of the URL are standbys.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

/// A connection outside a pool. It is closed when it is dropped.
#[derive(Debug)]
pub struct FirstConnection {
    client: Client,
    driver: AbortHandle,
}

impl Drop for FirstConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl FirstConnection {
    /// Connects.
    pub async fn open<T>(config: &Config, tls: T) -> Result<Self, ConnectError>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let unreachable = |error: tokio_postgres::Error| ConnectError::Unreachable(error_chain(&error));
        let opened = tokio::time::timeout(FIRST_TIMEOUT, config.connect(tls)).await;
        let (client, connection) = opened.map_err(|_| silent())?.map_err(unreachable)?;
        Ok(Self { client, driver: tokio::spawn(connection).abort_handle() })
    }

    /// Sees that the server is durable, pins the session and brings the schema up to date, where that is allowed.
    pub async fn prepare(
        &mut self,
        session: &Session,
        schema: &Schema,
        allowed: Migrations,
    ) -> Result<(), ConnectError> {
        let pinned = async {
            check_durable(&self.client).await?;
            let unreachable = |error: tokio_postgres::Error| ConnectError::Unreachable(error_chain(&error));
            self.client.batch_execute(&session.sql()).await.map_err(unreachable)
        };
        tokio::time::timeout(FIRST_TIMEOUT, pinned).await.map_err(|_| silent())??;
        migrate::migrate(schema, &mut self.client, allowed).await
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

fn silent() -> ConnectError {
    ConnectError::Unreachable("the server did not answer in time".to_owned())
}

/// Sees that the server keeps what it confirms.
async fn check_durable(client: &Client) -> Result<(), ConnectError> {
    let row = client
        .query_one("SELECT pg_catalog.current_setting('fsync')", &[])
        .await
        .map_err(|error| ConnectError::Unreachable(error_chain(&error)))?;
    durable(row.get(0))
}

fn durable(fsync: &str) -> Result<(), ConnectError> {
    match fsync {
        "on" => Ok(()),
        value => Err(ConnectError::NotDurable { setting: "fsync", value: value.to_owned() }),
    }
}

/// A pool of pinned connections. Broken ones are dropped, and the next call makes a new one.
pub fn pool<T>(config: Config, tls: T, size: usize, session: &Session) -> Result<Pool, ConnectError>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let manager =
        Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let session = session.sql();
    Pool::builder(manager)
        .max_size(size.max(1))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WAIT_TIMEOUT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .recycle_timeout(Some(CONNECT_TIMEOUT))
        .post_create(Hook::async_fn(move |client, _| {
            let session = session.clone();
            Box::pin(async move {
                let prepared = async {
                    client.batch_execute(&session).await.map_err(HookError::Backend)?;
                    // A fail-over may have led to a server with other settings.
                    check_durable(client).await.map_err(|error| HookError::message(error.to_string()))
                };
                in_time(prepared).await
            })
        }))
        .pre_recycle(Hook::async_fn(|client, metrics| {
            Box::pin(async move {
                if metrics.last_used() <= IDLE_UNTRIED_MAX {
                    return Ok(());
                }
                in_time(async { client.batch_execute("").await.map_err(HookError::Backend) }).await
            })
        }))
        .build()
        .map_err(|error| ConnectError::Unreachable(error_chain(&error)))
}

/// An error with what caused it, without the statement.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The pool's own time-outs do not cover its hooks: a server that hangs would hold up whoever asks for a connection.
async fn in_time(hook: impl Future<Output = Result<(), HookError>>) -> Result<(), HookError> {
    let late = |_| HookError::message("the server did not answer in time");
    tokio::time::timeout(CONNECT_TIMEOUT, hook).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_forget_is_refused_with_what_to_do() {
        assert_eq!(durable("on"), Ok(()));
        let text = durable("off").unwrap_err().to_string();
        assert!(text.contains("fsync=off") && text.contains("set fsync=on"), "{text}");
    }

    #[test]
    fn a_url_of_something_else_is_refused_without_its_password() {
        let error = config("mysql://alice:hunter2@db/x", "semel").unwrap_err();
        assert!(
            matches!(error, ConnectError::BadUrl(_)) && !error.to_string().contains("hunter2"),
            "{error}"
        );
    }
}
