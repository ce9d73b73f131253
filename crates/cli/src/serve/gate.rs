//! `semel serve gate`: the gate as a reverse proxy. Starts it and ends it in good order.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use semel_console::History;
use semel_gateway::{Gateway, Limits};
use semel_http::Cores;
use semel_store::admin::ClockState;
use tokio::net::TcpListener;

use super::admin::{self, Admin, admin_router};
pub(crate) use super::args::Args;
use super::running::{Running, Swappable, sweeper, warn_of_dead_upstream};
use super::signals::Signals;
use super::sockets::Sockets;
use super::{announce, notify, plan, sockets};
use crate::config::Config;
use crate::exit::{Exit, Stop};
use crate::logging;
use crate::store::{self, Backend, Opened};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    sockets::raise_limit();
    let config = args.settings()?;
    logging::start_as(config.gate.log_format);
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
    let cores = Cores::start(config.gate.cores(), || Box::pin(semel_store::inbox::receive()));
    let cores = cores.map_err(|error| failed("start a core", error))?;
    let gateway = Gateway::on(cores, plan).map_err(|error| Stop::new(Exit::Config, error))?;
    let gate_listener = TcpListener::from_std(sockets.gate).map_err(|error| failed("listen", error))?;
    let admin_listener = TcpListener::from_std(sockets.admin).map_err(|error| failed("listen", error))?;
    let mut signals = Signals::listen().map_err(|error| failed("listen to signals", error))?;
    note_admin_address(&store.backend, reached_at);
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    admin::warn_of_restores(&config, &store).await;
    let admin = Admin {
        store: store.clone(),
        is_stopping: Arc::default(),
        metrics,
        access,
        history: History::default(),
    };
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
