//! A relay that runs, and everything about it that is swapped together when its settings are read anew.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use semel_console::part::Routed;
use semel_console::{Access, Surface};
use semel_delivery::relay::hints::{Hints, NoHints};
use semel_delivery::relay::meters::Meters;
use semel_delivery::relay::{Engine, Worker};
use semel_gateway::{Callers, GatewayError};
use semel_http::BodyRoom;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::admin;
use super::browsers;
use super::callers::Identities;
use super::config::Config;
use super::context::Admin;
use super::hints::{RedisHints, Tasks};
use super::intake::{self, Intake};
use super::open::{OpenStop, Opened, Purpose, credentials, engine, open, owner};
use super::sheet::SHEET;
use crate::config::{Store, redacted};
use crate::exit::{Exit, Stop};
use crate::serve::leans::Leaning;
use crate::serve::running::Swappable;

/// How long senders are waited for once nothing is written any more.
const FAREWELL: Duration = Duration::from_secs(2);
/// Targets that the first page of the console asks after.
const TARGETS_ASKED_MAX: usize = 20;

/// A relay that runs.
pub(crate) struct Running {
    /// The settings in force.
    pub(crate) config: Config,
    /// Where senders connect.
    pub(crate) listen: SocketAddr,
    /// Where operators look.
    pub(crate) admin: SocketAddr,
    opened: Opened,
    owner: String,
    meters: Meters,
    hints: Option<Arc<RedisHints>>,
    _hinting: Option<Tasks>,
    /// The worker in force, for whoever hears of work.
    worker: Arc<RwLock<Arc<Worker>>>,
    working: JoinHandle<()>,
    /// Workers of former settings, until what they write is written.
    former: Vec<JoinHandle<usize>>,
    senders: Swappable,
    operators: Swappable,
    serving: Serving,
    is_stopping: Arc<AtomicBool>,
    bodies: Arc<BodyRoom>,
}

/// The tasks that serve.
struct Serving {
    told: oneshot::Sender<()>,
    senders: JoinHandle<std::io::Result<()>>,
    operators: JoinHandle<std::io::Result<()>>,
}

/// What settings become: who works, and what is served.
struct Parts {
    worker: Arc<Worker>,
    senders: Router,
    operators: Router,
    bodies: Arc<BodyRoom>,
}

async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), Stop> {
    let failed = |error: std::io::Error| {
        Stop::new(Exit::Io, format!("failed to listen on {address}: {error}; choose another with {flag}"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl Running {
    /// The relay as another process part's console shows it beside itself.
    pub(crate) fn shown(&self) -> (Routed, Router) {
        let engine = engine(&self.config, &self.opened.store, &self.owner, self.meters.clone());
        let credentials = Arc::new(credentials(&self.config, &self.opened.store));
        let (is_stopping, bodies) = (Arc::clone(&self.is_stopping), Arc::clone(&self.bodies));
        part(&self.config, Admin { engine, credentials, is_stopping, bodies })
    }

    /// Opens the store and the doors, and begins to work.
    pub(crate) async fn start(config: Config) -> Result<Self, Stop> {
        check(&config)?;
        let (listener, listen) = bind(config.listen, "--listen").await?;
        let (admin_listener, admin) = bind(config.admin, "--admin").await?;
        let opened = open(&config, Purpose::Serve).await.map_err(|stop| match stop {
            OpenStop::Stop(stop) => stop,
            OpenStop::Owned(path) => {
                let path = path.display();
                let why = format!("another process owns {path}; stop it, or name another file with --store");
                Stop::new(Exit::Io, why)
            }
        })?;
        let failed = |error: &dyn std::fmt::Display| Stop::new(Exit::Io, format!("failed to start: {error}"));
        opened.store.start().await.map_err(|error| failed(&error))?;
        if let Some(file) = &opened.file {
            file.publish_admin(&admin.to_string()).map_err(|error| failed(&error))?;
        }
        let owner = owner();
        let hints = match &config.redis {
            None => None,
            Some(url) => Some(RedisHints::at(url, opened.store.clone(), &owner).map_err(|error| {
                Stop::new(Exit::Config, format!("relay.redis {}: {error}", redacted(url)))
            })?),
        };
        let (meters, is_stopping) = (Meters::default(), Arc::new(AtomicBool::new(false)));
        let made = parts(&config, &opened, &owner, &meters, hints.as_ref(), &is_stopping, admin)?;
        let worker = Arc::new(RwLock::new(Arc::clone(&made.worker)));
        let hinting = hints.as_ref().map(|hints| {
            let current = Arc::clone(&worker);
            hints.start(move || current.read().unwrap_or_else(PoisonError::into_inner).wake())
        });
        let working = tokio::spawn(made.worker.run());
        let (senders, operators) = (Swappable::new(made.senders), Swappable::new(made.operators));
        let (told, end) = oneshot::channel::<()>();
        let service = senders.router().into_make_service_with_connect_info::<SocketAddr>();
        let serving = Serving {
            told,
            senders: tokio::spawn(
                axum::serve(listener, service)
                    .with_graceful_shutdown(async { drop(end.await) })
                    .into_future(),
            ),
            operators: tokio::spawn(axum::serve(admin_listener, operators.router()).into_future()),
        };
        Ok(Self {
            config,
            listen,
            admin,
            opened,
            owner,
            meters,
            hints,
            _hinting: hinting,
            worker,
            working,
            former: Vec::new(),
            senders,
            operators,
            serving,
            is_stopping,
            bodies: made.bodies,
        })
    }

    /// Puts these settings in force at once, or changes nothing. What is being written is written as it began.
    pub(crate) fn reload(&mut self, next: Config) -> Result<(), Stop> {
        if let Some(name) = fixed(&self.config, &next) {
            let why = format!("{name} cannot change while the relay runs: start it anew");
            return Err(Stop::new(Exit::Config, why));
        }
        let (opened, hints) = (&self.opened, self.hints.as_ref());
        let made = parts(&next, opened, &self.owner, &self.meters, hints, &self.is_stopping, self.admin)?;
        // Nothing below can fail.
        for name in self.config.targets.keys().filter(|name| !next.targets.contains_key(*name)) {
            tracing::warn!(target_name = name, "a target is gone: what waits for it waits until it is back");
        }
        let former = {
            let mut current = self.worker.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&made.worker))
        };
        self.senders.swap(made.senders);
        self.operators.swap(made.operators);
        self.bodies = made.bodies;
        let drain = self.config.drain;
        self.former.retain(|ending| !ending.is_finished());
        self.former.push(tokio::spawn(async move { former.stop(drain).await }));
        self.working = tokio::spawn(made.worker.run());
        self.config = next;
        Ok(())
    }

    /// Takes nothing new, and waits for what is being written. Returns how many lanes are left.
    pub(crate) async fn stop(self) -> usize {
        self.is_stopping.store(true, Ordering::Relaxed);
        let _ = self.serving.told.send(());
        let worker = Arc::clone(&self.worker.read().unwrap_or_else(PoisonError::into_inner));
        let mut left = worker.stop(self.config.drain).await;
        for former in self.former {
            left += former.await.unwrap_or(0);
        }
        let _ = tokio::time::timeout(FAREWELL, self.serving.senders).await;
        self.working.abort();
        self.serving.operators.abort();
        left
    }
}

/// What is refused before anything is opened.
pub(super) fn check(config: &Config) -> Result<(), Stop> {
    if config.targets.is_empty() {
        let why = "there is no target: declare one under [relay.target.NAME], in semel.toml or in what --config names";
        return Err(Stop::new(Exit::Config, why));
    }
    Callers::new(&config.identity, config.peers.clone()).map_err(bad_identity)?;
    access(config, config.admin).map(drop)
}

/// Whom the admin address lets in.
pub(crate) fn access(config: &Config, admin: SocketAddr) -> Result<Access, Stop> {
    let files = (config.admin_token_file.as_deref(), config.admin_read_token_file.as_deref());
    let access = crate::serve::admin::access_by("relay", admin, files.0, files.1)?;
    config.admin_proxy.believed("relay", access)
}

/// The relay as the console shows it, and its API.
fn part(config: &Config, of_admin: Admin) -> (Routed, Router) {
    let leans = leaning(config, &of_admin.engine).shown();
    let api = admin::api(of_admin);
    let store = config.store.clone();
    let part = Routed::new(&SHEET, api.clone()).settings(super::settings::relay_sections(config));
    (part.leaning_on(leans).warned_by(Arc::new(move || crate::serve::disk::warnings(&store))), api)
}

/// What a relay leans on.
fn leaning(config: &Config, engine: &Arc<Engine>) -> Leaning {
    let mut leaning = Leaning::on(&config.store);
    if let Store::Postgres(_) = &config.store {
        let engine = Arc::clone(engine);
        leaning.replicas(move || {
            let engine = Arc::clone(&engine);
            async move { engine.store.sessions().await.map_err(|error| error.to_string()) }
        });
    }
    if let Some(url) = &config.redis {
        leaning.reaches("Redis", url);
    }
    let origins: BTreeSet<&str> = config.targets.values().map(|target| target.upstream.origin()).collect();
    for origin in origins.into_iter().take(TARGETS_ASKED_MAX) {
        leaning.reaches("target", origin);
    }
    leaning
}

fn bad_identity(error: GatewayError) -> Stop {
    Stop::new(Exit::Config, format!("identity: {error}"))
}

fn parts(
    config: &Config,
    opened: &Opened,
    owner: &str,
    meters: &Meters,
    hints: Option<&Arc<RedisHints>>,
    is_stopping: &Arc<AtomicBool>,
    admin: SocketAddr,
) -> Result<Parts, Stop> {
    let callers = Callers::new(&config.identity, config.peers.clone()).map_err(bad_identity)?;
    let access = access(config, admin)?;
    let engine: Arc<Engine> = engine(config, &opened.store, owner, meters.clone());
    let shared: Arc<dyn Hints> = match hints {
        Some(hints) => {
            hints.speak_of(&config.targets);
            Arc::<RedisHints>::clone(hints)
        }
        None => Arc::new(NoHints),
    };
    let worker = Worker::hinted(Arc::clone(&engine), config.retention, config.parallel, shared, config.poll);
    let bodies = Arc::new(BodyRoom::new(config.bodies));
    let of_admin = Admin {
        engine: Arc::clone(&engine),
        bodies: Arc::clone(&bodies),
        credentials: Arc::new(credentials(config, &opened.store)),
        is_stopping: Arc::clone(is_stopping),
    };
    let identities = Identities { identity: config.identity.clone(), callers, peers: config.peers.clone() };
    let intake = Intake {
        engine,
        worker: Arc::clone(&worker),
        identities,
        hints: hints.cloned(),
        age_max: config.retention.client_max_age,
        bodies: Arc::clone(&bodies),
    };
    Ok(Parts {
        worker,
        bodies,
        senders: browsers::open_to(config.cors.as_ref(), intake::router(intake)),
        operators: {
            let (part, api) = part(config, of_admin);
            Surface::new(access).part(part).index(admin::INDEX).router(api)
        },
    })
}

/// A setting that differs and cannot change while the relay runs.
fn fixed(before: &Config, next: &Config) -> Option<&'static str> {
    let settings = [
        ("store", before.store != next.store),
        ("relay.listen", before.listen != next.listen),
        ("relay.admin", before.admin != next.admin),
        ("relay.postgres", before.postgres != next.postgres),
        ("relay.redis", before.redis != next.redis),
    ];
    settings.iter().find(|(_, has_changed)| *has_changed).map(|(name, _)| *name)
}
