//! Opens the store that the settings name, with what they say about keeping answers. Owns no record.

use std::path::Path;
use std::sync::Arc;

use semel_store::ClaimStore;
use semel_store::at_rest::{AtRest, KeyRing, Protection};
use semel_store::clock::SystemClock;
use semel_store::limits::{Fallback, Limiter, MemoryLimiter, RedisLimiter};
use semel_store::postgres::{Migrations, Options, PostgresStore};
use semel_store::sqlite::{OpenError, SqliteStore};

use crate::config::{self, Config, Store};
use crate::exit::{Exit, Stop};

/// A store that is open.
#[derive(Clone)]
pub(crate) struct Opened {
    /// What requests use: the backend, with answers protected where the settings say so.
    pub(crate) records: Arc<dyn ClaimStore>,
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
        Store::Sqlite(path) => Backend::Sqlite(Arc::new(sqlite(path)?)),
        Store::Postgres(url) => Backend::Postgres(Arc::new(postgres(url, config).await?)),
    };
    let records: Arc<dyn ClaimStore> = match &backend {
        Backend::Sqlite(store) => Arc::<SqliteStore>::clone(store),
        Backend::Postgres(store) => Arc::<PostgresStore>::clone(store),
    };
    let records = match &config.gate.at_rest {
        Some(at_rest) => Arc::new(AtRest::new(records, protection(at_rest)?)),
        None => records,
    };
    Ok(Opened { records, backend })
}

/// Where limits are counted.
pub(crate) fn limiter(config: &Config) -> Result<Fallback, Stop> {
    let own: Arc<dyn Limiter> = Arc::new(MemoryLimiter::default());
    let Some(url) = &config.gate.redis else { return Ok(Fallback::new(Arc::clone(&own), own)) };
    let shared = RedisLimiter::at(url)
        .map_err(|error| Stop::new(Exit::Config, format!("gate.redis {}: {error}", config::redacted(url))))?;
    Ok(Fallback::new(Arc::new(shared), own))
}

fn sqlite(path: &str) -> Result<SqliteStore, Stop> {
    SqliteStore::open(Path::new(path), Arc::new(SystemClock)).map_err(|error| {
        let what_to_do = match &error {
            OpenError::Locked { .. } => "; stop that process, or name another file with --store",
            OpenError::Io(_) => "; is its folder there, and may this user write to it?",
            OpenError::TooNew { .. }
            | OpenError::Foreign { .. }
            | OpenError::Corrupt(_)
            | OpenError::Setting { .. }
            | OpenError::SqliteTooOld { .. }
            | OpenError::Sqlite(_) => "",
        };
        Stop::new(Exit::Io, format!("failed to open the store sqlite:{path}: {error}{what_to_do}"))
    })
}

async fn postgres(url: &str, config: &Config) -> Result<PostgresStore, Stop> {
    let settings = config.gate.postgres;
    let migrations = if settings.migrate { Migrations::Apply } else { Migrations::Refuse };
    let options = Options { connections: settings.connections, migrations, ..Options::default() };
    PostgresStore::connect(url, options)
        .await
        .map_err(|error| Stop::new(Exit::Io, format!("failed to open the store {}: {error}", config.store)))
}

fn protection(at_rest: &config::AtRest) -> Result<Protection, Stop> {
    let Some(path) = &at_rest.keys else { return Ok(Protection::Compress { reads: None }) };
    let keys = KeyRing::load(path)
        .map_err(|error| Stop::new(Exit::Config, format!("gate.at_rest {}: {error}", path.display())))?;
    Ok(if at_rest.compress { Protection::CompressAndEncrypt(keys) } else { Protection::Encrypt(keys) })
}
