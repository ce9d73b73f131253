//! `semel serve gate`: the gate as a reverse proxy. Starts it, swaps its settings on SIGHUP, ends it in good order.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_contract::identity::Identity;
use semel_gateway::Gateway;
use semel_store::clock::SystemClock;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::admin::{self, Admin, admin_router};
use super::sockets::Sockets;
use super::{announce, notify, plan, sockets};
use crate::config::{self, Config, LogTo, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::logging;
use crate::store::{self, Backend, Opened};

/// Run the gate as a reverse proxy in front of a service.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Without a configuration every method but GET, HEAD, OPTIONS and TRACE is keyed when it carries an \
Idempotency-Key.\nSignals: TERM and INT end it once what runs is answered (a second one at once), HUP reads the \
configuration and the certificates anew."
)]
pub(crate) struct Args {
    /// What stands behind the gate, such as http://127.0.0.1:3000.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Where clients connect; port 0 takes a free one. [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators look. [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// The file of the token by which operators may read and change; needed where others reach the admin address.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// The file of the token by which they may only read.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_read_token_file: Option<PathBuf>,
    /// Where records are kept: sqlite:PATH or postgres://… [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Who sends requests: authorization, cookie:NAME, trusted:NAME, jwt:KEYS, check:URL or shared:NAME. [default:
    /// authorization]
    #[arg(long, value_name = "SPEC")]
    pub(crate) identity: Option<String>,
    /// Refuse requests without a key: POST and PATCH, or on every route of the configuration.
    #[arg(long)]
    pub(crate) require_key: bool,
    /// The configuration; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where requests are written down: stderr, off or the path of a file. [default: stderr]
    #[arg(long, value_name = "TO")]
    pub(crate) access_log: Option<String>,
}

impl Args {
    /// The settings: the file's, under the variables', under the flags'.
    pub(crate) fn settings(&self) -> Result<Config, Stop> {
        let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
        let beside = Path::new("semel.toml");
        let named = self.config.as_deref().or_else(|| variables.config().map(Path::new));
        let path = named.or_else(|| beside.exists().then_some(beside));
        let mut config = Config::load(path, &variables)?;
        let usage =
            |flag: &'static str| move |error: String| Stop::new(Exit::Usage, format!("{flag}: {error}"));
        if let Some(url) = &self.upstream {
            config.gate.set_upstream(config::target(url).map_err(usage("--upstream"))?);
        }
        config.gate.listen = self.listen.unwrap_or(config.gate.listen);
        config.gate.admin = self.admin.unwrap_or(config.gate.admin);
        for (file, given) in [
            (&mut config.gate.admin_token_file, &self.admin_token_file),
            (&mut config.gate.admin_read_token_file, &self.admin_read_token_file),
        ] {
            *file = given.clone().or(file.take());
        }
        if let Some(store) = &self.store {
            config.store = Store::read(store).map_err(usage("--store"))?;
        }
        if let Some(identity) = &self.identity {
            config.identity = identity.parse::<Identity>().map_err(usage("--identity"))?;
        }
        if let Some(log) = &self.access_log {
            config.gate.access_log = LogTo::read(log).map_err(usage("--access-log"))?;
        }
        Ok(config)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::start();
    sockets::raise_limit();
    let config = args.settings()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let ended = runtime.block_on(serve(args, config));
    // Detached work was waited for or marked; what is left is nobody's.
    runtime.shutdown_background();
    ended
}

async fn serve(args: &Args, config: Config) -> Result<Exit, Stop> {
    let failed =
        |what: &str, error: std::io::Error| Stop::new(Exit::Io, format!("failed to {what}: {error}"));
    let metrics = admin::count();
    let sockets = Sockets::open(config.gate.listen, config.gate.admin)?;
    // By where it listens, which for a socket that was handed over is not what the settings say.
    let reached_at = sockets.admin.local_addr().map_err(|error| failed("listen", error))?;
    let access = admin::access(&config, reached_at)?;
    let store = store::open(&config).await?;
    let plan = plan::plan(&config, args.require_key, &store)?;
    let gateway = Gateway::new(plan).map_err(|error| Stop::new(Exit::Config, error))?;
    let gate_listener = TcpListener::from_std(sockets.gate).map_err(|error| failed("listen", error))?;
    let admin_listener = TcpListener::from_std(sockets.admin).map_err(|error| failed("listen", error))?;
    let listen = gate_listener.local_addr().map_err(|error| failed("listen", error))?;
    let admin_address = admin_listener.local_addr().map_err(|error| failed("listen", error))?;
    let mut signals = Signals::listen().map_err(|error| failed("listen to signals", error))?;
    note_admin_address(&store.backend, admin_address);
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let is_stopping = Arc::new(AtomicBool::new(false));
    let admin = Admin { store: store.clone(), is_stopping, metrics, access };
    let operators = tokio::spawn(axum::serve(admin_listener, admin_router(&admin, &config)).into_future());
    let sweeper = sweeper(&config, &store);
    let accepting = gateway.clone();
    let clients = tokio::spawn(async move { accepting.serve(gate_listener).await });

    let text = announce::text(&config, args.require_key, listen, admin_address);
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        tracing::warn!(%error, "failed to write to standard output");
    }
    notify::tell(notify::READY);

    let drain = signals.until_end(args, config, &store, &gateway).await;
    notify::tell(notify::STOPPING);
    tracing::info!("shutting down: no new connections; a second signal ends it at once");
    admin.is_stopping.store(true, Ordering::Relaxed);
    let left = tokio::select! {
        left = gateway.shut_down(drain) => left,
        () = signals.end() => {
            tracing::warn!("ended at once by a second signal");
            return Ok(Exit::Success);
        }
    };
    if left > 0 {
        tracing::warn!(left, "requests did not end in time: their outcome is unknown");
    }
    operators.abort();
    sweeper.abort();
    clients.abort();
    Ok(Exit::Success)
}

pub(crate) fn sweeper(config: &Config, store: &Opened) -> tokio::task::JoinHandle<()> {
    let profiles =
        || std::iter::once(&config.defaults).chain(config.routes.iter().map(|route| &route.profile));
    let mut sweep = config.defaults.sweep;
    sweep.when = config.gate.sweep.unwrap_or(sweep.when);
    // One sweeper serves all routes: none of their records goes before its grace.
    let grace = profiles().map(|profile| profile.lifetime.sweep_grace).max().unwrap_or_default();
    semel_gate::sweep_for_ever(Arc::clone(&store.records), Arc::new(SystemClock), sweep, grace)
}

/// Where the command line finds the process that owns a file: the second line of its lock file.
pub(crate) fn note_admin_address(backend: &Backend, address: SocketAddr) {
    let Backend::Sqlite(store) = backend else { return };
    if let Err(error) = store.publish_admin(&address.to_string()) {
        tracing::warn!(%error, "failed to write down the admin address");
    }
}

/// The signals that matter.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Ends when the process is told to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Swaps settings until the process is told to end; then says how long work may still take.
    async fn until_end(
        &mut self,
        args: &Args,
        mut config: Config,
        store: &Opened,
        gateway: &Gateway,
    ) -> std::time::Duration {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return config.gate.drain,
                _ = self.interrupt.recv() => return config.gate.drain,
                _ = self.hang_up.recv() => {
                    notify::tell(&notify::reloading());
                    match reload(args, &config, store, gateway) {
                        Ok(next) => {
                            config = next;
                            tracing::info!("the configuration was read anew and is in force");
                        }
                        Err(Stop { message, .. }) => {
                            tracing::error!("the configuration was refused, the old one stays: {message}");
                        }
                    }
                    notify::tell(notify::READY);
                }
            }
        }
    }
}

/// Reads everything anew and puts it in force at once, or changes nothing.
fn reload(args: &Args, before: &Config, store: &Opened, gateway: &Gateway) -> Result<Config, Stop> {
    let bad = |message: String| Stop::new(Exit::Config, message);
    let next = args.settings()?;
    let fixed = [
        ("store", next.store != before.store),
        ("gate.listen", next.gate.listen != before.gate.listen),
        ("gate.admin", next.gate.admin != before.gate.admin),
    ];
    if let Some((name, _)) = fixed.iter().find(|(_, has_changed)| *has_changed) {
        return Err(bad(format!("{name} cannot change while the gate runs: start it anew")));
    }
    let plan = plan::plan(&next, args.require_key, store)?;
    gateway.swap(plan).map_err(bad)?;
    for warning in next.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(next)
}
