//! `semel serve relay`: accepts changes at once, merges them, and writes them once to a slow third-party service.

mod access;
mod admin;
mod answer;
mod browsers;
pub(crate) mod callers;
pub(crate) mod config;
mod context;
mod file;
mod hints;
mod intake;
mod numbers;
mod open;
mod openapi;
mod running;
pub(crate) mod settings;
pub(crate) mod sheet;
mod target;
mod values;
mod wording;

use std::net::SocketAddr;
use std::path::PathBuf;

use semel_contract::identity::Identity;
use semel_contract::key::Source;
use semel_contract::profile::Generator;
use semel_contract::time::Timestamp;
use semel_delivery::Entropy;

use self::config::{Config, Flags};
pub(crate) use self::open::{OpenStop, Purpose, local_admin, open};
pub(crate) use self::running::Running;
#[cfg(test)]
pub(crate) use self::running::access;
use super::lifecycle::{self, RunningPart};
use super::signals::{IN_FORCE, Reload};
use crate::config::redacted;
use crate::exit::{Exit, Stop};
use crate::logging;

/// Run the relay: safe, merged, audited writes to a slow third-party API.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
A change is durable before its answer; everything that waits for one lane becomes one write to the target. Targets and \
credentials are declared in semel.toml: [relay.target.NAME] and [[relay.credential]].

  curl http://127.0.0.1:7420/v1/relay/NAME -H 'X-Idempotency-Key: 7f3c' -H 'Authorization: Bearer alice' \\
       -d '{\"items\":[{\"lane\":\"12\",\"value\":5}]}'

Several relays may share one PostgreSQL; with --redis they wake each other. `semel check` says whether a configuration \
would be refused, `semel relay list` what waits.

Signals: TERM and INT end it once what is being written has ended (a second one at once); what is left is found by the next \
start or by another replica. HUP reads targets, credentials and all other settings anew; what is unsafe is refused and the \
old settings stay.")]
pub(crate) struct Args {
    /// Where senders connect; port 0 takes a free one. [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Where operators look. [default: 127.0.0.1:7421]
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address)]
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
    /// Where replicas wake each other: redis://… Without it they look at the store every second. [default: relay.redis]
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
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
            redis: self.redis.as_deref(),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::start();
    let config = Config::load(&args.flags())?;
    lifecycle::run(async {
        Running::start(config).await.map(|running| Live { running, flags: args.flags() })
    })
}

/// A relay that runs, and the flags under which its file is read anew.
struct Live<'a> {
    running: Running,
    flags: Flags<'a>,
}

impl Reload for Live<'_> {
    async fn reload(&mut self) -> Result<String, Stop> {
        self.running.reload(Config::load(&self.flags)?)?;
        Ok(IN_FORCE.to_owned())
    }
}

impl RunningPart for Live<'_> {
    const ENDING: &'static str = "no new lanes";

    fn announcement(&self) -> String {
        announcement(&self.running)
    }

    async fn stop(self) {
        let left = self.running.stop().await;
        if left > 0 {
            tracing::warn!(left, "lanes were still being written: the next start finds them");
        }
    }
}

/// What a relay with these settings would refuse before it opens anything.
pub(crate) fn check(config: &Config) -> Result<(), Stop> {
    running::check(config)?;
    if let crate::config::Store::Postgres(url) = &config.store {
        let secured = crate::store::secured(url, config.postgres.ca.as_deref());
        secured.map_err(|error| Stop::new(Exit::Config, format!("relay.postgres: {error}")))?;
    }
    Ok(())
}

fn announcement(running: &Running) -> String {
    let Running { config, listen, admin, .. } = running;
    let targets: Vec<String> = config
        .targets
        .values()
        .map(|target| format!("{} ({}, {})", target.name, target.upstream.origin(), target.tier.name()))
        .collect();
    let targets = targets.join(", ");
    let hints =
        config.redis.as_ref().map_or_else(String::new, |url| format!("  redis      {}\n", redacted(url)));
    let given = match &config.keys {
        Some(keys) => format!("from files, commands and calls, sealed under {}", keys.writing_id()),
        None => "from files and commands; none by call without [relay.at_rest]".to_owned(),
    };
    let tried = config.targets.keys().next().map_or_else(String::new, |name| attempt(running, name));
    format!(
        "semel relay is ready\n  listening  http://{listen}\n  admin      http://{admin}\n  store      {}\n  identity   {}\n  \
         targets    {targets}\n  credential {given}\n{hints}{tried}",
        config.store, config.identity
    )
}

/// A command to try the relay with. Sent twice, it is one change.
fn attempt(running: &Running, target: &str) -> String {
    let config = &running.config;
    let profile = config.targets.get(target).map(|target| &target.profile);
    let header = profile.and_then(|profile| profile.key.sources.first());
    let header = match header {
        Some(Source::Header(name)) => name.as_str(),
        Some(Source::Json(_)) | None => return String::new(),
    };
    let whose = match &config.identity {
        Identity::Authorization => " -H 'Authorization: Bearer alice'".to_owned(),
        Identity::Cookie(name) => format!(" -H 'Cookie: {name}=alice'"),
        Identity::Trusted(name) => format!(" -H '{name}: alice'"),
        Identity::Jwt(_) => " -H 'Authorization: Bearer TOKEN'".to_owned(),
        Identity::Check(_) | Identity::Shared(_) => String::new(),
    };
    let key = Generator::Uuid4.mint(Entropy::system().bits(), Timestamp::from_millis(0));
    format!(
        "  try        curl http://{}/v1/relay/{target}{whose} -H '{header}: {}' -d '{{\"items\":[{{\"lane\":\"12\",\"value\":5}}]}}'\n  \
         \x20          (send it twice: it is one change)\n",
        running.listen,
        key.as_str(),
    )
}
