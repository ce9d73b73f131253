//! What a route's settings mean: a preset, then `[defaults]`, then the route's own.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_contract::fingerprint::Recipe;
use semel_contract::identity::Identity;
use semel_contract::key::{Presence, RequiredHeader, is_header_name};
use semel_contract::outcome::{Keep, KeepRule};
use semel_contract::profile::{self, FirstSent, OnUnknown, Profile, presets};
use semel_contract::route::{Params, Pattern, SAFE_METHODS};
use semel_contract::scope::ScopePolicy;
use semel_contract::staleness::{Staleness, Submitted};
use semel_gate::endpoint_of_path;
use semel_gateway::Probes;

use super::Config;
use super::file::{self, AgeFrom, LimitWord, Refuses, ScopePart, Settings};
use super::values::{OneOf, Text};

/// One `[route.NAME]`.
#[derive(Debug)]
pub(crate) struct Route {
    /// The endpoint's stable name.
    pub(crate) name: String,
    /// Names it had before; records under them are still found for one retention.
    pub(crate) was: Vec<String>,
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
    pub(super) fn of(name: &str, settings: &Settings, defaults: &Settings) -> Result<Self, String> {
        let matches = settings
            .matches
            .as_ref()
            .ok_or("`match` is missing: say which requests it covers, such as match = \"POST /orders\"")?;
        let settings = settings.clone().over(inherited(settings, defaults));
        let profile = profile(&settings)?;
        let probe = match &settings.on_unknown {
            Some(OneOf::Table(probe)) => Some(probe.probe.0.0.clone()),
            Some(OneOf::Word(_)) | None => None,
        };
        let pattern = matches.0.pattern(&profile.methods)?;
        if let Some(template) = &probe {
            Probes::check(template, &pattern.params()).map_err(|error| format!("on_unknown: {error}"))?;
        }
        let timing = Timing::of(&settings)?;
        let identity = settings.identity.map(|identity| identity.0);
        let was = settings.was.unwrap_or_default();
        Ok(Self { name: name.to_owned(), was, pattern, identity, profile, probe, timing })
    }
}

/// What a route takes over from the defaults. They belong to their profile: a route that names another one starts from
/// that preset as it stands.
fn inherited(settings: &Settings, defaults: &Settings) -> Settings {
    let name = |settings: &Settings| settings.profile.as_ref().map(|preset| preset.0.0);
    let is_same = name(settings).is_none_or(|own| own == name(defaults).unwrap_or("ietf"));
    if is_same { defaults.clone() } else { Settings::default() }
}

/// The profile that settings stand for.
pub(super) fn profile(settings: &Settings) -> Result<Profile, String> {
    let mut profile = settings.profile.as_ref().map_or_else(presets::ietf, |preset| (preset.0.1)());
    if profile.name == presets::ietf().name {
        // A gateway stands before requests of every kind, a login among them: a key is read where there is one, and demanded
        // where the settings say so. The same with and without a file.
        profile.key.presence = Presence::Optional;
    }
    apply(&mut profile, settings)?;
    Ok(profile)
}

/// Copies every setting that is there into its place.
macro_rules! take {
    ($settings:ident: $($field:ident => $place:expr),* $(,)?) => {
        $(if let Some(value) = &$settings.$field { $place = value.0.clone(); })*
    };
}

fn apply(profile: &mut Profile, settings: &Settings) -> Result<(), String> {
    if let Some(window) = &settings.retry_window {
        profile.set_retry_window(window.0);
    }
    take!(settings:
        guarantee => profile.guarantee,
        key => profile.key.presence,
        key_syntax => profile.key.syntax,
        key_format => profile.key.format,
        in_flight => profile.in_flight,
        on_error => profile.on_error,
        failed_key => profile.failed_key,
        errors => profile.wire.form,
        skew => profile.lifetime.skew,
        margin => profile.lifetime.margin,
        lifetime_from => profile.lifetime.anchor,
        sweep_grace => profile.lifetime.sweep_grace,
        replay => profile.replay,
    );
    if let Some(lifetime) = &settings.record_lifetime {
        profile.lifetime.record = Some(lifetime.0.0);
    }
    if let Some(lifetime) = &settings.released_lifetime {
        profile.lifetime.released = Some(lifetime.0);
    }
    if let Some(age) = &settings.max_age {
        profile.schedule.max_age = Some(age.0);
    }
    if let Some(sources) = &settings.key_sources {
        profile.key.sources = sources.iter().map(|source| source.0.clone()).collect();
    }
    if let Some(headers) = &settings.require_headers {
        profile.key.require_headers = headers.iter().map(required).collect::<Result<_, _>>()?;
    }
    if let Some(parts) = &settings.scope {
        let has = |part| parts.iter().any(|named| named.0 == part);
        profile.scope = ScopePolicy {
            tenant: has(ScopePart::Tenant),
            principal: has(ScopePart::Principal),
            endpoint: has(ScopePart::Endpoint),
        };
    }
    if let Some(max) = &settings.max_body {
        profile.stored.max_body_bytes = max.0.0;
    }
    if let Some(max) = &settings.max_response {
        profile.stored.max_response_bytes = max.0.0;
    }
    if let Some(rate) = &settings.admission_limit {
        profile.limits.admission = Some(rate.0);
    }
    if let Some(given) = &settings.record {
        profile.record.splice(0..0, rules(given)?);
    }
    apply_tables(profile, settings);
    Ok(())
}

/// The settings that have more than one form.
fn apply_tables(profile: &mut Profile, settings: &Settings) {
    match &settings.fingerprint {
        Some(OneOf::Word(_)) => profile.fingerprint = None,
        Some(OneOf::Table(changes)) => {
            profile.fingerprint = Some(recipe(profile.fingerprint.take(), changes))
        }
        None => {}
    }
    match &settings.mismatch {
        Some(OneOf::Word(_)) => profile.mismatch = profile::Mismatch::Ignore,
        Some(OneOf::Table(refusal)) => {
            let (status, reveal) = match profile.mismatch {
                profile::Mismatch::Refuse { status, reveal } => (status, reveal),
                profile::Mismatch::Ignore => (422, profile::Reveal::None),
            };
            profile.mismatch = profile::Mismatch::Refuse {
                status: refusal.status.unwrap_or(status),
                reveal: refusal.reveal.as_ref().map_or(reveal, |reveal| reveal.0),
            };
        }
        None => {}
    }
    match &settings.on_unknown {
        Some(OneOf::Word(word)) => profile.on_unknown = *word,
        Some(OneOf::Table(_)) => profile.on_unknown = OnUnknown::Probe,
        None => {}
    }
    match &settings.request_limit {
        Some(OneOf::Word(LimitWord::All)) => profile.limits.request_refuses_known = true,
        Some(OneOf::Word(LimitWord::Rate(rate))) => profile.limits.request = Some(*rate),
        Some(OneOf::Table(table)) => {
            profile.limits.request = Some(table.rate.0);
            profile.limits.request_refuses_known = table.refuses.0 == Refuses::All;
        }
        None => {}
    }
    match &settings.guard {
        Some(OneOf::Word(_)) => profile.guard = None,
        Some(OneOf::Table(guard)) => profile.guard = Some(of_guard(guard)),
        None => {}
    }
    match settings.age.as_ref().map(|age| age.0) {
        Some(AgeFrom::None) => profile.age = None,
        Some(from) => profile.age = Some(FirstSent { from_uuid7: from == AgeFrom::Uuid7 }),
        None => {}
    }
}

fn of_guard(guard: &file::Guard) -> profile::Guard {
    profile::Guard {
        generated_at: guard.generated_at.0.clone(),
        submitted_at: guard.submitted_at.as_ref().map(|pointer| pointer.0.clone()),
        bounds: Staleness {
            cap: guard.cap.0,
            grace: guard.grace.0,
            submitted: guard.submitted.as_ref().map_or(Submitted::Ignore, |submitted| submitted.0),
            submitted_gap: guard.submitted_gap.as_ref().map(|gap| gap.0),
        },
    }
}

/// Rules by status, the narrower ones first: the first that speaks of a status counts.
fn rules(given: &BTreeMap<String, Text<Keep>>) -> Result<Vec<KeepRule>, String> {
    let mut rules = Vec::new();
    for (statuses, keep) in given {
        let bad = || {
            format!(
                "record: bad status {statuses:?}: expected one such as \"404\", or a range such as \"400-499\""
            )
        };
        let number =
            |text: &str| text.parse().ok().filter(|status| (200..600).contains(status)).ok_or_else(bad);
        let (from, to) = statuses.split_once('-').unwrap_or((statuses, statuses));
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return Err(bad());
        }
        rules.push(KeepRule::range(from, to, keep.0));
    }
    rules.sort_by_key(|rule| (rule.to - rule.from, rule.from));
    Ok(rules)
}

fn recipe(before: Option<Recipe>, changes: &file::Recipe) -> Recipe {
    let mut recipe =
        before.or_else(|| presets::ietf().fingerprint).expect("the default looks at the request");
    if let Some(inputs) = &changes.inputs {
        recipe.inputs = inputs.iter().map(|input| input.0).collect();
    }
    if let Some(include) = &changes.include {
        recipe.include = include.iter().map(|pointer| pointer.0.clone()).collect();
    }
    if let Some(exclude) = &changes.exclude {
        recipe.exclude = exclude.iter().map(|pointer| pointer.0.clone()).collect();
    }
    recipe
}

fn required(header: &file::Header) -> Result<RequiredHeader, String> {
    if !is_header_name(&header.name) {
        return Err(format!("require_headers: {:?} is not a header's name", header.name));
    }
    Ok(RequiredHeader { name: header.name.clone(), format: header.format.0.clone() })
}
