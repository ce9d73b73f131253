//! What the relay is told: the table `[relay]` of the configuration, under the flags. Everything unsafe is refused here,
//! before anything runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_delivery::credentials::{Place, Rule, Wallet};
use semel_delivery::http1::Http1;
use semel_delivery::relay::Target;
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::worker::POLL;
use semel_delivery::transport::Transport;
use semel_gateway::{Callers, Peers};
use semel_http::{BodyBounds, Cors};
use semel_store::at_rest::KeyRing;
use serde::Deserialize;

use super::file::{CredentialFile, File};
use super::intake::BODY_BYTES_MAX;
use super::target::{self, or};
use crate::config::{RedisUrl, Setting, Store, Text, body_bounds};
use crate::exit::{Exit, Stop};
use crate::serve::admin::Proxy;

#[derive(Debug, Default, Deserialize)]
struct Whole {
    store: Option<Text<Store>>,
    identity: Option<Text<Identity>>,
    #[serde(default)]
    relay: File,
    #[serde(default)]
    gate: Gate,
}

/// What the relay reads of the gate's settings.
#[derive(Debug, Default, Deserialize)]
struct Gate {
    #[serde(default)]
    at_rest: GateAtRest,
}

#[derive(Debug, Default, Deserialize)]
struct GateAtRest {
    keys: Option<PathBuf>,
}

/// What the flags say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags<'a> {
    pub(crate) config: Option<&'a Path>,
    pub(crate) store: Option<&'a str>,
    pub(crate) identity: Option<&'a str>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_token_file: Option<&'a Path>,
    pub(crate) redis: Option<&'a str>,
}

/// What is in force.
pub(crate) struct Config {
    pub(crate) store: Store,
    pub(crate) identity: Identity,
    pub(crate) peers: Peers,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_read_token_file: Option<PathBuf>,
    /// A proxy of one's own that says which operator asks.
    pub(crate) admin_proxy: Proxy,
    /// Which pages on other origins may use the relay.
    pub(crate) cors: Option<Cors>,
    /// Room for the bodies of senders.
    pub(crate) bodies: BodyBounds,
    pub(crate) parallel: usize,
    pub(crate) postgres: Postgres,
    pub(crate) redis: Option<String>,
    pub(crate) poll: Duration,
    pub(crate) drain: Duration,
    pub(crate) retention: Retention,
    pub(crate) targets: BTreeMap<String, Arc<Target>>,
    pub(crate) wallet: Arc<Wallet>,
    /// The keys under which credentials are sealed that callers give.
    pub(crate) keys: Option<KeyRing>,
    /// Files of credentials that are not there, for whoever checks.
    pub(crate) missing: Vec<PathBuf>,
}

/// The store in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Postgres {
    pub(crate) connections: usize,
    /// Whether the schema may be changed at start.
    pub(crate) migrate: bool,
    /// Whose certificates are believed, where the URL demands TLS.
    pub(crate) ca: Option<PathBuf>,
}

/// The longest pause between two looks at the store: beyond it, what is due would wait for longer than a lease lasts.
const POLL_MAX: Duration = Duration::from_secs(30);

impl Config {
    /// The file's settings under the variables' and the flags'.
    pub(crate) fn load(flags: &Flags<'_>) -> Result<Self, Stop> {
        let (whole, origin) = read(flags.config)?;
        let mut config =
            Self::of(whole).map_err(|error| Stop::new(Exit::Config, format!("{origin}: {error}")))?;
        let usage =
            |flag: &'static str| move |error: String| Stop::new(Exit::Usage, format!("{flag}: {error}"));
        if let Some(store) = flags.store {
            config.store = Store::read(store).map_err(usage("--store"))?;
        }
        if let Some(identity) = flags.identity {
            config.identity = <Identity as Setting>::read(identity).map_err(usage("--identity"))?;
            Callers::check(&config.identity).map_err(|error| usage("--identity")(error.into()))?;
        }
        if let Some(url) = flags.redis {
            let RedisUrl(url) = RedisUrl::read(url).map_err(usage("--redis"))?;
            config.redis = Some(url);
        }
        config.listen = flags.listen.unwrap_or(config.listen);
        config.admin = flags.admin.unwrap_or(config.admin);
        config.admin_token_file = flags.admin_token_file.map(Path::to_path_buf).or(config.admin_token_file);
        if config.listen == config.admin && config.listen.port() != 0 {
            let why = format!(
                "listen and admin are both {}: operators need an address of their own",
                config.listen
            );
            return Err(Stop::new(Exit::Config, format!("{origin}: relay: {why}")));
        }
        Ok(config)
    }

    /// The settings that a text means, as in a file. For parts that bring their own.
    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        Self::of(toml::from_str(text).map_err(|error| error.to_string())?)
    }

    fn of(whole: Whole) -> Result<Self, String> {
        let Whole { store, identity, relay, gate } = whole;
        let keys = keys(relay.at_rest.keys.as_deref(), gate.at_rest.keys.as_deref())?;
        let store = variable("SEMEL_RELAY_STORE")?.or(relay.store).or(variable("SEMEL_STORE")?).or(store);
        let identity = or(variable("SEMEL_IDENTITY")?.or(identity).as_ref(), Identity::Authorization);
        Callers::check(&identity)?;
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let retention = Retention {
            client_max_age: or(relay.client_max_age.as_ref(), hours(23)),
            completed: or(relay.retention.completed.as_ref(), hours(24)),
            failed: or(relay.retention.failed.as_ref(), hours(7 * 24)),
            auth_revoked: or(relay.retention.auth_revoked.as_ref(), hours(7 * 24)),
        };
        retention.check().map_err(|error| format!("relay: {error}"))?;
        let quiet = variable("SEMEL_RELAY_DEBOUNCE").map_err(|error| format!("relay.debounce: {error}"))?;
        let quiet = or(quiet.or(relay.debounce).as_ref(), Duration::from_secs(15));
        let max_wait = or(relay.max_wait.as_ref(), quiet);
        let transport: Arc<dyn Transport> = Arc::new(Http1::new());
        let mut targets = BTreeMap::new();
        for (name, file) in &relay.target {
            if name == "pending"
                || name.is_empty()
                || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
            {
                return Err(format!(
                    "relay.target.{name}: a name has letters, digits, - and _, and is not `pending`"
                ));
            }
            let made = target::target(name, file, (quiet, max_wait), &transport)
                .map_err(|error| format!("relay.target.{name}: {error}"))?;
            targets.insert(name.clone(), Arc::new(made));
        }
        let mut rules = Vec::new();
        for (at, credential) in relay.credential.iter().enumerate() {
            rules.push(
                rule(credential, &targets).map_err(|error| format!("relay.credential[{at}]: {error}"))?,
            );
        }
        let cors = relay.cors.map(|origins| Cors::new(&origins, relay.cors_credentials.unwrap_or(false)));
        let cors = cors.transpose().map_err(|error| format!("relay.cors: {error}"))?;
        let poll = or(relay.poll.as_ref(), POLL);
        if poll.is_zero() || poll > POLL_MAX {
            return Err("relay.poll: expected something between 1ms and 30s".to_owned());
        }
        let redis = variable("SEMEL_RELAY_REDIS").map_err(|error| format!("relay.redis: {error}"))?;
        let any = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            store: or(store.as_ref(), Store::Sqlite("relay.db".to_owned())),
            identity,
            peers: relay.trusted_peers.as_deref().map_or(Ok(Peers::default()), Peers::of)?,
            listen: or(relay.listen.as_ref(), any(7420)),
            admin: or(relay.admin.as_ref(), any(7421)),
            admin_token_file: relay.admin_token_file,
            admin_read_token_file: relay.admin_read_token_file,
            admin_proxy: Proxy::of(relay.admin_trusted, relay.admin_operators, relay.admin_hosts),
            cors,
            bodies: body_bounds(
                "relay.limits",
                relay.limits.bodies.as_ref(),
                relay.limits.body_deadline.as_ref(),
                BODY_BYTES_MAX,
            )?,
            parallel: relay.parallel.unwrap_or(32).max(1),
            postgres: Postgres {
                connections: relay.postgres.connections.or(relay.connections).unwrap_or(8).max(1),
                migrate: relay.postgres.migrate.unwrap_or(true),
                ca: relay.postgres.ca,
            },
            redis: redis.or(relay.redis).map(|Text(RedisUrl(url))| url),
            poll,
            drain: or(relay.drain.as_ref(), Duration::from_secs(25)),
            retention,
            targets,
            wallet: Arc::new(Wallet::new(rules)),
            keys,
            missing: relay.credential.iter().filter_map(missing).collect(),
        })
    }
}

/// What a variable says, where it says something.
fn variable<T: Setting>(name: &str) -> Result<Option<Text<T>>, String> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty());
    text.map(|text| T::read(&text).map(Text)).transpose()
}

/// The keys of the relay, or those of the gate, which another user may be alone to read.
fn keys(own: Option<&Path>, of_gate: Option<&Path>) -> Result<Option<KeyRing>, String> {
    if let Some(path) = own {
        let keys = KeyRing::load(path);
        return keys.map(Some).map_err(|error| format!("relay.at_rest {}: {error}", path.display()));
    }
    Ok(of_gate.and_then(|path| {
        let keys = KeyRing::load(path);
        keys.inspect_err(|error| tracing::warn!(%error, "gate.at_rest has no key for the relay")).ok()
    }))
}

/// The file of a credential, where it is not there.
fn missing(file: &CredentialFile) -> Option<PathBuf> {
    file.file.clone().filter(|path| !path.exists())
}

fn rule(file: &CredentialFile, targets: &BTreeMap<String, Arc<Target>>) -> Result<Rule, String> {
    let target = targets.get(&file.target).ok_or_else(|| format!("there is no target {:?}", file.target))?;
    let place = match (&file.file, &file.command) {
        (Some(path), None) => Place::File(path.clone()),
        (None, Some(words)) if !words.is_empty() => Place::Command(words.clone()),
        _ => return Err("say either `file` or `command`".to_owned()),
    };
    Ok(Rule {
        principal: file.principal.clone(),
        origin: target.upstream.origin().to_owned(),
        target: Some(target.name.clone()),
        header: file.header.clone().unwrap_or_else(|| "Authorization".to_owned()),
        place,
    })
}

fn read(path: Option<&Path>) -> Result<(Whole, String), Stop> {
    let beside = Path::new("semel.toml");
    let variable = std::env::var_os("SEMEL_CONFIG").map(PathBuf::from);
    let named = path.or(variable.as_deref());
    let Some(path) = named.or_else(|| beside.exists().then_some(beside)) else {
        return Ok((Whole::default(), "the settings".to_owned()));
    };
    let bad = |error: String| Stop::new(Exit::Config, format!("{}: {}", path.display(), error.trim_end()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let whole = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    Ok((whole, path.display().to_string()))
}
