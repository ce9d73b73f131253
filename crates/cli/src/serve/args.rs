//! What `semel serve gate` is told: its flags, over the variables, over the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::profile::OnError;

use crate::config::{self, Config, LogTo, Mode, Setting, Store, Variables};
use crate::exit::{Exit, Stop};

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
    /// Where requests are written down: stderr, off or the path of a file; 1/100 writes one in a hundred, alone to stderr and
    /// before a path to a file. [default: stderr]
    #[arg(long, value_name = "TO")]
    pub(crate) access_log: Option<String>,
    /// Cores that serve connections. [default: all that the process may use]
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<usize>,
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
        if let Some(cores) = self.cores {
            config.gate.cores = Some(config::cores(cores).map_err(usage("--cores"))?);
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
