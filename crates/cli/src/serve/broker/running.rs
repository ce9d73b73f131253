//! A broker that runs: its store, its doors, and what is swapped when its settings are read again.

use std::convert::Infallible;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel_broker::{Broker, Identified, Identify, Identity, Parts, admin_router, database, listen_router};
use semel_console::part::{Routed, Section};
use semel_console::{Access, Surface};
use semel_contract::identity::Identity as Way;
use semel_contract::problem::{Kind, Problem};
use semel_contract::time::Timestamp;
use semel_delivery::relay::store::Database;
use semel_gate::Identify as _;
use semel_gateway::{Callers, Peers};
use semel_http::headers::Origin;
use semel_http::{Acceptor, ConnectionSettings, Facts, Handler, Limits};
use semel_store::clock::SystemClock;
use semel_store::limits::{Fallback, Limiter, MemoryLimiter, RedisLimiter};
use semel_store::postgres::{Migrations, Options, PostgresStore};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::NoTls;
use tokio_rustls::rustls::ServerConfig;
use tower::Service;

use super::config::{Config, Who};
use super::sheet::SHEET;
use crate::config::{Store, describe_bounds, redacted};
use crate::exit::{Exit, Stop};
use crate::problems::refusal;
use crate::serve::admin;
use crate::serve::leans::Leaning;
use crate::serve::running::Swappable;
use crate::store::secured;

/// Connections of members: streams, and what publishes beside them.
const CONNECTIONS_MAX: usize = semel_broker::limits::STREAMS_MAX + 10_000;

/// The certificate in force; none means plain HTTP.
type Certificate = Arc<RwLock<Option<Arc<ServerConfig>>>>;

/// How long a clean end may take once streams were told.
const FAREWELL: Duration = Duration::from_secs(2);

/// A broker that runs.
pub(crate) struct Running {
    /// The settings in force.
    pub(crate) config: Config,
    /// Where members connect.
    pub(crate) listen: SocketAddr,
    /// Where operators look.
    pub(crate) admin: SocketAddr,
    access: Access,
    broker: Broker,
    working: semel_broker::Running,
    members: Swappable,
    operators: Swappable,
    certificate: Certificate,
    /// Where budgets are counted for all brokers of the server; as long as it is there.
    _budgets: Option<PostgresStore>,
    acceptor: Arc<Acceptor>,
    serving: JoinHandle<std::io::Result<()>>,
    operating: JoinHandle<std::io::Result<()>>,
}

impl Running {
    /// The broker as the console of another part shows it beside itself.
    pub(crate) fn shown(&self) -> (Routed, Router) {
        part(&self.broker, &self.config)
    }

    /// Opens the store and the doors, and begins to work.
    pub(crate) async fn start(config: Config) -> Result<Self, Stop> {
        let certificate: Certificate = Arc::new(RwLock::new(load_certificate(&config)?));
        let (listener, listen) = bind(config.listen, "--listen").await?;
        let (admin_listener, admin) = bind(config.admin, "--admin").await?;
        let access = access(&config, admin)?;
        let identity = identity(&config)?;
        let failed = |error: String| Stop::new(Exit::Io, format!("failed to start: {error}"));
        let db = open(&config, admin).await?;
        let (limiter, budgets) = limiter(&config).await?;
        let parts = Parts::new(db).limited_by(limiter);
        let broker =
            Broker::open(parts, config.settings.clone()).await.map_err(|error| failed(error.to_string()))?;
        let working = broker.start();
        let members = Swappable::new(listen_router(broker.clone(), identity, config.cors.clone()));
        let operators = Swappable::new(operated(&broker, &config, access.clone()));
        let acceptor = Arc::new(Acceptor::new(CONNECTIONS_MAX));
        let serving = serve(Arc::clone(&acceptor), listener, Arc::clone(&certificate), members.router());
        Ok(Self {
            listen,
            admin,
            working,
            acceptor,
            serving: tokio::spawn(serving),
            operating: tokio::spawn(axum::serve(admin_listener, operators.router()).into_future()),
            access,
            broker,
            members,
            operators,
            certificate,
            _budgets: budgets,
            config,
        })
    }

    /// The broker itself.
    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Puts these settings in force at once, or changes nothing.
    pub(crate) fn reload(&mut self, next: Config) -> Result<(), Stop> {
        let bad = |message: String| Stop::new(Exit::Config, message);
        if let Some(name) = fixed(&self.config, &next) {
            return Err(bad(format!("{name} cannot change while the broker runs: start it again")));
        }
        let certificate = load_certificate(&next)?;
        let access = access(&next, self.admin)?;
        let identity = identity(&next)?;
        self.broker.set_settings(next.settings.clone()).map_err(|error| bad(error.to_string()))?;
        // Nothing below can fail.
        *self.certificate.write().unwrap_or_else(PoisonError::into_inner) = certificate;
        self.members.swap(listen_router(self.broker.clone(), identity, next.cors.clone()));
        self.operators.swap(operated(&self.broker, &next, access.with_sessions_of(&self.access)));
        self.config = next;
        Ok(())
    }

    /// Takes nothing new, ends streams at their cursor, and waits for what is under way.
    pub(crate) async fn stop(self) {
        self.broker.drain();
        self.acceptor.close();
        self.acceptor.empty(Instant::now() + self.config.drain).await;
        self.serving.abort();
        let _ = tokio::time::timeout(FAREWELL, self.working.stop()).await;
        self.operating.abort();
    }
}

/// Builds all that would refuse to start, but for the store and the addresses.
pub(crate) fn check(config: &Config) -> Result<(), Stop> {
    load_certificate(config)?;
    access(config, config.admin)?;
    identity(config)?;
    Ok(())
}

/// Serves members until the acceptor is closed. Who is slow with a head or a body, or takes nothing of its answer, is let go.
async fn serve(
    acceptor: Arc<Acceptor>,
    listener: TcpListener,
    certificate: Certificate,
    router: Router,
) -> std::io::Result<()> {
    let limits = Limits {
        write_timeout: semel_broker::limits::READER_STALL_MAX,
        connections_max: CONNECTIONS_MAX,
        ..Limits::default()
    };
    let settings = || ConnectionSettings {
        tls: certificate.read().unwrap_or_else(PoisonError::into_inner).clone(),
        limits: limits.clone(),
    };
    acceptor.accept(listener, settings, Members(router)).await
}

/// What answers members.
#[derive(Clone)]
struct Members(Router);

impl Handler for Members {
    fn answer(
        &self,
        mut request: Request,
        facts: Facts,
    ) -> impl Future<Output = axum::http::Response<Body>> + Send + 'static {
        request.extensions_mut().insert(facts.origin);
        let mut router = self.0.clone();
        async move {
            let answered: Result<_, Infallible> = router.call(request).await;
            match answered {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
    }
}

async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), Stop> {
    let failed = |error: std::io::Error| {
        Stop::new(Exit::Io, format!("failed to listen on {address}: {error}; choose another with {flag}"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn load_certificate(config: &Config) -> Result<Option<Arc<ServerConfig>>, Stop> {
    let load = |tls: &semel_gateway::Certificates| {
        tls.load().map_err(|error| Stop::new(Exit::Config, format!("broker.tls: {error}")))
    };
    config.tls.as_ref().map(load).transpose()
}

pub(crate) fn access(config: &Config, address: SocketAddr) -> Result<Access, Stop> {
    let files = (config.admin_token_file.as_deref(), config.admin_read_token_file.as_deref());
    config.admin_proxy.believed("broker", admin::access_by("broker", address, files.0, files.1)?)
}

/// Opens the store.
async fn open(config: &Config, admin: SocketAddr) -> Result<Arc<dyn Database>, Stop> {
    let failed = |exit: Exit, error: String| {
        Stop::new(exit, format!("failed to open the store {}: {error}", config.store))
    };
    match &config.store {
        Store::Sqlite(path) => {
            let file = database::open_file(Path::new(path), Arc::new(SystemClock))
                .map_err(|error| failed(Exit::Io, error.to_string()))?;
            file.publish_admin(&admin.to_string()).map_err(|error| failed(Exit::Io, error.to_string()))?;
            Ok(Arc::new(file))
        }
        Store::Postgres(url) => {
            let settings = &config.postgres;
            let migrations = if settings.migrate { Migrations::Apply } else { Migrations::Refuse };
            let (url, tls) =
                secured(url, settings.ca.as_deref()).map_err(|error| failed(Exit::Config, error))?;
            let connected = match tls {
                Some(tls) => database::connect(&url, settings.connections, migrations, tls).await,
                None => database::connect(&url, settings.connections, migrations, NoTls).await,
            };
            let db = connected.map_err(|error| failed(Exit::Unreachable, error.to_string()))?;
            Ok(Arc::new(db))
        }
    }
}

/// What counts budgets: Redis where it is set, else the server where several brokers share one, else this process. The next of these
/// stands in for one that is away.
async fn limiter(config: &Config) -> Result<(Fallback, Option<PostgresStore>), Stop> {
    let own: Arc<dyn Limiter> = Arc::new(MemoryLimiter::default());
    let budgets = match &config.store {
        Store::Postgres(url) if has_rates(config) => Some(budgets(url, config).await?),
        Store::Postgres(_) | Store::Sqlite(_) => None,
    };
    let of_store = budgets.as_ref().map_or(Arc::clone(&own), |store| Arc::new(store.limiter()));
    let Some(url) = &config.redis else { return Ok((Fallback::new(of_store, own), budgets)) };
    let shared = RedisLimiter::at(url)
        .map_err(|error| Stop::new(Exit::Config, format!("broker.redis {}: {error}", redacted(url))))?;
    Ok((Fallback::new(Arc::new(shared), of_store), budgets))
}

/// Whether anything is counted.
fn has_rates(config: &Config) -> bool {
    config.settings.budget.is_some() || config.settings.request_limit.is_some()
}

/// The budgets of a server are the gate's, in the schema `semel`.
async fn budgets(url: &str, config: &Config) -> Result<PostgresStore, Stop> {
    let settings = &config.postgres;
    let migrations = if settings.migrate { Migrations::Apply } else { Migrations::Refuse };
    let options = Options { connections: 2, migrations, ..Options::default() };
    let (url, tls) = secured(url, settings.ca.as_deref()).map_err(|error| Stop::new(Exit::Config, error))?;
    let connected = match tls {
        Some(tls) => PostgresStore::connect_tls(&url, options, tls).await,
        None => PostgresStore::connect(&url, options).await,
    };
    connected.map_err(|error| {
        let what = "failed to open the budgets of all brokers, in the schema of the gate (semel migrate --part gate)";
        Stop::new(Exit::Unreachable, format!("{what} at {}: {error}", config.store))
    })
}

/// By what members are known.
fn identity(config: &Config) -> Result<Identity, Stop> {
    match &config.who {
        Who::Tokens => Ok(Identity::Tokens),
        Who::Verified(way) => {
            let callers = Callers::new(way, config.peers.clone())
                .map_err(|error| Stop::new(Exit::Config, format!("broker.identity: {error}")))?;
            Ok(Identity::Verified(Arc::new(Verified {
                way: way.clone(),
                callers,
                peers: config.peers.clone(),
            })))
        }
    }
}

/// Verifies members as the gate verifies callers.
struct Verified {
    way: Way,
    callers: Callers,
    peers: Peers,
}

impl Identify for Verified {
    fn identify<'a>(&'a self, parts: &'a axum::http::request::Parts) -> Identified<'a> {
        Box::pin(async move {
            let peer = parts.extensions.get::<Origin>().map(|origin| origin.peer);
            if matches!(self.way, Way::Trusted(_)) && !peer.is_some_and(|peer| self.peers.contain(peer)) {
                let why = format!("{} is believed from trusted peers only", self.way);
                return Err(Problem::new(Kind::IdentityMissing, why));
            }
            Ok(self.callers.identify(parts).await?.caller().clone())
        })
    }

    fn expires(&self, parts: &axum::http::request::Parts) -> Option<Timestamp> {
        match self.way {
            Way::Jwt(_) => expiry_of(parts),
            Way::Authorization | Way::Cookie(_) | Way::Shared(_) | Way::Check(_) | Way::Trusted(_) => None,
        }
    }
}

/// When the JSON Web Token of a request ends that was verified: its `exp`.
fn expiry_of(parts: &axum::http::request::Parts) -> Option<Timestamp> {
    let line = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let claims = line.split_once(' ')?.1.trim().split('.').nth(1)?;
    let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    // Fractions count; what is beyond all times does not end.
    let millis = claims.get("exp")?.as_f64()? * 1000.0;
    (millis.abs() < 1e15).then(|| Timestamp::from_millis(millis as i64))
}

/// The broker as the console shows it, and its API.
fn part(broker: &Broker, config: &Config) -> (Routed, Router) {
    let health = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(broker.clone());
    let api = health.merge(admin_router(broker.clone()));
    let store = config.store.clone();
    let part = Routed::new(&SHEET, api.clone()).settings(settings(config));
    (
        part.leaning_on(leaning(broker, config).shown())
            .warned_by(Arc::new(move || crate::serve::disk::warnings(&store))),
        api,
    )
}

/// What a broker leans on.
fn leaning(broker: &Broker, config: &Config) -> Leaning {
    let mut leaning = Leaning::on(&config.store);
    if let Store::Postgres(_) = &config.store {
        let broker = broker.clone();
        leaning.replicas(move || {
            let broker = broker.clone();
            async move { broker.sessions().await.map_err(|error| error.to_string()) }
        });
    }
    if let Some(url) = &config.redis {
        leaning.reaches("Redis", url);
    }
    leaning
}

/// What operators reach: the API and the console.
fn operated(broker: &Broker, config: &Config, access: Access) -> Router {
    let (part, api) = part(broker, config);
    Surface::new(access).part(part).index("semel broker: the admin address; see /openapi.json\n").router(api)
}

/// The settings in force.
fn settings(config: &Config) -> Vec<Section> {
    let of = &config.settings;
    let rows = [
        ("listen", config.listen.to_string()),
        ("admin", config.admin.to_string()),
        ("store", config.store.to_string()),
        ("identity", redacted(&config.who.to_string())),
        ("redis", config.redis.as_deref().map_or_else(|| "none".to_owned(), redacted)),
        ("dedupe_retention", semel_contract::time::format_duration(of.dedupe_retention)),
        ("max_payload", format!("{} bytes", of.inline_bytes)),
        ("limits", describe_bounds(of.bodies)),
        ("drain", semel_contract::time::format_duration(config.drain)),
    ];
    let rows = rows.map(|(name, value)| (name.to_owned(), value)).to_vec();
    vec![Section { title: "Broker".to_owned(), rows, bounds: Vec::new() }]
}

async fn readyz(State(broker): State<Broker>) -> Response {
    match broker.ready().await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, "not-ready", &error.to_string()).into_response()
        }
    }
}

/// Whether budgets would have to be counted for all brokers of a server, and nothing is there that counts them.
fn is_first_rate(before: &Config, next: &Config) -> bool {
    matches!(before.store, Store::Postgres(_)) && !has_rates(before) && has_rates(next)
}

/// A setting that differs and cannot change while the broker runs.
fn fixed(before: &Config, next: &Config) -> Option<&'static str> {
    let settings = [
        ("broker.store", before.store != next.store),
        ("broker.listen", before.listen != next.listen),
        ("broker.admin", before.admin != next.admin),
        ("broker.postgres", before.postgres != next.postgres),
        ("broker.redis", before.redis != next.redis),
        ("broker.budget or broker.request_limit, where there was none,", is_first_rate(before, next)),
        ("broker.tls", before.tls.is_some() != next.tls.is_some()),
    ];
    settings.iter().find(|(_, has_changed)| *has_changed).map(|(name, _)| *name)
}
