//! Opens the relay's store, and what works on it: for the process that serves, and for commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use semel_delivery::Entropy;
use semel_delivery::relay::given::SharedWallet;
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::store::Database;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sqlite::{OpenError, Sqlite};
use semel_delivery::relay::{Engine, RelayStore};
use semel_http::BodyRoom;
use semel_store::clock::SystemClock;
use semel_store::postgres::Migrations;
use tokio_postgres::NoTls;

use super::admin;
use super::config::Config;
use super::context::Admin;
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::store::secured;

/// A store that is open.
pub(crate) struct Opened {
    pub(crate) store: RelayStore,
    pub(crate) file: Option<Arc<Sqlite>>,
}

/// Why a store cannot be opened here.
pub(crate) enum OpenStop {
    /// Another process owns this file.
    Owned(PathBuf),
    /// Anything else.
    Stop(Stop),
}

/// For what a store is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve: the schema is brought up to date where the settings allow it.
    Serve,
    /// To look into it: few connections, and no change of the schema of a server, which others use.
    Look,
}

/// Opens the relay's store.
pub(crate) async fn open(config: &Config, purpose: Purpose) -> Result<Opened, OpenStop> {
    let failed = |exit: Exit, error: String| {
        OpenStop::Stop(Stop::new(exit, format!("failed to open the store {}: {error}", config.store)))
    };
    match &config.store {
        Store::Sqlite(path) => match Sqlite::open(Path::new(path), Arc::new(SystemClock)) {
            Ok(file) => {
                let file = Arc::new(file);
                let db: Arc<dyn Database> = Arc::<Sqlite>::clone(&file);
                Ok(Opened { store: RelayStore::new(db), file: Some(file) })
            }
            Err(OpenError::Locked { .. }) => Err(OpenStop::Owned(PathBuf::from(path))),
            Err(error) => Err(failed(Exit::Io, error.to_string())),
        },
        Store::Postgres(url) => {
            let settings = &config.postgres;
            let (connections, migrations) = match purpose {
                Purpose::Serve if settings.migrate => (settings.connections, Migrations::Apply),
                Purpose::Serve => (settings.connections, Migrations::Refuse),
                Purpose::Look => (2, Migrations::Refuse),
            };
            let (url, tls) =
                secured(url, settings.ca.as_deref()).map_err(|error| failed(Exit::Config, error))?;
            let connected = match tls {
                Some(tls) => Postgres::connect_tls(&url, connections, migrations, tls).await,
                None => Postgres::connect_tls(&url, connections, migrations, NoTls).await,
            };
            let db = connected.map_err(|error| failed(Exit::Unreachable, error.to_string()))?;
            Ok(Opened { store: RelayStore::new(Arc::new(db)), file: None })
        }
    }
}

/// Who this process is: the name of a host alone could be that of a process that is no more.
pub(crate) fn owner() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "relay".to_owned());
    format!("{host}:{}:{:032x}", std::process::id(), Entropy::system().bits())
}

/// The engine over a store.
pub(crate) fn engine(config: &Config, store: &RelayStore, owner: &str, meters: Meters) -> Arc<Engine> {
    Arc::new(Engine {
        store: store.clone(),
        targets: config.targets.clone(),
        credentials: Arc::new(credentials(config, store)),
        entropy: Entropy::system(),
        clock: Arc::new(SystemClock),
        owner: owner.to_owned(),
        meters,
        settled: tokio::sync::Notify::new(),
    })
}

/// Where credentials come from.
pub(crate) fn credentials(config: &Config, store: &RelayStore) -> SharedWallet {
    SharedWallet::new(store.clone(), config.keys.clone(), Arc::clone(&config.wallet))
}

/// The admin API within this process, for commands.
pub(crate) fn local_admin(config: &Config, store: &RelayStore) -> Router {
    let admin = Admin {
        engine: engine(config, store, &owner(), Meters::default()),
        credentials: Arc::new(credentials(config, store)),
        is_stopping: Arc::default(),
        bodies: Arc::new(BodyRoom::new(config.bodies)),
    };
    admin::api(admin)
}
