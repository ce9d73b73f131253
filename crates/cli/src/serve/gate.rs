//! `semel serve gate`: the gate as a reverse proxy. Starts it and ends it in good order.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::profile::OnError;
use semel_gateway::{Gateway, Limits};
use semel_store::admin::ClockState;
use tokio::net::TcpListener;

use super::admin::{self, Admin, admin_router};
use super::running::{Running, Swappable, sweeper, warn_of_dead_upstream};
use super::signals::Signals;
use super::sockets::Sockets;
use super::{announce, notify, plan, sockets};
use crate::config::{self, Config, LogTo, Mode, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::logging;
use crate::store::{self, Backend, Opened};

/// Run the gate as a reverse proxy in front of a service.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "As long as no route is declared, every method but GET, HEAD, OPTIONS and TRACE is protected when it carries \
an Idempotency-Key.\nSignals: TERM and INT end it once what runs is answered (a second one at once), \
HUP reads the configuration and the certificates again."
)]
pub(crate) struct Args {
    /// What stands behind the gate, such as http://127.0.0.1:3000, or 127.0.0.1:3000 for plain HTTP.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// Where clients connect, such as 127.0.0.1:7400 or :7400, which is the same; port 0 takes a free one.
    /// [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR", value_parser = config::address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators look. [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDR", value_parser = config::address)]
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
    /// Change nothing: requests pass as if there were no gate, and would-be duplicates are counted and logged.
    #[arg(long)]
    pub(crate) observe: bool,
    /// How long the service may take to begin its answer, such as 60s. [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = config::duration)]
    pub(crate) timeout: Option<Duration>,
    /// What a retry gets after a 5xx: `replay`, the same answer, or `release`: it runs again, for a service that rolls back
    /// on error. [default: replay]
    #[arg(long, value_name = "WORD", value_parser = ["replay", "release"])]
    pub(crate) on_error: Option<String>,
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
        if let (Some(timeout), Some(upstream)) = (self.timeout, &mut config.gate.upstream) {
            upstream.timeout = timeout;
        }
        if self.observe {
            config.gate.mode = Mode::Observe;
        }
        if let Some(word) = &self.on_error {
            let on_error = OnError::read(word).map_err(usage("--on-error"))?;
            config.defaults.on_error = on_error;
            config.routes.iter_mut().for_each(|route| route.profile.on_error = on_error);
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
            config.identity = <Identity as Setting>::read(identity).map_err(usage("--identity"))?;
        }
        if let Some(log) = &self.access_log {
            config.gate.access_log = LogTo::read(log).map_err(usage("--access-log"))?;
        }
        let gate = &config.gate;
        if gate.listen == gate.admin && gate.listen.port() != 0 {
            let why = format!(
                "--listen and --admin are both {}: operators need an address of their own",
                gate.listen
            );
            return Err(Stop::new(Exit::Usage, why));
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
    // By where they listen, which for sockets that were handed over is not what the settings say.
    let listen = sockets.gate.local_addr().map_err(|error| failed("listen", error))?;
    let reached_at = sockets.admin.local_addr().map_err(|error| failed("listen", error))?;
    let access = admin::access(&config, reached_at)?;
    if let Some(upstream) = config.gate.upstream.as_ref().filter(|upstream| upstream.target.is_at(listen)) {
        return Err(Stop::new(Exit::Usage, format!("the upstream {} is this gate itself", upstream.target)));
    }
    let store = store::open(&config).await?;
    warn_of_frozen_clock(&store).await;
    let plan = plan::plan(&config, args.require_key, &store)?;
    plan.gate.prepare().await.map_err(|error| Stop::new(Exit::Config, error.to_string()))?;
    let gateway = Gateway::new(plan).map_err(|error| Stop::new(Exit::Config, error))?;
    let gate_listener = TcpListener::from_std(sockets.gate).map_err(|error| failed("listen", error))?;
    let admin_listener = TcpListener::from_std(sockets.admin).map_err(|error| failed("listen", error))?;
    let mut signals = Signals::listen().map_err(|error| failed("listen to signals", error))?;
    note_admin_address(&store.backend, reached_at);
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    admin::warn_of_restores(&config, &store).await;
    let admin = Admin { store: store.clone(), is_stopping: Arc::default(), metrics, access };
    let operators = Swappable::new(admin_router(&admin, &config));
    let asked = tokio::spawn(semel_gateway::serve(admin_listener, Limits::default(), operators.router()));
    let sweeper = sweeper(&config, &store);
    warn_of_dead_upstream(&gateway);
    let accepting = gateway.clone();
    let clients = tokio::spawn(async move { accepting.serve(gate_listener).await });
    let text = announce::text(&config, args.require_key, listen, reached_at);
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        tracing::warn!(%error, "failed to write to standard output");
    }
    notify::tell(notify::READY);

    let mut running =
        Running { args: args.clone(), config, store, gateway, admin, reached_at, operators, sweeper };
    signals.until_end(&mut running).await;
    notify::tell(notify::STOPPING);
    running.admin.is_stopping.store(true, Ordering::Relaxed);
    tracing::info!("shutting down: no new connections; a second signal ends it at once");
    let left = tokio::select! {
        left = running.gateway.shut_down(running.config.gate.drain) => left,
        () = signals.end() => {
            tracing::warn!("ended at once by a second signal");
            return Ok(Exit::Success);
        }
    };
    if left > 0 {
        tracing::warn!(left, "requests did not end in time: their outcome is unknown");
    }
    running.sweeper.abort();
    asked.abort();
    clients.abort();
    Ok(Exit::Success)
}

/// Says so where the store does not believe its clock at start: nothing expires until somebody does something.
async fn warn_of_frozen_clock(store: &Opened) {
    let Ok(ClockState { jump_millis: Some(ahead), .. }) = store.operated.clock().await else { return };
    tracing::warn!(
        ahead_seconds = ahead / 1000,
        "the clock is ahead of the store's time, and nothing explains it: nothing expires. Mend the clock, or confirm \
         it with `semel gate clock --confirm --reason …`"
    );
}

/// Where the command line finds the process that owns a file: the second line of its lock file.
pub(crate) fn note_admin_address(backend: &Backend, address: SocketAddr) {
    let Backend::Sqlite(store) = backend else { return };
    if let Err(error) = store.publish_admin(&address.to_string()) {
        tracing::warn!(%error, "failed to write down the admin address");
    }
}
