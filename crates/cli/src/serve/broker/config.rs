//! What the broker is told: the table `[broker]` of the configuration, under the flags. What is unsafe is refused here, before
//! anything runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_broker::Settings;
use semel_contract::identity::Identity;
use semel_gateway::{Callers, Certificates, Peers};
use semel_http::Cors;
use serde::Deserialize;

use super::Args;
use super::file::File;
use crate::config::{RedisUrl, Setting, Store, body_bounds};
use crate::exit::{Exit, Stop};
use crate::serve::admin::Proxy;

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, Default, Deserialize)]
struct Whole {
    #[serde(default)]
    broker: File,
}

/// By what members are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// By the tokens that they were made with.
    Tokens,
    /// By something that verifies them.
    Verified(Identity),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Tokens => f.write_str("tokens"),
            Who::Verified(identity) => identity.fmt(f),
        }
    }
}

/// The store in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Postgres {
    pub(crate) connections: usize,
    pub(crate) migrate: bool,
    pub(crate) ca: Option<PathBuf>,
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_read_token_file: Option<PathBuf>,
    /// A proxy of one's own that says which operator asks.
    pub(crate) admin_proxy: Proxy,
    pub(crate) store: Store,
    pub(crate) who: Who,
    pub(crate) peers: Peers,
    pub(crate) redis: Option<String>,
    pub(crate) settings: Settings,
    pub(crate) cors: Option<Cors>,
    pub(crate) tls: Option<Certificates>,
    pub(crate) drain: Duration,
    pub(crate) postgres: Postgres,
}

impl Config {
    /// The file's settings under the flags'.
    pub(crate) fn load(args: &Args) -> Result<Self, Stop> {
        let (file, origin) = read(args.config.as_deref())?;
        let bad = |error: String| Stop::new(Exit::Config, format!("{origin}: broker: {error}"));
        let mut config = Self::of(file).map_err(bad)?;
        let usage =
            |flag: &'static str| move |error: String| Stop::new(Exit::Usage, format!("{flag}: {error}"));
        if let Some(store) = &args.store {
            config.store = Store::read(store).map_err(usage("--store"))?;
        }
        if let Some(identity) = &args.identity {
            config.who = who(identity).map_err(usage("--identity"))?;
        }
        if let Some(url) = &args.redis {
            config.redis = Some(RedisUrl::read(url).map_err(usage("--redis"))?.0);
        }
        config.listen = args.listen.unwrap_or(config.listen);
        config.admin = args.admin.unwrap_or(config.admin);
        config.admin_token_file = args.admin_token_file.clone().or(config.admin_token_file);
        if config.listen == config.admin && config.listen.port() != 0 {
            let why = format!(
                "listen and admin are both {}: operators need an address of their own",
                config.listen
            );
            return Err(bad(why));
        }
        Ok(config)
    }

    /// A broker beside others, with its messages in this file.
    pub(crate) fn beside(store: &Path, listen: SocketAddr, admin: SocketAddr) -> Result<Self, Stop> {
        let mut config = Self::of(File::default()).map_err(|error| Stop::new(Exit::Config, error))?;
        config.store = Store::Sqlite(store.display().to_string());
        (config.listen, config.admin) = (listen, admin);
        Ok(config)
    }

    fn of(file: File) -> Result<Self, String> {
        let any = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let usual = Settings::default();
        let settings = Settings {
            dedupe_retention: match file.dedupe_retention_days {
                Some(days) => u32::try_from(days).map_or(Duration::MAX, |days| DAY * days),
                None => usual.dedupe_retention,
            },
            inline_bytes: file.max_payload.map_or(usual.inline_bytes, |payload| payload.inline_bytes),
            b2_retry: file.b2_retry.map_or(usual.b2_retry, |grace| grace.0),
            budget: file.budget.map(|rate| rate.0),
            request_limit: file.request_limit.map(|rate| rate.0),
            bodies: body_bounds(
                "broker.limits",
                file.limits.bodies.as_ref(),
                file.limits.body_deadline.as_ref(),
                semel_broker::limits::BATCH_BYTES_MAX,
            )?,
            allow_loopback: file.webhooks.is_some_and(|webhooks| webhooks.allow_loopback),
            ..usual
        };
        settings.check().map_err(|error| error.to_string())?;
        let cors = file.cors.map(|cors| Cors::new(&cors.origins, false));
        Ok(Self {
            listen: file.listen.map_or_else(|| any(7430), |address| address.0),
            admin: file.admin.map_or_else(|| any(7431), |address| address.0),
            admin_token_file: file.admin_token_file,
            admin_read_token_file: file.admin_read_token_file,
            admin_proxy: Proxy::of(file.admin_trusted, file.admin_operators, file.admin_hosts),
            store: file.store.map_or_else(|| Store::Sqlite("broker.db".to_owned()), |store| store.0),
            who: file.identity.as_deref().map_or(Ok(Who::Tokens), who)?,
            peers: file.trusted_peers.as_deref().map_or(Ok(Peers::default()), Peers::of)?,
            redis: file.redis.map(|url| url.0.0),
            settings,
            cors: cors.transpose().map_err(|error| format!("cors: {error}"))?,
            tls: file.tls.map(|tls| Certificates { cert: tls.cert, key: tls.key }),
            drain: file.drain.map_or(Duration::from_secs(5), |drain| drain.0),
            postgres: Postgres {
                connections: file.postgres.connections.unwrap_or(8).max(1),
                migrate: file.postgres.migrate.unwrap_or(true),
                ca: file.postgres.ca,
            },
        })
    }
}

fn who(text: &str) -> Result<Who, String> {
    if text == "tokens" {
        return Ok(Who::Tokens);
    }
    let identity = <Identity as Setting>::read(text)?;
    match &identity {
        Identity::Jwt(_) | Identity::Check(_) | Identity::Trusted(_) => {
            Callers::check(&identity)?;
            Ok(Who::Verified(identity))
        }
        Identity::Authorization | Identity::Cookie(_) | Identity::Shared(_) => Err(format!(
            "identity {identity} names no mesh: expected tokens, jwt:KEYS, check:URL or trusted:NAME"
        )),
    }
}

fn read(path: Option<&Path>) -> Result<(File, String), Stop> {
    let beside = Path::new("semel.toml");
    let variable = std::env::var_os("SEMEL_CONFIG").map(PathBuf::from);
    let named = path.or(variable.as_deref());
    let Some(path) = named.or_else(|| beside.exists().then_some(beside)) else {
        return Ok((File::default(), "the settings".to_owned()));
    };
    let bad = |error: String| Stop::new(Exit::Config, format!("{}: {}", path.display(), error.trim_end()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let whole: Whole = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    Ok((whole.broker, path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        let whole: Whole = toml::from_str(text).map_err(|error| error.to_string())?;
        Config::of(whole.broker)
    }

    #[test]
    fn what_is_unsafe_is_refused() {
        for (text, complaint) in [
            ("[broker]\ndedupe_retention_days = 6\n", "7 days"),
            ("[broker]\nmax_payload = { inline_bytes = 2000000 }\n", "inline_bytes"),
            ("[broker]\nidentity = 'authorization'\n", "names no mesh"),
            ("[broker]\nbudget = 'many'\n", "1000/1h"),
            ("[broker]\nunknown = 1\n", "unknown"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    #[test]
    fn the_settings_of_the_broker_are_read() {
        let config = config(
            "[broker]\nlisten = ':7500'\ndedupe_retention_days = 8\nb2_retry = '30s'\nbudget = '100/60s'\n\
             webhooks = { allow_loopback = true }\ncors = { origins = ['https://app.example'] }\n",
        )
        .unwrap();
        assert_eq!(config.listen.port(), 7500);
        assert_eq!(config.settings.dedupe_retention, 8 * DAY);
        assert_eq!(config.settings.budget.map(|rate| rate.count), Some(100));
        assert!(config.settings.allow_loopback && config.cors.is_some() && config.who == Who::Tokens);
    }
}
