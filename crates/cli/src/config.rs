//! `semel.toml`: its shape ([`mod@file`]), the variables that override it ([`overrides`]) and what both mean together
//! ([`Config`]). Unknown fields are errors, with their line.

mod bodies;
mod describe;
mod file;
#[cfg(test)]
mod fuzz;
mod gate;
mod overrides;
mod profiles;
mod route;
mod values;

use std::path::{Path, PathBuf};

use semel_contract::identity::Identity;
use semel_contract::key::Format;
use semel_contract::profile::{OnUnknown, Profile};
use semel_contract::record::Guarantee;
use semel_gateway::Callers;

pub(crate) use bodies::{body_bounds, describe_bounds};
pub(crate) use describe::describe;
pub(crate) use file::Mode;
pub(crate) use gate::{AtRest, Gate, cores, target};
pub(crate) use overrides::Variables;
pub(crate) use profiles::Profiles;
pub(crate) use route::{Endpoint, Route, Timing};
pub(crate) use values::{
    Bytes, LogFormat, LogTo, OneIn, RedisUrl, Setting, Store, Text, address, bytes, duration, redacted, size,
    without_passwords,
};

use crate::exit::{Exit, Stop};
use file::File;
use overrides::Applied;

/// The settings in force.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where they came from; `None` means that there is no file.
    pub(crate) path: Option<PathBuf>,
    /// Where records are kept.
    pub(crate) store: Store,
    /// Who sends requests.
    pub(crate) identity: Identity,
    /// The gateway.
    pub(crate) gate: Gate,
    /// The settings of routes that say nothing else.
    pub(crate) defaults: Profile,
    /// How long their claims hold.
    pub(crate) timing: Timing,
    /// The routes, the most particular first.
    pub(crate) routes: Vec<Route>,
    /// The variables that took part.
    pub(crate) applied: Applied,
    /// The parts of which the file speaks.
    pub(crate) speaks_of: Parts,
}

/// The parts of which a file speaks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) gate: bool,
    pub(crate) outbox: bool,
    pub(crate) relay: bool,
    pub(crate) broker: bool,
}

impl Config {
    /// Reads a file, or takes what holds without one, and applies the variables.
    pub(crate) fn load(path: Option<&Path>, variables: &Variables) -> Result<Self, Stop> {
        let file = match path {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let (file, applied) =
            overrides::apply(file, variables).map_err(|message| Stop::new(Exit::Config, message))?;
        Self::of(file, path, applied).map_err(|message| {
            let origin = path.map_or_else(|| "the settings".to_owned(), |path| path.display().to_string());
            Stop::new(Exit::Config, format!("{origin}: {message}"))
        })
    }

    /// The settings of a text, for tests.
    #[cfg(test)]
    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        let file = toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())?;
        Self::of(file, Some(Path::new("semel.toml")), Applied::default())
    }

    fn of(file: File, path: Option<&Path>, applied: Applied) -> Result<Self, String> {
        let speaks_of = Parts {
            gate: file.gate.says_something() || file.defaults.says_something() || !file.route.is_empty(),
            outbox: file.outbox.is_some(),
            relay: file.relay.is_some(),
            broker: file.broker.is_some(),
        };
        file.defaults.refuse_in_defaults()?;
        let profiles = Profiles::of(file.profile)?;
        let defaults =
            route::profile(&file.defaults, &profiles).map_err(|error| format!("defaults: {error}"))?;
        let timing = Timing::of(&file.defaults).map_err(|error| format!("defaults: {error}"))?;
        let mut routes = Vec::new();
        for (name, settings) in &file.route {
            routes.push(
                Route::of(name, settings, &file.defaults, &profiles)
                    .map_err(|error| format!("route.{name}: {error}"))?,
            );
        }
        routes.sort_by(|a, b| a.pattern.precedence(&b.pattern));
        refuse_clashes(&routes)?;
        let says_compress = file.gate.at_rest.as_ref().is_some_and(|at_rest| at_rest.compress.is_some());
        let mut gate = Gate::of(file.gate)?;
        let profiles_in_force = || routes.iter().map(|route| &route.profile).chain([&defaults]);
        // What a handler settles by its own SQL is kept as it is.
        let compresses = profiles_in_force().any(|profile| profile.stored.compress)
            && profiles_in_force().all(|profile| profile.guarantee != Guarantee::Atomic);
        if compresses && !says_compress {
            gate.at_rest =
                Some(AtRest { keys: gate.at_rest.and_then(|at_rest| at_rest.keys), compress: true });
        }
        let identity = file.identity.map_or(Identity::Authorization, |identity| identity.0);
        Callers::check(&identity)?;
        Ok(Self {
            path: path.map(Path::to_path_buf),
            store: file.store.map(|store| store.0).unwrap_or_default(),
            identity,
            gate,
            defaults,
            timing,
            routes,
            applied,
            speaks_of,
        })
    }

    /// Whether every method that has an effect is protected, on every path. It is so as long as no route is declared: a
    /// file that speaks of something else does not switch the protection off.
    pub(crate) fn protects_every_path(&self) -> bool {
        self.routes.is_empty()
    }

    /// Whether there is nothing to say of a gate: the file is about other parts only.
    pub(crate) fn is_about_others(&self) -> bool {
        !self.speaks_of.gate && (self.speaks_of.outbox || self.speaks_of.relay || self.speaks_of.broker)
    }

    /// The endpoint that a request belongs to. `None`: it matches no route and passes through unrecorded.
    pub(crate) fn endpoint<'a>(&'a self, method: &str, path: &'a str) -> Option<Endpoint<'a>> {
        if self.protects_every_path() {
            return Endpoint::of_path(method, path, self);
        }
        self.routes.iter().find_map(|route| {
            let params = route.pattern.matches(method, path)?;
            let identity = route.identity.as_ref().unwrap_or(&self.identity);
            Some(Endpoint { name: route.name.clone(), profile: &route.profile, identity, params })
        })
    }

    /// What a gateway with these settings could not do, though each of them is safe.
    pub(crate) fn obstacles(&self) -> Vec<String> {
        let profiles = self.routes.iter().map(|route| (format!("route.{}", route.name), &route.profile));
        let without_routes = self.protects_every_path().then(|| ("defaults".to_owned(), &self.defaults));
        let mut found = Vec::new();
        for (name, profile) in profiles.chain(without_routes) {
            if profile.guarantee != Guarantee::Atomic {
                continue;
            }
            if matches!(self.store, Store::Sqlite(_)) {
                found.push(format!(
                    "{name}: behind a gateway `atomic` needs the store in the service's own PostgreSQL, where its handler \
                     calls semel.settle(); say store = \"postgres://…\", or guarantee = \"fenced\""
                ));
            }
            if self.gate.at_rest.is_some() {
                found.push(format!(
                    "{name} is atomic, and what its handler settles by SQL would be neither encrypted nor compressed: remove \
                     gate.at_rest, or say guarantee = \"fenced\""
                ));
            }
        }
        found
    }

    /// What an operator should know, though nothing is unsafe.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        match &self.identity {
            Identity::Authorization | Identity::Cookie(_) => warnings.push(format!(
                "identity {}: the credential is hashed, not verified; a revoked credential still reads its old answers, and \
                 a client that rotates its credential becomes another principal. Verify it with jwt:… or check:URL instead",
                self.identity
            )),
            Identity::Trusted(name) => warnings.push(format!(
                "identity trusted:{name}: whoever can reach the gate can set {name}; let only your own proxy reach it"
            )),
            Identity::Shared(name) => {
                warnings.push(format!("identity shared:{name}: all callers are one principal; only keys with 122 random bits keep them apart"));
                if self.routes.iter().any(|route| matches!(route.profile.key.format, Format::Ulid)) {
                    warnings.push(format!("identity shared:{name}: no ULID is a version 4 UUID, so routes with key_format = \"ulid\" refuse every key"));
                }
            }
            Identity::Jwt(_) | Identity::Check(_) => {}
        }
        let is_encrypted = self.gate.at_rest.as_ref().is_some_and(|at_rest| at_rest.keys.is_some());
        for route in &self.routes {
            let is_shared = matches!(route.identity.as_ref().unwrap_or(&self.identity), Identity::Shared(_));
            if is_shared && !is_encrypted {
                warnings.push(format!(
                    "route.{}: what is answered to somebody who has no identity yet is often a credential, and it is kept as it \
                     was answered: name keys in [gate.at_rest], so that it is encrypted",
                    route.name
                ));
            }
            match route.profile.on_unknown {
                OnUnknown::Rerun => warnings.push(format!(
                    "route.{}: on_unknown = \"rerun\" runs a request again when its outcome is unknown: at least once, not once",
                    route.name
                )),
                OnUnknown::Hold | OnUnknown::Probe | OnUnknown::Forward => {}
            }
        }
        for name in &self.applied.unknown {
            warnings.push(format!("the variable {name} overrides nothing: there is no such setting"));
        }
        if self.gate.mode == Mode::Observe {
            warnings.push("mode observe: nothing is protected; would-be duplicates are counted".to_owned());
        }
        warnings
    }
}

/// Two routes that match the same requests, or one whose former name is another's present one, cannot be told apart.
fn refuse_clashes(routes: &[Route]) -> Result<(), String> {
    for (at, one) in routes.iter().enumerate() {
        if let Some(other) = routes[at + 1..].iter().find(|other| one.pattern.clashes_with(&other.pattern)) {
            return Err(format!(
                "routes {} and {} match the same requests: make one of them more particular",
                one.name, other.name
            ));
        }
        if let Some(name) =
            one.former_names.iter().find(|name| routes.iter().any(|route| route.name == **name))
        {
            return Err(format!("route.{}: `was` names {name}, which is a route of its own", one.name));
        }
    }
    Ok(())
}
