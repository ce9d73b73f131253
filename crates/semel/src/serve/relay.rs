//! `semel serve relay`: accepts changes at once, merges them, and writes them once to a slow third-party service.

mod admin;
mod answer;
pub(crate) mod config;
mod door;
mod intake;
mod openapi;
mod target;

use std::future::IntoFuture;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use semel_delivery::Entropy;
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::store::Database;
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sqlite::{OpenError, Sqlite};
use semel_delivery::relay::{Engine, RelayStore, Worker};
use semel_gateway::Callers;
use semel_store::clock::SystemClock;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::admin::Admin;
use self::config::{Config, Flags};
use self::door::{Identities, Operators};
use self::intake::Intake;
use super::notify;
use crate::config::Store;
use crate::exit::{Exit, Stop};
use crate::{logging, output_failed};

/// How often the store is asked whether it can still be believed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Run the relay: safe, merged, audited writes to a slow third-party API.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "A change is durable before its answer; everything that waits for one lane becomes one write.\nSignals: \
TERM and INT end it once what is being written has ended; what is left is found by the next start or by another replica. HUP \
checks the configuration and changes nothing."
)]
pub(crate) struct Args {
    /// Where senders connect; port 0 takes a free one. [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators look. [default: 127.0.0.1:7421]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// The file of the token that operators must show; needed where others reach the admin address.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Where changes are kept: sqlite:PATH, a file of its own, or postgres://… [default: sqlite:relay.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Who sends: authorization, cookie:NAME, trusted:NAME, jwt:KEYS, check:URL or shared:NAME. [default: authorization]
    #[arg(long, value_name = "SPEC")]
    pub(crate) identity: Option<String>,
    /// The configuration with its targets; without one, what SEMEL_CONFIG names, or ./semel.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl Args {
    fn flags(&self) -> Flags<'_> {
        Flags {
            config: self.config.as_deref(),
            store: self.store.as_deref(),
            identity: self.identity.as_deref(),
            listen: self.listen,
            admin: self.admin,
            admin_token_file: self.admin_token_file.as_deref(),
        }
    }
}

/// A store that is open.
pub(crate) struct Opened {
    pub(crate) store: RelayStore,
    file: Option<Arc<Sqlite>>,
}

/// Why a store cannot be opened here.
pub(crate) enum OpenStop {
    /// Another process owns this file.
    Owned(PathBuf),
    /// Anything else.
    Stop(Stop),
}

/// Opens the relay's store.
pub(crate) async fn open(config: &Config) -> Result<Opened, OpenStop> {
    let failed = |error: String| {
        OpenStop::Stop(Stop::new(Exit::Io, format!("failed to open the store {}: {error}", config.store)))
    };
    match &config.store {
        Store::Sqlite(path) => match Sqlite::open(Path::new(path), Arc::new(SystemClock)) {
            Ok(file) => {
                let file = Arc::new(file);
                let db: Arc<dyn Database> = Arc::<Sqlite>::clone(&file);
                Ok(Opened { store: RelayStore::new(db), file: Some(file) })
            }
            Err(OpenError::Locked(_)) => Err(OpenStop::Owned(PathBuf::from(path))),
            Err(error) => Err(failed(error.to_string())),
        },
        Store::Postgres(url) => {
            let db = Postgres::connect(url, config.connections)
                .await
                .map_err(|error| failed(error.to_string()))?;
            Ok(Opened { store: RelayStore::new(Arc::new(db)), file: None })
        }
    }
}

/// The engine over a store.
pub(crate) fn engine(config: &Config, store: &RelayStore) -> Arc<Engine> {
    let entropy = Entropy::system();
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "relay".to_owned());
    // The name of a host alone could be that of a process that is no more.
    let owner = format!("{host}:{}:{:032x}", std::process::id(), entropy.bits());
    Arc::new(Engine {
        store: store.clone(),
        targets: config.targets.clone(),
        credentials: Arc::clone(&config.wallet) as _,
        entropy,
        clock: Arc::new(SystemClock),
        owner,
        meters: Meters::default(),
        settled: tokio::sync::Notify::new(),
    })
}

/// The admin API within this process, for commands.
pub(crate) fn local_admin(config: &Config, store: &RelayStore) -> Router {
    let admin = Admin {
        engine: engine(config, store),
        wallet: Arc::clone(&config.wallet),
        is_stopping: Arc::default(),
    };
    admin::router(admin, Operators::within_process())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::start();
    let config = Config::load(&args.flags())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let ended = runtime.block_on(serve(&config, &args.flags()));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), Stop> {
    let failed = |error: std::io::Error| {
        Stop::new(Exit::Io, format!("failed to listen on {address}: {error}; choose another with {flag}"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn serve(config: &Config, flags: &Flags<'_>) -> Result<Exit, Stop> {
    let io = |error: std::io::Error| Stop::new(Exit::Io, format!("failed to start: {error}"));
    let callers = Callers::new(&config.identity, config.peers.clone())
        .map_err(|error| Stop::new(Exit::Config, format!("identity: {error}")))?;
    let operators = Operators::on(config.admin, config.admin_token_file.as_deref())?;
    let (listener, listen) = bind(config.listen, "--listen").await?;
    let (admin_listener, admin_address) = bind(config.admin, "--admin").await?;
    let opened = match open(config).await {
        Ok(opened) => opened,
        Err(OpenStop::Stop(stop)) => return Err(stop),
        Err(OpenStop::Owned(path)) => {
            let why = format!(
                "another process owns {}; stop it, or name another file with --store",
                path.display()
            );
            return Err(Stop::new(Exit::Io, why));
        }
    };
    let store_failed = |error| Stop::new(Exit::Io, format!("failed to start: {error}"));
    opened.store.start().await.map_err(store_failed)?;
    if let Some(file) = &opened.file {
        file.publish_admin(&admin_address.to_string()).map_err(io)?;
    }
    let engine = engine(config, &opened.store);
    let worker = Worker::new(Arc::clone(&engine), config.retention, config.parallel);
    let working = tokio::spawn(Arc::clone(&worker).run());
    let is_stopping = Arc::new(AtomicBool::new(false));
    let admin = Admin {
        engine: Arc::clone(&engine),
        wallet: Arc::clone(&config.wallet),
        is_stopping: Arc::clone(&is_stopping),
    };
    let seen = tokio::spawn(axum::serve(admin_listener, admin::router(admin, operators)).into_future());
    let identities = Identities { identity: config.identity.clone(), callers, peers: config.peers.clone() };
    let routes = intake::router(Intake { engine, worker: Arc::clone(&worker), identities });
    let (told, end) = tokio::sync::oneshot::channel::<()>();
    let service = routes.into_make_service_with_connect_info::<SocketAddr>();
    let senders = tokio::spawn(
        axum::serve(listener, service).with_graceful_shutdown(async { drop(end.await) }).into_future(),
    );
    let text = announcement(config, listen, admin_address);
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    let _ = std::io::stdout().flush();
    notify::tell(notify::READY);
    let mut terminate = signal(SignalKind::terminate()).map_err(io)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(io)?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = tokio::time::sleep(LOOK_EVERY) => if opened.store.is_broken() {
                // What is in memory is no evidence: the next start reads what is on disk.
                let why = "a commit failed: the file must be opened anew, start the relay again";
                return Err(Stop::new(Exit::Io, why));
            },
            _ = hang_up.recv() => match Config::load(flags) {
                Ok(_) => tracing::info!("the configuration is sound; start the relay anew to put it in force"),
                Err(Stop { message, .. }) => tracing::error!("the configuration would be refused: {message}"),
            },
        }
    }
    notify::tell(notify::STOPPING);
    tracing::info!("shutting down: no new lanes; a second signal ends it at once");
    is_stopping.store(true, Ordering::Relaxed);
    let _ = told.send(());
    let ending = async {
        let left = worker.stop(config.drain).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), senders).await;
        left
    };
    tokio::select! {
        left = ending => if left > 0 {
            tracing::warn!(left, "lanes were still being written: the next start finds them");
        },
        _ = terminate.recv() => tracing::warn!("ended at once by a second signal"),
        _ = interrupt.recv() => tracing::warn!("ended at once by a second signal"),
    }
    working.abort();
    seen.abort();
    Ok(Exit::Success)
}

fn announcement(config: &Config, listen: SocketAddr, admin: SocketAddr) -> String {
    let targets: Vec<String> = config
        .targets
        .values()
        .map(|target| format!("{} ({}, {})", target.name, target.upstream.origin(), target.tier.name()))
        .collect();
    let targets = match targets.is_empty() {
        true => "none: declare [relay.target.NAME] in semel.toml".to_owned(),
        false => targets.join(", "),
    };
    format!(
        "semel relay\n  listening  http://{listen}\n  admin      http://{admin}\n  store      {}\n  identity   {}\n  \
         targets    {targets}\n",
        config.store, config.identity
    )
}
