//! `semel serve outbox`: the outbox as a daemon. Opens the file, shuts the door behind it, sends until it is told to end.

pub(crate) mod config;
mod file;
mod guard;
pub(crate) mod sheet;
mod values;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::{Router, ServiceExt as _};
use semel_console::part::{Leans, Routed, Section};
use semel_console::{Access, Surface};
use semel_contract::time::format_duration;
use semel_delivery::credentials::Credential;
use semel_delivery::receive::{Receive, Receiving};
use semel_delivery::{Outbox, OutboxError, Sending};
use semel_http::BodyRoom;
use tokio::net::TcpListener;

use self::config::{Config, Listen};
use self::guard::{Guard, OwnSocket, Ticket, own_hosts, token};
use super::disk;
use super::leans::Leaning;
use super::lifecycle::{self, RunningPart};
use super::signals::Reload;
use crate::config::{Store, describe_bounds};
use crate::exit::{Exit, Stop};
use crate::logging;
use crate::outbox::body::Api;
use crate::outbox::front::Front;

/// How long attempts may go on after the end was asked for.
const DRAIN: Duration = Duration::from_secs(10);

/// Run the outbox: a durable local queue that delivers in order, once.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    after_help = "A message is on disk before its 202. Each attempt carries the message's id as its idempotency \
key.\nWith [[outbox.receive]] it follows lines of a mesh and keeps what comes: semel inbox list.\nSignals: TERM and INT end it \
once what runs has ended, at most 10 s later; what is left is sent again by the next start, with the same key. HUP reads \
[[outbox.receive]] again; credentials are read for each attempt."
)]
pub(crate) struct Args {
    /// Where messages are kept: sqlite:PATH, a file of its own. [default: sqlite:outbox.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Where callers connect: unix:PATH, or ADDRESS:PORT with a token. [default: unix:STORE.d/outbox.sock]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// The token that callers on TCP must send.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where operators look with a browser: ADDRESS:PORT. [default: nowhere]
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
    pub(crate) admin: Option<SocketAddr>,
    /// The file of the token that operators must show; needed where others reach the admin address.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Where messages with a path for an address are sent, such as http://127.0.0.1:7400.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// How answers are read and attempts timed: ietf, walker, scores, feed, mesh, … [default: ietf]
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The age at which a message is given up, such as 6d; below the time for which servers know a key again.
    #[arg(long, value_name = "TIME")]
    pub(crate) max_age: Option<String>,
    /// Take the risk of a max age at which the server may have forgotten the key.
    #[arg(long)]
    pub(crate) unsafe_max_age: bool,
    /// What a lane does whose head was given up: skip or block. [default: skip]
    #[arg(long, value_name = "POLICY")]
    pub(crate) head: Option<String>,
    /// Lanes that are sent from at once. [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) parallel: Option<usize>,
    /// How long one attempt may take. [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) attempt_timeout: Option<String>,
    /// Messages that may wait. [default: 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) max_rows: Option<u64>,
    /// Bytes of bodies that may wait. [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::config::bytes)]
    pub(crate) max_bytes: Option<u64>,
    /// Largest body of one message. [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::config::size)]
    pub(crate) max_body: Option<usize>,
    /// How long bodies of finished messages are kept; ids are kept for ever. [default: 7d]
    #[arg(long, value_name = "TIME")]
    pub(crate) keep: Option<String>,
    /// A credential for an origin, by default the upstream's: [ORIGIN=]file:PATH or [ORIGIN=]command:COMMAND.
    #[arg(long, value_name = "PLACE")]
    pub(crate) credential: Vec<String>,
    /// The authorities that servers' certificates are checked against, instead of the web's: a PEM file.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Another name by which callers on TCP may call the outbox.
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<String>,
    /// The configuration, whose table `outbox` counts; without one, what SEMEL_CONFIG names, or ./semel.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::start();
    let config = Config::load(args)?;
    lifecycle::run(async move { Running::start(&config).await.map(|running| Live { running, config, args }) })
}

/// An outbox that runs, its settings, and the flags under which its file is read anew.
struct Live<'a> {
    running: Running,
    config: Config,
    args: &'a Args,
}

impl Reload for Live<'_> {
    async fn reload(&mut self) -> Result<String, Stop> {
        let next = Config::load(self.args)?;
        self.running.receive(&next)?;
        let others = if next.is_otherwise(&self.config) { "; other settings need a new start" } else { "" };
        self.config.receives = next.receives;
        let lines = self.config.receives.len();
        Ok(format!("what is received was read anew and is in force: {lines} lines{others}"))
    }
}

impl RunningPart for Live<'_> {
    const ENDING: &'static str = "no new messages";

    fn announcement(&self) -> String {
        let admin = self.running.operators.as_ref().map(|(admin, _)| *admin);
        announcement(&self.config, &self.running.address, admin)
    }

    async fn stop(self) {
        self.running.stop().await;
    }
}

/// Settings with their values, in words.
type Described = Vec<(&'static str, String)>;

/// What an outbox with these settings is told, or why it would not start; and the files that the settings name. Opens
/// nothing.
pub(crate) fn checked(args: &Args) -> (Result<Described, Stop>, Vec<PathBuf>) {
    let file = match config::read(args.config.as_deref()) {
        Ok(file) => file,
        Err(stop) => return (Err(stop), Vec::new()),
    };
    let named = file.named();
    let about = Config::of(args, file).and_then(|config| {
        ticket(&config)?;
        config.admin.map(|address| access(&config, address)).transpose()?;
        let listen = match &config.listen {
            Listen::Unix(path) => format!("unix:{}", path.display()),
            Listen::Tcp(address) => address.to_string(),
        };
        let settings = &config.settings;
        let max_age = settings.profile.schedule.max_age.map(format_duration).unwrap_or_default();
        let mut about = vec![
            ("listen", listen),
            ("store", format!("sqlite:{}", config.store.display())),
            ("profile", settings.profile.name.to_string()),
            ("max_age", max_age),
            ("limits", describe_bounds(config.bodies)),
        ];
        if let Some(upstream) = &settings.upstream {
            about.push(("upstream", format!("{}{}", upstream.origin, upstream.path)));
        }
        if let Some(mesh) = &config.mesh {
            about.push(("publishes", format!("mesh {} at {}", mesh.name, mesh.broker.origin)));
        }
        if !config.receives.is_empty() {
            about.push(("receives", received(&config)));
        }
        Ok(about)
    });
    (about, named)
}

/// The lines that are followed, in words.
fn received(config: &Config) -> String {
    let line =
        |receive: &Receive| format!("{} of {} at {}", receive.line, receive.mesh, receive.broker.origin);
    config.receives.iter().map(line).collect::<Vec<_>>().join(", ")
}

/// The token that TCP asks for; a socket asks for none.
fn ticket(config: &Config) -> Result<Option<String>, Stop> {
    match &config.listen {
        Listen::Unix(_) => Ok(None),
        Listen::Tcp(_) => {
            let file = config.token_file.as_deref().ok_or_else(|| {
                Stop::new(
                    Exit::Usage,
                    "on TCP every local user could connect: give --token-file FILE, or --listen unix:PATH",
                )
            })?;
            token(file).map(Some)
        }
    }
}

/// A door that is open.
enum Door {
    Unix(OwnSocket),
    Tcp(TcpListener, Ticket),
}

async fn open_door(config: &Config) -> Result<(Door, String), Stop> {
    match &config.listen {
        Listen::Unix(path) => Ok((Door::Unix(OwnSocket::bind(path)?), format!("unix:{}", path.display()))),
        Listen::Tcp(address) => {
            let token = ticket(config)?.unwrap_or_default();
            let failed = |error| Stop::new(Exit::Io, format!("failed to listen on {address}: {error}"));
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let hosts = own_hosts(bound)
                .into_iter()
                .chain(config.allow_hosts.iter().map(|host| host.to_ascii_lowercase()));
            Ok((Door::Tcp(listener, Ticket { token, hosts: hosts.collect() }), format!("http://{bound}")))
        }
    }
}

/// Whom the admin address lets in.
pub(super) fn access(config: &Config, address: SocketAddr) -> Result<Access, Stop> {
    let files = (config.admin_token_file.as_deref(), config.admin_read_token_file.as_deref());
    config.admin_proxy.believed("outbox", super::admin::access_by("outbox", address, files.0, files.1)?)
}

/// The console of the outbox, where it has an address.
async fn operators(
    config: &Config,
    api: &Api,
) -> Result<Option<(SocketAddr, tokio::task::JoinHandle<()>)>, Stop> {
    let Some(address) = config.admin else { return Ok(None) };
    let failed = |error| {
        Stop::new(Exit::Io, format!("failed to listen on {address}: {error}; choose another with --admin"))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let (part, routes) = part(config, api);
    let index = "semel outbox: the admin address; see /openapi.json\n";
    let router = Surface::new(access(config, bound)?).part(part).index(index).router(routes);
    let serving = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
    Ok(Some((bound, serving)))
}

/// The outbox as the console shows it, and the API of operators.
fn part(config: &Config, api: &Api) -> (Routed, Router) {
    let routes = crate::outbox::api::operating(api.clone());
    let store = config.store.clone();
    let part = Routed::new(&sheet::SHEET, routes.clone()).settings(settings(config));
    let part = part.leaning_on(leaning(config).shown());
    (part.warned_by(Arc::new(move || disk::warnings_of(&store))), routes)
}

/// What an outbox leans on.
fn leaning(config: &Config) -> Leaning {
    let mut leaning = Leaning::on(&Store::Sqlite(config.store.display().to_string()));
    if let Some(upstream) = &config.settings.upstream {
        leaning.reaches("service", &upstream.origin);
    }
    let brokers = config.mesh.iter().map(|mesh| &mesh.broker.origin);
    let brokers = brokers.chain(config.receives.iter().map(|receive| &receive.broker.origin));
    for origin in brokers.collect::<BTreeSet<_>>() {
        leaning.reaches("broker", origin);
    }
    leaning
}

/// The settings in force.
fn settings(config: &Config) -> Vec<Section> {
    let settings = &config.settings;
    let listen = match &config.listen {
        Listen::Unix(path) => format!("unix:{}", path.display()),
        Listen::Tcp(address) => address.to_string(),
    };
    let max_age = settings.profile.schedule.max_age.map(format_duration).unwrap_or_default();
    let mut rows = vec![
        ("listen", listen),
        ("store", format!("sqlite:{}", config.store.display())),
        ("profile", settings.profile.name.to_string()),
        ("max_age", max_age),
        ("limits", describe_bounds(config.bodies)),
    ];
    if let Some(upstream) = &settings.upstream {
        rows.push(("upstream", format!("{}{}", upstream.origin, upstream.path)));
    }
    let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    vec![Section { title: "Outbox".to_owned(), rows, bounds: Vec::new() }]
}

/// As whom an outbox publishes and receives.
pub(crate) struct Member {
    pub(crate) broker: String,
    pub(crate) mesh: String,
    pub(crate) topic: String,
    /// The file of the token.
    pub(crate) token: PathBuf,
}

/// An outbox that takes messages and sends them.
pub(crate) struct Running {
    shown: (Vec<Section>, Router, Arc<Leans>),
    operators: Option<(SocketAddr, tokio::task::JoinHandle<()>)>,
    sending: Sending,
    receiving: Arc<Receiving>,
    callers: tokio::task::JoinHandle<()>,
    address: String,
}

impl Running {
    /// Opens the file and the door, and begins to send.
    async fn start(config: &Config) -> Result<Self, Stop> {
        let opened = Outbox::open(&config.store, config.settings.clone()).await;
        let outbox = opened.map_err(|error| {
            let exit = if matches!(error, OutboxError::Unsafe(_)) { Exit::Config } else { Exit::Io };
            Stop::new(exit, format!("{error} ({})", config.store.display()))
        })?;
        let (door, address) = open_door(config).await?;
        note_address(&outbox, &address, config);
        let receiving = outbox.receive(config.receives.clone()).await;
        let receiving =
            receiving.map_err(|error| Stop::new(Exit::Config, format!("outbox.receive: {error}")))?;
        let receiving = Arc::new(receiving);
        let sending = outbox.start();
        let api = Api {
            outbox,
            wallet: config.wallet.clone(),
            mesh: config.mesh.clone().map(Arc::new),
            receiving: Some(Arc::clone(&receiving)),
            bodies: Arc::new(BodyRoom::new(config.bodies)),
        };
        let routes = crate::outbox::api::operating(api.clone());
        let shown = (settings(config), routes, leaning(config).shown());
        let operators = operators(config, &api).await?;
        let callers = tokio::spawn(async move {
            let served = match door {
                Door::Unix(socket) => {
                    axum::serve(socket, Front::new(api, Guard(None)).into_make_service()).await
                }
                Door::Tcp(listener, ticket) => {
                    let guard = Guard(Some(Arc::new(ticket)));
                    axum::serve(listener, Front::new(api, guard).into_make_service()).await
                }
            };
            if let Err(error) = served {
                tracing::error!(%error, "the outbox takes no more messages");
            }
        });
        Ok(Self { shown, operators, sending, receiving, callers, address })
    }

    /// Receives what these settings say from now on.
    fn receive(&self, next: &Config) -> Result<(), Stop> {
        let bad = |why| Stop::new(Exit::Config, format!("outbox.receive: {why}"));
        self.receiving.replace(next.receives.clone()).map_err(bad)
    }

    /// An outbox in this folder that sends through a gate, and is a member of a mesh, for `semel up`.
    pub(crate) async fn beside(
        folder: &Path,
        gate: SocketAddr,
        member: Option<Member>,
    ) -> Result<Self, Stop> {
        let args = Args {
            store: Some(format!("sqlite:{}", folder.join("outbox.db").display())),
            upstream: Some(format!("http://{gate}")),
            ..Args::default()
        };
        let file = member.map(config::File::of_member).transpose();
        let file = file.map_err(|error| Stop::new(Exit::Config, error))?.unwrap_or_default();
        let config = Config::of(&args, file)?;
        let headers = vec![("Authorization".to_owned(), "Bearer demo".to_owned())];
        if let Some(upstream) = &config.settings.upstream {
            config.wallet.give("default", &upstream.origin, Credential { headers });
        }
        Self::start(&config).await
    }

    /// The outbox as the console of another part shows it beside itself.
    pub(crate) fn shown(&self) -> Routed {
        let (settings, routes, leans) = &self.shown;
        Routed::new(&sheet::SHEET, routes.clone()).settings(settings.clone()).leaning_on(Arc::clone(leans))
    }

    /// Takes no more messages, and waits for attempts that run.
    pub(crate) async fn stop(self) {
        self.callers.abort();
        if let Some((_, serving)) = &self.operators {
            serving.abort();
        }
        tokio::join!(self.receiving.stop(DRAIN), self.sending.stop(DRAIN));
    }
}

/// Where the command line finds the process that owns a file: the second line of its lock file; the third names the file
/// of the token.
fn note_address(outbox: &Outbox, address: &str, config: &Config) {
    let Some(path) = outbox.lock_file() else { return };
    let token = config.token_file.as_ref().and_then(|path| path.canonicalize().ok());
    let token = token.map(|path| path.display().to_string()).unwrap_or_default();
    let address = match address.strip_prefix("unix:") {
        Some(path) => {
            std::fs::canonicalize(path).map_or(address.to_owned(), |path| format!("unix:{}", path.display()))
        }
        None => address.to_owned(),
    };
    if let Err(error) = std::fs::write(path, format!("{}\n{address}\n{token}\n", std::process::id())) {
        tracing::warn!(%error, "failed to write down the address");
    }
}

fn announcement(config: &Config, address: &str, admin: Option<SocketAddr>) -> String {
    let settings = &config.settings;
    let mut text = "semel outbox is ready\n".to_owned();
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<11}{value}\n"));
    line("listening", address);
    if let Some(admin) = admin {
        line("admin", &format!("http://{admin}"));
    }
    line("store", &format!("sqlite:{}", config.store.display()));
    if let Some(upstream) = &settings.upstream {
        line("upstream", &format!("{}{}", upstream.origin, upstream.path));
    }
    let max_age = settings.profile.schedule.max_age.map(format_duration).unwrap_or_default();
    line("profile", &format!("{}, messages are given up after {max_age}", settings.profile.name));
    if let Some(mesh) = &config.mesh {
        line("publishes", &format!("mesh {} at {}", mesh.name, mesh.broker.origin));
    }
    if !config.receives.is_empty() {
        line("receives", &received(config));
    }
    let url = if settings.upstream.is_some() { "/orders" } else { "http://127.0.0.1:3000/orders" };
    let body = format!("'{{\"request\":{{\"method\":\"POST\",\"url\":\"{url}\",\"body\":{{}}}}}}'");
    let curl = match &config.listen {
        Listen::Unix(path) => format!("curl --unix-socket {} http://outbox/v1/send", path.display()),
        Listen::Tcp(_) => format!("curl {address}/v1/send -H \"Authorization: Bearer $TOKEN\""),
    };
    line("try", &format!("{curl} -H 'Content-Type: application/json' -d {body}"));
    text
}
