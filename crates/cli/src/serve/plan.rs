//! From settings to what the gateway is told: routes, identity, limits, upstream. Pure but for the files that they name.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use semel_contract::fingerprint::Secret;
use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::profile::Profile;
use semel_gate::{GateLayer, Route};
use semel_gateway::{AccessLog, Callers, HostSent, Peers, Plan, Probes, Upstream};
use semel_store::ClaimStore;
use semel_store::limits::Fallback;

use crate::config::{Config, LogTo, Mode, Timing};
use crate::exit::{Exit, Stop};
use crate::logging;
use crate::store::{self, Opened};

/// Methods that always need a key when keys are required without a configuration.
const REQUIRED: &str = "POST|PATCH /{path*}";

/// The shortest secret of fingerprints.
const SECRET_BYTES_MIN: usize = 32;

/// What the gateway is told.
pub(crate) fn plan(config: &Config, require_key: bool, store: &Opened) -> Result<Plan, Stop> {
    let limiter = store::limiter(config, &store.backend)?;
    plan_on(config, require_key, Arc::clone(&store.records), limiter)
}

/// The same on any records.
pub(crate) fn plan_on(
    config: &Config,
    require_key: bool,
    records: Arc<dyn ClaimStore>,
    limiter: Fallback,
) -> Result<Plan, Stop> {
    if let Some(why) = config.obstacles().into_iter().next() {
        return Err(bad(why));
    }
    let upstream = config.gate.upstream.clone().ok_or_else(|| {
        Stop::new(Exit::Usage, "what stands behind the gate is missing: say --upstream URL, or gate.upstream")
    })?;
    let callers = Callers::new(&config.identity, config.gate.trusted_peers.clone()).map_err(bad)?;
    let log = match &config.gate.access_log {
        LogTo::Off => AccessLog::off(),
        LogTo::Stderr(one_in) => AccessLog::stderr(logging::access_form()).one_in(one_in.0),
        LogTo::File(path, one_in) => {
            let log = AccessLog::file(path).map_err(|error| {
                Stop::new(Exit::Io, format!("failed to open the access log {}: {error}", path.display()))
            })?;
            log.one_in(one_in.0)
        }
    };
    Ok(Plan {
        gate: gate(config, require_key, (records, limiter), callers.clone(), &upstream)?,
        upstream,
        tls: config.gate.tls.clone(),
        limits: config.gate.limits.clone(),
        trusted: trusted(config),
        cors: config.gate.cors.clone(),
        log,
        traces: traces().map_err(bad)?,
    })
}

fn bad(message: impl Into<String>) -> Stop {
    Stop::new(Exit::Config, message)
}

/// The collector of traces, where the environment names one.
#[cfg(feature = "otel")]
fn traces() -> Result<Option<semel_gateway::Traces>, semel_gateway::GatewayError> {
    semel_gateway::Traces::from_environment(|name| std::env::var(name).ok())
}

/// A program without the feature `otel` tells nobody.
#[cfg(not(feature = "otel"))]
fn traces() -> Result<Option<semel_gateway::Traces>, semel_gateway::GatewayError> {
    Ok(None)
}

/// Headers that name users: they are taken from trusted peers only.
fn trusted(config: &Config) -> Vec<(HeaderName, Peers)> {
    let of_routes = config.routes.iter().filter_map(|route| route.identity.as_ref());
    let named = |identity: &Identity| match identity {
        Identity::Trusted(name) => HeaderName::try_from(name.as_str()).ok(),
        Identity::Authorization
        | Identity::Cookie(_)
        | Identity::Jwt(_)
        | Identity::Check(_)
        | Identity::Shared(_) => None,
    };
    let names = std::iter::once(&config.identity).chain(of_routes).chain(&config.gate.was_identity);
    let names = names.filter_map(named);
    names.map(|name| (name, config.gate.trusted_peers.clone())).collect()
}

fn gate(
    config: &Config,
    require_key: bool,
    (records, limiter): (Arc<dyn ClaimStore>, Fallback),
    callers: Callers,
    upstream: &Upstream,
) -> Result<GateLayer, Stop> {
    let name = config.gate.name.clone().unwrap_or_else(|| upstream.target.to_string());
    let mut gate =
        GateLayer::builder(records).identity(callers).limiter(limiter).name(name).handlers_elsewhere();
    for was in &config.gate.was_identity {
        gate = gate.was_identity(Callers::new(was, config.gate.trusted_peers.clone()).map_err(bad)?);
    }
    if config.gate.forget_former {
        gate = gate.forget_former();
    }
    // Where the service is told which host is meant, it may be another service for each.
    if upstream.host == HostSent::Clients {
        gate = gate.scope_by_host();
    }
    if let Some(path) = &config.gate.fingerprint_keys {
        gate = gate.fingerprint_secrets(secrets(path).map_err(bad)?);
    }
    let bounds = config.gate.bounds;
    if let Some(max) = bounds.running {
        gate = gate.max_in_flight(max);
    }
    if let Some(max) = bounds.waiting {
        gate = gate.max_waiters(max);
    }
    if let Some(max) = bounds.waiting_per_key {
        gate = gate.max_waiters_per_key(max);
    }
    if let Some(max) = bounds.bodies {
        gate = gate.max_body_bytes_in_memory(max);
    }
    if let Some(max) = bounds.body_deadline {
        gate = gate.max_body_time(max);
    }
    if config.gate.mode == Mode::Observe {
        gate = gate.observe();
    }
    let timed = |route: Route, timing: Timing| {
        let mut route = route.deadline(deadline(upstream));
        if let Some(lease) = timing.lease {
            route = route.lease(lease);
        }
        match timing.late_window {
            Some(window) => route.late_window(window),
            None => route,
        }
    };
    if config.protects_every_path() {
        let optional = Route::any().profile(config.defaults.clone());
        gate = gate.route(timed(optional, config.timing));
        if require_key {
            let route =
                Route::new("required", REQUIRED).map_err(|error| bad(error.to_string()))?.endpoint_by_path();
            gate = gate.route(timed(route.profile(required(&config.defaults)), config.timing));
        }
    }
    let mut probes = Probes::default();
    for route in &config.routes {
        if let Some(template) = &route.probe {
            let named = |error: String| bad(format!("route.{}: {error}", route.name));
            // What became unknown under a former name is asked about in the same way.
            for name in std::iter::once(&route.name).chain(&route.former_names) {
                probes.add(name, template, &route.pattern.params()).map_err(|error| named(error.into()))?;
            }
        }
        let profile = if require_key { required(&route.profile) } else { route.profile.clone() };
        let mut named =
            Route::new(&route.name, &route.pattern.to_string()).map_err(|error| bad(error.to_string()))?;
        named = named.former_names(route.former_names.iter().cloned());
        if let Some(identity) = &route.identity {
            let callers = Callers::new(identity, config.gate.trusted_peers.clone());
            named = named.identity(callers.map_err(|error| bad(format!("route.{}: {error}", route.name)))?);
        }
        gate = gate.route(timed(named.profile(profile), route.timing));
    }
    gate.probe(probes).build().map_err(|error| bad(error.to_string()))
}

/// The secrets of a file, one on each line.
fn secrets(path: &Path) -> Result<Vec<Secret>, String> {
    let failed = |why: &str| format!("gate.fingerprint_keys {}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error.to_string()))?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return Err(failed("it holds no secret"));
    }
    if lines.iter().any(|line| line.len() < SECRET_BYTES_MIN) {
        return Err(failed("a secret has at least 32 characters"));
    }
    Ok(lines.iter().map(|line| Secret::new(line.as_bytes())).collect())
}

fn required(profile: &Profile) -> Profile {
    let mut profile = profile.clone();
    profile.key.presence = Presence::Required;
    profile
}

/// How long an attempt may take in all: waiting for a connection, opening it, the answer; and a second to say so.
fn deadline(upstream: &Upstream) -> Duration {
    upstream.timeout + 2 * upstream.connect_timeout + Duration::from_secs(1)
}
