//! The parts that `up` and `storm` start: listeners, the store, small services, and the gate. Each is stopped by whoever
//! started it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use semel_gateway::Gateway;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client;
use crate::config::{self, Config, LogTo, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::serve::{plan, running};
use crate::store::{self, Opened};

/// A folder that is removed with everything in it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, Stop> {
        let path = std::env::temp_dir().join(format!("semel-{}", client::uuid()?));
        std::fs::create_dir(&path)
            .map_err(|error| Stop::new(Exit::Io, format!("failed to create {}: {error}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies among the other temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A service that answers until it is stopped.
#[derive(Debug)]
pub(crate) struct Served(JoinHandle<()>);

impl Served {
    pub(crate) fn stop(self) {
        self.0.abort();
    }
}

/// Listens at an address, named in the message when that fails.
pub(crate) async fn bind(address: SocketAddr, what: &str) -> Result<TcpListener, Stop> {
    TcpListener::bind(address).await.map_err(|error| {
        Stop::new(
            Exit::Io,
            format!("failed to listen on {address} ({what}): {error}; port 0 is any free one"),
        )
    })
}

/// Serves a router.
pub(crate) fn serve(listener: TcpListener, router: Router) -> Served {
    Served(tokio::spawn(async move { drop(axum::serve(listener, router).await) }))
}

/// A gate that is about to stand before a service: its settings, and its store, open.
pub(crate) struct Prepared {
    pub(crate) config: Config,
    pub(crate) store: Opened,
}

/// Opens a gate as it is without a configuration, with its records in this folder.
pub(crate) async fn prepare(folder: &Path, log: LogTo) -> Result<Prepared, Stop> {
    let mut config = Config::load(None, &Variables::default())?;
    config.store = Store::Sqlite(folder.join("semel.db").display().to_string());
    config.gate.access_log = log;
    let store = store::open(&config).await?;
    Ok(Prepared { config, store })
}

/// A gate that stands before a service.
pub(crate) struct Running {
    pub(crate) config: Config,
    pub(crate) store: Opened,
    gateway: Gateway,
    accepting: JoinHandle<()>,
    sweeper: running::Sweepers,
}

impl Prepared {
    /// Lets requests through to the service at this URL.
    pub(crate) fn before(mut self, upstream: &str, listener: TcpListener) -> Result<Running, Stop> {
        let target = config::target(upstream)
            .map_err(|error| Stop::new(Exit::Usage, format!("--upstream: {error}")))?;
        self.config.gate.set_upstream(target);
        let plan = plan::plan(&self.config, false, &self.store)?;
        let gateway = Gateway::new(plan).map_err(|error| Stop::new(Exit::Config, error))?;
        let sweeper = running::sweeper(&self.config, &self.store);
        running::warn_of_dead_upstream(&gateway);
        let accepts = gateway.clone();
        let accepting = tokio::spawn(async move {
            if let Err(error) = accepts.serve(listener).await {
                tracing::error!(%error, "the listener failed");
            }
        });
        let Self { config, store } = self;
        Ok(Running { config, store, gateway, accepting, sweeper })
    }
}

impl Running {
    /// Takes nothing new and finishes what is under way; says how much was left at the end of the time.
    pub(crate) async fn stop(self, within: Duration) -> usize {
        let left = self.gateway.shut_down(within).await;
        self.accepting.abort();
        self.sweeper.abort();
        left
    }
}
