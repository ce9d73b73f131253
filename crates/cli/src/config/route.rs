//! What a route's settings mean: a preset, then `[defaults]`, then the route's own.

use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::key::Presence;
use semel_contract::profile::Profile;
use semel_contract::profile::settings::Settings;
use semel_contract::route::{Params, Pattern, SAFE_METHODS};
use semel_gate::endpoint_of_path;
use semel_gateway::Probes;

use super::Config;
use super::profiles::{Profiles, USUAL};
use super::values::OneOf;

/// One `[route.NAME]`.
#[derive(Debug)]
pub(crate) struct Route {
    /// The endpoint's stable name.
    pub(crate) name: String,
    /// Names it had before; records under them are still found for one retention.
    pub(crate) former_names: Vec<String>,
    /// The requests it covers.
    pub(crate) pattern: Pattern,
    /// Who sends them, where that is another question than elsewhere.
    pub(crate) identity: Option<Identity>,
    /// Its settings.
    pub(crate) profile: Profile,
    /// The URL that is asked about unknown outcomes.
    pub(crate) probe: Option<String>,
    /// How long a claim is exclusive without renewal, and how long after it a request may still take effect.
    pub(crate) timing: Timing,
}

/// How long claims hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// How long a claim is exclusive without renewal; the gate's own default where nothing is said.
    pub(crate) lease: Option<Duration>,
    /// How long after its time-out a request that was sent may still take effect.
    pub(crate) late_window: Option<Duration>,
}

impl Timing {
    pub(super) fn of(settings: &Settings) -> Result<Self, String> {
        let lease = settings.lease.as_ref().map(|lease| lease.0);
        if lease.is_some_and(|lease| lease < Duration::from_secs(1)) {
            return Err("lease must be at least 1s, so that it can be renewed in time".to_owned());
        }
        Ok(Self { lease, late_window: settings.late_window.as_ref().map(|window| window.0) })
    }
}

/// What a request belongs to.
#[derive(Debug)]
pub(crate) struct Endpoint<'a> {
    /// The endpoint's name.
    pub(crate) name: String,
    /// Its settings.
    pub(crate) profile: &'a Profile,
    /// Who sends its requests.
    pub(crate) identity: &'a Identity,
    /// Path parameters in the order of the pattern.
    pub(crate) params: Params<'a, 'a>,
}

impl<'a> Endpoint<'a> {
    /// Without routes every method that has an effect is keyed, and every path is its own endpoint.
    pub(super) fn of_path(method: &str, path: &'a str, config: &'a Config) -> Option<Self> {
        let params = vec![("path", path.strip_prefix('/')?)];
        let (name, profile, identity) = (endpoint_of_path(method, path), &config.defaults, &config.identity);
        (!SAFE_METHODS.contains(&method)).then_some(Self { name, profile, identity, params })
    }
}

impl Route {
    pub(super) fn of(
        name: &str,
        settings: &Settings,
        defaults: &Settings,
        profiles: &Profiles,
    ) -> Result<Self, String> {
        let matches = settings
            .matches
            .as_ref()
            .ok_or("`match` is missing: say which requests it covers, such as match = \"POST /orders\"")?;
        let settings = settings.clone().over(inherited(settings, defaults));
        let profile = profile(&settings, profiles)?;
        let probe = match &settings.on_unknown {
            Some(OneOf::Table(probe)) => Some(probe.probe.0.0.clone()),
            Some(OneOf::Word(_)) | None => None,
        };
        let pattern = matches.0.pattern(&profile.methods).map_err(|error| error.to_string())?;
        if let Some(template) = &probe {
            Probes::check(template, &pattern.params()).map_err(|error| format!("on_unknown: {error}"))?;
        }
        let timing = Timing::of(&settings)?;
        let identity = settings.identity.map(|identity| identity.0);
        let former_names = settings.was.unwrap_or_default();
        Ok(Self { name: name.to_owned(), former_names, pattern, identity, profile, probe, timing })
    }
}

/// What a route takes over from the defaults. They belong to their profile: a route that names another one starts from
/// that preset as it stands.
fn inherited(settings: &Settings, defaults: &Settings) -> Settings {
    fn name(settings: &Settings) -> Option<&str> {
        settings.profile.as_deref()
    }
    let is_same = name(settings).is_none_or(|own| own == name(defaults).unwrap_or(USUAL));
    if is_same { defaults.clone() } else { Settings::default() }
}

/// The profile that settings stand for.
pub(super) fn profile(settings: &Settings, profiles: &Profiles) -> Result<Profile, String> {
    // A gateway stands before requests of every kind, a login among them: a key is read where there is one, and demanded
    // where the settings say so. The same with and without a file.
    let optional = |mut usual: Profile| {
        usual.key.presence = Presence::Optional;
        usual
    };
    let mut profile = profiles.get(settings.profile.as_deref().unwrap_or(USUAL), optional)?;
    settings.apply_to(&mut profile)?;
    Ok(profile)
}
