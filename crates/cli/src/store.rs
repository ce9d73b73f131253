//! Opens the store that the settings name, with what they say about keeping answers. Owns no record.

mod tls;

use std::path::Path;
use std::sync::Arc;

use semel_store::at_rest::{AtRest, KeyRing, Protection};
use semel_store::limits::{Fallback, Limiter, MemoryLimiter, RedisLimiter};
use semel_store::postgres::{Migrations, Options, PostgresStore};
use semel_store::sqlite::{OpenError, SqliteStore};
use semel_store::{AdminStore, ClaimStore};

use crate::config::{self, Config, Store};
use crate::exit::{Exit, Stop};

/// A store that is open.
#[derive(Clone)]
pub(crate) struct Opened {
    /// What requests use: the backend, with answers protected where the settings say so.
    pub(crate) records: Arc<dyn ClaimStore>,
    /// The same, as operators see it.
    pub(crate) operated: Arc<dyn AdminStore>,
    /// What keeps them.
    pub(crate) backend: Backend,
}

/// What keeps the records.
#[derive(Clone)]
pub(crate) enum Backend {
    /// A file of this process.
    Sqlite(Arc<SqliteStore>),
    /// A server.
    Postgres(Arc<PostgresStore>),
}

/// Opens what the settings name. Call it within a tokio runtime.
pub(crate) async fn open(config: &Config) -> Result<Opened, Stop> {
    let backend = match &config.store {
        Store::Sqlite(path) => {
            Backend::Sqlite(Arc::new(sqlite(path).map_err(|error| not_opened(path, &error))?))
        }
        Store::Postgres(url) => {
            let settings = &config.gate.postgres;
            let migrations = if settings.migrate { Migrations::Apply } else { Migrations::Refuse };
            let options = Options { connections: settings.connections, migrations, ..Options::default() };
            Backend::Postgres(Arc::new(postgres(url, config, options).await?))
        }
    };
    opened(backend, config)
}

/// Why a command cannot open a store by itself.
pub(crate) enum OpenStop {
    /// A process owns this file.
    Owned(String),
    /// Anything else.
    Stop(Stop),
}

/// Opens what the settings name, for a command that looks into it: few connections, and no change of the schema of a
/// server, which others use.
pub(crate) async fn open_to_look(config: &Config) -> Result<Opened, OpenStop> {
    let backend = match &config.store {
        Store::Sqlite(path) => match sqlite(path) {
            Ok(store) => Backend::Sqlite(Arc::new(store)),
            Err(OpenError::Locked { .. }) => return Err(OpenStop::Owned(path.clone())),
            Err(error) => return Err(OpenStop::Stop(not_opened(path, &error))),
        },
        Store::Postgres(url) => {
            let options = Options { connections: 2, migrations: Migrations::Refuse, ..Options::default() };
            Backend::Postgres(Arc::new(postgres(url, config, options).await.map_err(OpenStop::Stop)?))
        }
    };
    opened(backend, config).map_err(OpenStop::Stop)
}

fn opened(backend: Backend, config: &Config) -> Result<Opened, Stop> {
    let operated: Arc<dyn AdminStore> = match &backend {
        Backend::Sqlite(store) => Arc::<SqliteStore>::clone(store),
        Backend::Postgres(store) => Arc::<PostgresStore>::clone(store),
    };
    let operated = match &config.gate.at_rest {
        Some(at_rest) => Arc::new(AtRest::new(operated, protection(at_rest)?)),
        None => operated,
    };
    Ok(Opened { records: Arc::<dyn AdminStore>::clone(&operated), operated, backend })
}

/// Where limits are counted: in Redis where the settings name one, else where the records are if others see them too,
/// else in this process.
pub(crate) fn limiter(config: &Config, backend: &Backend) -> Result<Fallback, Stop> {
    let own: Arc<dyn Limiter> = Arc::new(MemoryLimiter::default());
    let of_store: Arc<dyn Limiter> = match backend {
        Backend::Sqlite(_) => Arc::clone(&own),
        Backend::Postgres(store) => Arc::new(store.limiter()),
    };
    let Some(url) = &config.gate.redis else { return Ok(Fallback::new(of_store, own)) };
    let shared = RedisLimiter::at(url)
        .map_err(|error| Stop::new(Exit::Config, format!("gate.redis {}: {error}", config::redacted(url))))?;
    Ok(Fallback::new(Arc::new(shared), of_store))
}

fn sqlite(path: &str) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(Path::new(path))
}

/// Why a file of another user is not opened: what SQLite makes beside it would be ours, and its user could not open the
/// store any more.
#[cfg(unix)]
pub(crate) fn of_somebody_else(path: &Path) -> Option<Stop> {
    use std::os::unix::fs::MetadataExt;
    let theirs = std::fs::metadata(path).ok()?.uid();
    // SAFETY: it takes nothing and cannot fail.
    let ours = unsafe { libc::geteuid() };
    (theirs != ours).then(|| {
        let what = format!(
            "{} belongs to user {theirs} and no process owns it; run this as that user: sudo -u '#{theirs}' semel …",
            path.display()
        );
        Stop::new(Exit::Io, what)
    })
}

#[cfg(not(unix))]
pub(crate) fn of_somebody_else(_: &Path) -> Option<Stop> {
    None
}

fn not_opened(path: &str, error: &OpenError) -> Stop {
    let what_to_do = match error {
        OpenError::Locked { .. } => "; stop that process, or name another file with --store",
        OpenError::Io(_) => "; is its folder there, and may this user write to it?",
        OpenError::TooNew { .. }
        | OpenError::Corrupt(_)
        | OpenError::Setting { .. }
        | OpenError::LogInUse { .. }
        | OpenError::SqliteTooOld { .. }
        | OpenError::Sqlite(_) => "",
    };
    Stop::new(Exit::Io, format!("failed to open the store sqlite:{path}: {error}{what_to_do}"))
}

async fn postgres(url: &str, config: &Config, options: Options) -> Result<PostgresStore, Stop> {
    let settings = &config.gate.postgres;
    let failed = |error: String| {
        Stop::new(Exit::Unreachable, format!("failed to open the store {}: {error}", config.store))
    };
    let (url, tls) = secured(url, settings.ca.as_deref()).map_err(failed)?;
    let connected = match tls {
        Some(tls) => PostgresStore::connect_tls(&url, options, tls).await,
        None => PostgresStore::connect(&url, options).await,
    };
    connected.map_err(|error| failed(error.to_string()))
}

/// A URL of PostgreSQL as the driver reads it, and what makes its connections secure where it demands that.
pub(crate) fn secured(url: &str, ca: Option<&Path>) -> Result<(String, Option<tls::Secure>), String> {
    let url = tls::plain(url);
    let tls = tls::is_required(&url).then(|| tls::Secure::new(ca)).transpose()?;
    Ok((url, tls))
}

/// Whether answers can be kept as the settings say.
pub(crate) fn check_protection(config: &Config) -> Result<(), Stop> {
    config.gate.at_rest.as_ref().map_or(Ok(()), |at_rest| protection(at_rest).map(drop))
}

fn protection(at_rest: &config::AtRest) -> Result<Protection, Stop> {
    let Some(path) = &at_rest.keys else { return Ok(Protection::Compress { reads: None }) };
    let keys = KeyRing::load(path)
        .map_err(|error| Stop::new(Exit::Config, format!("gate.at_rest {}: {error}", path.display())))?;
    Ok(if at_rest.compress { Protection::CompressAndEncrypt(keys) } else { Protection::Encrypt(keys) })
}
