//! How connections are made and what each is pinned to. Refuses a server that may forget what it confirmed.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Socket};

use super::link::in_full;

/// How long it may take to reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for a connection of the pool.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// After how long without traffic a peer is asked whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// How long sent bytes may stay unacknowledged before the connection counts as lost.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);
/// A connection that was idle for longer is tried before it is used.
const IDLE_UNTRIED_MAX: Duration = Duration::from_secs(1);
/// The name of this store among the server's sessions.
const APPLICATION_NAME: &str = "semel";

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections for requests. Besides them a store holds two for renewals and notifications, and one that listens.
    pub connections: usize,
    /// How long a statement may run.
    pub statement_timeout: Duration,
    /// How long a statement waits for a row that another transaction is writing.
    pub lock_timeout: Duration,
    /// What to do about a schema that is not there or is older.
    pub migrations: Migrations,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 8,
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(2),
            migrations: Migrations::Apply,
        }
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
        /// The newest migration that is applied.
        found: i32,
        /// The newest that this release knows.
        known: i32,
    },
    /// A migration that is applied is not the one that this release knows.
    SchemaChanged {
        /// Its number.
        number: i32,
        /// Its name.
        name: String,
    },
    /// The schema is missing or older, and this store may not change it.
    SchemaOlder {
        /// The newest migration that is applied; 0 where there is none.
        found: i32,
        /// The newest that this release knows.
        known: i32,
    },
    /// A migration failed. Nothing of it was applied.
    MigrationFailed {
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
            ConnectError::SchemaNewer { found, known } => write!(
                f,
                "the schema semel is at migration {found}, this release knows {known} and cannot work with it; \
                 use the newer release"
            ),
            ConnectError::SchemaChanged { number, name } => write!(
                f,
                "migration {number} ({name}) was applied in another form than this release knows; restore the \
                 schema semel or use the release that made it"
            ),
            ConnectError::SchemaOlder { found, known } => write!(
                f,
                "the schema semel is at migration {found} of {known}; run `semel migrate` with a role that may \
                 change it"
            ),
            ConnectError::MigrationFailed { number, why } => {
                write!(f, "migration {number} failed and was rolled back: {why}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}

/// The settings of a connection to this URL.
pub(super) fn config(url: &str) -> Result<Config, ConnectError> {
    let mut config: Config =
        url.parse().map_err(|error: tokio_postgres::Error| ConnectError::BadUrl(in_full(&error)))?;
    config.application_name(APPLICATION_NAME);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config.keepalives_idle(KEEPALIVE_IDLE);
    config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    // After a fail-over some of the hosts of the URL are standbys.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

/// What every connection is pinned to, whatever the server, the database or the role prefer. Plans reach rows by index
/// and are made once: one that was made while a table was empty would otherwise read all of it when it has grown.
pub(super) fn session(options: &Options) -> String {
    let statement_ms = options.statement_timeout.as_millis();
    let lock_ms = options.lock_timeout.as_millis();
    format!(
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
         SET synchronous_commit = on;
         SET statement_timeout = {statement_ms};
         SET lock_timeout = {lock_ms};
         SET idle_in_transaction_session_timeout = {statement_ms};
         SET search_path = pg_catalog;
         SET client_min_messages = warning;
         SET jit = off;
         SET plan_cache_mode = force_generic_plan;
         SET enable_seqscan = off;
         SET enable_hashjoin = off;
         SET enable_mergejoin = off;
         SET enable_material = off"
    )
}

/// Sees that the server keeps what it confirms.
pub(super) async fn check_durable(client: &Client) -> Result<(), ConnectError> {
    let row = client
        .query_one("SELECT pg_catalog.current_setting('fsync')", &[])
        .await
        .map_err(|error| ConnectError::Unreachable(in_full(&error)))?;
    durable(row.get(0))
}

fn durable(fsync: &str) -> Result<(), ConnectError> {
    match fsync {
        "on" => Ok(()),
        value => Err(ConnectError::NotDurable { setting: "fsync", value: value.to_owned() }),
    }
}

/// A pool of pinned connections. Broken ones are dropped, and the next call makes a new one.
pub(super) fn pool<T>(config: Config, tls: T, size: usize, options: &Options) -> Result<Pool, ConnectError>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let manager =
        Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let session = session(options);
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
        .map_err(|error| ConnectError::Unreachable(in_full(&error)))
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
        let error = config("mysql://alice:hunter2@db/x").unwrap_err();
        assert!(
            matches!(error, ConnectError::BadUrl(_)) && !error.to_string().contains("hunter2"),
            "{error}"
        );
    }
}
