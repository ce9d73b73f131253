//! `semel.toml`: its shape ([`mod@file`]), the variables that override it ([`overrides`]) and what both mean together
//! ([`Config`]). Unknown fields are errors, with their line.

mod file;
mod overrides;
mod route;
mod values;

use std::path::{Path, PathBuf};

use semel_contract::identity::Identity;
use semel_contract::profile::{OnUnknown, Profile};

pub(crate) use file::Mode;
pub(crate) use overrides::{Variables, known_variables};
pub(crate) use route::{Endpoint, Route};

use crate::exit::{Exit, Stop};
use file::File;
use values::Store;

/// The settings in force.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where they came from; `None` means that there is no file and every path is its own endpoint.
    pub(crate) path: Option<PathBuf>,
    /// Where records are kept.
    pub(crate) store: Store,
    /// Who sends requests.
    pub(crate) identity: Identity,
    /// Where the gate listens.
    pub(crate) listen: String,
    /// Where operators look.
    pub(crate) admin: String,
    /// What stands behind the gate.
    pub(crate) upstream: Option<String>,
    /// Whether anything is enforced.
    pub(crate) mode: Mode,
    /// The settings of routes that say nothing else.
    pub(crate) defaults: Profile,
    /// The routes, the most particular first.
    pub(crate) routes: Vec<Route>,
    /// The variables that took part.
    pub(crate) overridden: Vec<&'static str>,
}

impl Config {
    /// Reads a file, or takes what holds without one, and applies the variables.
    pub(crate) fn load(path: Option<&Path>, variables: &Variables) -> Result<Self, Stop> {
        let mut file = match path {
            Some(path) => File::read(path)?,
            None => File::default(),
        };
        let overridden =
            overrides::apply(&mut file, variables).map_err(|message| Stop::new(Exit::Config, message))?;
        Self::of(file, path, overridden).map_err(|message| {
            let origin = path.map_or_else(|| "the settings".to_owned(), |path| path.display().to_string());
            Stop::new(Exit::Config, format!("{origin}: {message}"))
        })
    }

    fn of(file: File, path: Option<&Path>, overridden: Vec<&'static str>) -> Result<Self, String> {
        file.defaults.refuse_in_defaults()?;
        let defaults = route::profile(&[&file.defaults], path.is_some())?;
        let mut routes = Vec::new();
        for (name, settings) in &file.route {
            routes.push(
                Route::of(name, settings, &file.defaults)
                    .map_err(|error| format!("route.{name}: {error}"))?,
            );
        }
        routes.sort_by(|a, b| a.pattern.precedence(&b.pattern));
        for (at, one) in routes.iter().enumerate() {
            if let Some(other) =
                routes[at + 1..].iter().find(|other| one.pattern.clashes_with(&other.pattern))
            {
                return Err(format!(
                    "routes {} and {} match the same requests: make one of them more particular",
                    one.name, other.name
                ));
            }
        }
        Ok(Self {
            path: path.map(Path::to_path_buf),
            store: file.store.map(|store| store.0).unwrap_or_default(),
            identity: file.identity.map_or(Identity::Authorization, |identity| identity.0),
            listen: file
                .gate
                .listen
                .map_or_else(|| "127.0.0.1:7400".to_owned(), |address| address.0.to_string()),
            admin: file
                .gate
                .admin
                .map_or_else(|| "127.0.0.1:7401".to_owned(), |address| address.0.to_string()),
            upstream: file.gate.upstream.map(|url| url.0.0),
            mode: file.gate.mode.unwrap_or_default(),
            defaults,
            routes,
            overridden,
        })
    }

    /// The endpoint that a request belongs to. `None`: it matches no route and passes through unrecorded.
    pub(crate) fn endpoint<'a>(&'a self, method: &str, path: &'a str) -> Option<Endpoint<'a>> {
        if self.path.is_none() {
            return Endpoint::of_path(method, path, &self.defaults);
        }
        self.routes.iter().find_map(|route| {
            let params = route.pattern.matches(method, path)?;
            Some(Endpoint { name: route.name.clone(), profile: &route.profile, params })
        })
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
            Identity::Shared(name) => warnings.push(format!(
                "identity shared:{name}: all callers are one principal; only keys with 122 random bits keep them apart"
            )),
            Identity::Jwt(_) | Identity::Check(_) => {}
        }
        for route in &self.routes {
            match route.profile.on_unknown {
                OnUnknown::Rerun => warnings.push(format!(
                    "route.{}: on_unknown = \"rerun\" runs a request again when its outcome is unknown: at least once, not once",
                    route.name
                )),
                OnUnknown::Hold | OnUnknown::Probe | OnUnknown::Forward => {}
            }
        }
        if self.path.is_some() && self.routes.is_empty() {
            warnings.push("there are no routes: nothing is protected".to_owned());
        }
        warnings
    }
}
