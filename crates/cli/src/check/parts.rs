//! Whether each part would start with a file: everything that it would refuse before it serves, found without opening a store
//! or an address. A file that the settings name and that is not on this machine is no reason to refuse them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_contract::identity::Identity;
use semel_contract::time::format_duration;
use semel_gateway::Gateway;
use semel_store::limits::{Fallback, MemoryLimiter, RedisLimiter};
use semel_store::memory::MemoryStore;
use serde_json::{Map, Value, json};

use crate::config::{self, Config, LogTo, redacted};
use crate::exit::Stop;
use crate::serve::broker::config::{Config as Broker, Who};
use crate::serve::relay::config::{Config as Relay, Flags};
use crate::serve::{admin, broker, outbox, plan, relay};
use crate::store;

/// What is known of the parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The part, and why it would not start.
    pub(super) refused: Vec<(&'static str, String)>,
    /// What is missing here, and may be elsewhere.
    pub(super) warnings: Vec<String>,
    /// The outbox's settings, where the file has some.
    pub(super) outbox: Option<Map<String, Value>>,
    /// The relay's.
    pub(super) relay: Option<Map<String, Value>>,
    /// The broker's.
    pub(super) broker: Option<Map<String, Value>>,
}

impl Parts {
    /// Looks at every part of which the file speaks. Leaves the settings as they were.
    pub(super) fn of(config: &mut Config, path: Option<&Path>) -> Self {
        let mut parts = Self::default();
        let obstacles = config.obstacles();
        let is_safe = std::iter::once(&config.defaults)
            .chain(config.routes.iter().map(|route| &route.profile))
            .all(|profile| profile.unsafeties().is_empty());
        parts.refused.extend(obstacles.into_iter().map(|why| ("gate", why)));
        if parts.refused.is_empty() && is_safe {
            let tried = gate(config);
            parts.note("gate", tried, &gate_files(config));
        }
        if config.speaks_of.outbox {
            parts.look_at_outbox(path);
        }
        if config.speaks_of.relay {
            parts.look_at_relay(config, path);
        }
        if config.speaks_of.broker {
            parts.look_at_broker(path);
        }
        parts
    }

    fn note(&mut self, part: &'static str, tried: Result<(), Stop>, named: &[PathBuf]) {
        let Err(Stop { message, .. }) = tried else { return };
        match named.iter().find(|path| !path.exists()) {
            Some(path) => self.warnings.push(format!(
                "`semel serve {part}` will not start without {}, which is not here: {message}",
                path.display()
            )),
            None => self.refused.push((part, message)),
        }
    }

    fn look_at_outbox(&mut self, path: Option<&Path>) {
        let args = outbox::Args { config: path.map(Path::to_path_buf), ..outbox::Args::default() };
        let (found, named) = outbox::checked(&args);
        match found {
            Ok(about) => {
                let about = about.into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
                self.outbox = Some(about.collect());
            }
            Err(stop) => self.note("outbox", Err(stop), &named),
        }
    }

    fn look_at_broker(&mut self, path: Option<&Path>) {
        let args = broker::Args { config: path.map(Path::to_path_buf), ..broker::Args::default() };
        let settings = match Broker::load(&args) {
            Ok(settings) => settings,
            Err(Stop { message, .. }) => return self.refused.push(("broker", message)),
        };
        let tls = settings.tls.iter().flat_map(|tls| [tls.cert.clone(), tls.key.clone()]);
        let named = settings.admin_token_file.iter().chain(&settings.postgres.ca).cloned();
        let keys = match &settings.who {
            Who::Tokens => None,
            Who::Verified(identity) => keys_of(identity),
        };
        let named: Vec<PathBuf> = named.chain(tls).chain(keys).collect();
        self.note("broker", within_runtime(|| broker::check(&settings)), &named);
        self.broker = Some(broker_about(&settings));
    }

    fn look_at_relay(&mut self, gate: &Config, path: Option<&Path>) {
        let settings = match Relay::load(&Flags { config: path, ..Flags::default() }) {
            Ok(settings) => settings,
            Err(Stop { message, .. }) => return self.refused.push(("relay", message)),
        };
        let named = settings
            .admin_token_file
            .iter()
            .chain(&settings.admin_read_token_file)
            .chain(&settings.postgres.ca)
            .cloned();
        let named: Vec<PathBuf> = named.chain(keys_of(&settings.identity)).collect();
        self.note("relay", relay::check(&settings), &named);
        let has_gate = gate.gate.upstream.is_some() || !gate.routes.is_empty();
        if has_gate && matches!(settings.store, config::Store::Sqlite(_)) && settings.store == gate.store {
            self.warnings.push(format!(
                "gate and relay are both told to use {}, and a file has one owner: say relay.store",
                settings.store
            ));
        }
        for path in &settings.missing {
            self.warnings.push(format!("relay.credential: there is no file {}", path.display()));
        }
        self.relay = Some(crate::serve::relay::settings::relay_about(&settings));
    }
}

/// What is built here is at home in a runtime.
fn within_runtime(check: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Stop::new(crate::exit::Exit::Io, error.to_string()))?;
    let _within = runtime.enter();
    check()
}

/// Builds all that a gate is built of, on records in memory.
fn gate(config: &mut Config) -> Result<(), Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Stop::new(crate::exit::Exit::Io, error.to_string()))?;
    let _within = runtime.enter();
    admin::access(config, config.gate.admin)?;
    store::check_protection(config)?;
    if let Some(url) = &config.gate.redis {
        RedisLimiter::at(url).map_err(|error| {
            Stop::new(crate::exit::Exit::Config, format!("gate.redis {}: {error}", redacted(url)))
        })?;
    }
    let has_upstream = config.gate.upstream.is_some();
    if !has_upstream && let Ok(stand_in) = config::target("http://127.0.0.1:9") {
        config.gate.set_upstream(stand_in);
    }
    // Looking must not make a file.
    let log = std::mem::replace(&mut config.gate.access_log, LogTo::Off);
    let limiter = Arc::new(MemoryLimiter::default());
    let records = Arc::new(MemoryStore::new());
    let planned = plan::plan_on(config, false, records, Fallback::new(limiter.clone(), limiter));
    config.gate.access_log = log;
    if !has_upstream {
        config.gate.upstream = None;
    }
    Gateway::new(planned?).map(drop).map_err(|error| Stop::new(crate::exit::Exit::Config, error))
}

fn gate_files(config: &Config) -> Vec<PathBuf> {
    let gate = &config.gate;
    let mut named: Vec<PathBuf> = [
        gate.tls.as_ref().map(|tls| tls.cert.clone()),
        gate.tls.as_ref().map(|tls| tls.key.clone()),
        gate.at_rest.as_ref().and_then(|at_rest| at_rest.keys.clone()),
        gate.fingerprint_keys.clone(),
        gate.admin_token_file.clone(),
        gate.admin_read_token_file.clone(),
        gate.upstream.as_ref().and_then(|upstream| upstream.ca.clone()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let of_routes = config.routes.iter().filter_map(|route| route.identity.as_ref());
    named.extend(std::iter::once(&config.identity).chain(of_routes).filter_map(keys_of));
    named
}

/// The file of keys that an identity names.
fn keys_of(identity: &Identity) -> Option<PathBuf> {
    let Identity::Jwt(spec) = identity else { return None };
    let place = spec.split(',').next().unwrap_or_default();
    (!place.contains("://")).then(|| PathBuf::from(place))
}

/// What is in force in a broker, in words.
pub(super) fn broker_about(broker: &Broker) -> Map<String, Value> {
    let settings = &broker.settings;
    let rate = |rate: Option<semel_contract::profile::Rate>| {
        rate.map(|rate| format!("{} in {}", rate.count, format_duration(rate.window)))
    };
    let about = json!({
        "listen": broker.listen.to_string(),
        "admin": broker.admin.to_string(),
        "store": broker.store.to_string(),
        "identity": redacted(&broker.who.to_string()),
        "redis": broker.redis.as_deref().map(redacted),
        "retention": format!(
            "ids are remembered for {}, senders are told {}",
            format_duration(settings.dedupe_retention),
            format_duration(settings.announced_retention())
        ),
        "max_payload": format!("{} bytes", settings.inline_bytes),
        "limits": config::describe_bounds(settings.bodies),
        "b2_retry": format_duration(settings.b2_retry),
        "budget": rate(settings.budget),
        "request_limit": rate(settings.request_limit),
    });
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}
