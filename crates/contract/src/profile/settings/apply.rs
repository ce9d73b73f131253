//! What settings mean for a profile.

use std::collections::BTreeMap;

use super::values::{OneOf, Setting as _, Statuses, Text};
use super::{AgeFrom, LimitWord, Refuses, ScopePart, Settings};
use crate::BadSetting;
use crate::classify::Rule;
use crate::fingerprint::Recipe;
use crate::keep::{Keep, KeepRule};
use crate::key::{RequiredHeader, is_header_name};
use crate::problem::Kind;
use crate::problem::render::Wording;
use crate::profile::{FirstSent, Guard, Mismatch, OnUnknown, Profile, Reveal, settings};
use crate::scope::ScopePolicy;
use crate::staleness::{Staleness, Submitted};

impl Settings {
    /// Changes a profile as these settings say.
    pub fn apply_to(&self, profile: &mut Profile) -> Result<(), BadSetting> {
        Ok(apply(profile, self)?)
    }
}

/// Copies every setting that is there into its place.
macro_rules! take {
    ($settings:ident: $($field:ident => $place:expr),* $(,)?) => {
        $(if let Some(value) = &$settings.$field { $place = value.0.clone(); })*
    };
}

/// The same for settings that are plain values.
macro_rules! take_plain {
    ($settings:ident: $($field:ident => $place:expr),* $(,)?) => {
        $(if let Some(value) = &$settings.$field { $place = *value; })*
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
        admission_charge => profile.limits.admission_charge,
        generator => profile.generator,
        sweep => profile.sweep.when,
        least_lifetime => profile.lifetime.least,
        least_margin => profile.lifetime.least_margin,
        give_up => profile.give_up,
        lane => profile.lane,
    );
    take_plain!(settings:
        stripe_headers => profile.wire.stripe_headers,
        attempts_per_id => profile.limits.attempts_per_id,
        sweep_batch => profile.sweep.batch,
        sweep_log => profile.sweep.log,
        compress => profile.stored.compress,
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
        drop_covered(&mut profile.record);
    }
    apply_words(profile, settings)?;
    apply_sending(profile, settings)?;
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
        Some(OneOf::Word(_)) => profile.mismatch = Mismatch::Ignore,
        Some(OneOf::Table(refusal)) => {
            let (status, reveal) = match profile.mismatch {
                Mismatch::Refuse { status, reveal } => (status, reveal),
                Mismatch::Ignore => (422, Reveal::None),
            };
            profile.mismatch = Mismatch::Refuse {
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

fn of_guard(guard: &settings::Guard) -> Guard {
    Guard {
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
        let Statuses { from, to } = Statuses::read(statuses).map_err(|error| format!("record: {error}"))?;
        rules.push(KeepRule::range(from, to, keep.0));
    }
    rules.sort_by_key(|rule| (rule.to - rule.from, rule.from));
    Ok(rules)
}

/// Removes the rules that never count, because one before them speaks of all their statuses.
fn drop_covered(rules: &mut Vec<KeepRule>) {
    let all = std::mem::take(rules);
    for rule in all {
        if !rules.iter().any(|before| before.from <= rule.from && rule.to <= before.to) {
            rules.push(rule);
        }
    }
}

/// How refusals and states are called.
fn apply_words(profile: &mut Profile, settings: &Settings) -> Result<(), String> {
    for (code, text) in settings.codes.iter().flatten() {
        wording(profile, "codes", code)?.code = Some(text.clone().into());
    }
    for (code, text) in settings.texts.iter().flatten() {
        wording(profile, "texts", code)?.text = Some(text.clone().into());
    }
    if let Some(names) = &settings.state_names {
        let shown = &mut profile.state_names;
        for (name, place) in [
            (&names.claimed, &mut shown.claimed),
            (&names.settled, &mut shown.settled),
            (&names.released, &mut shown.released),
            (&names.unknown, &mut shown.unknown),
        ] {
            if let Some(name) = name {
                *place = name.clone().into();
            }
        }
    }
    if let Some(methods) = &settings.methods {
        profile.methods = methods.clone();
    }
    Ok(())
}

/// What a profile says differently about the problem of this name.
fn wording<'a>(profile: &'a mut Profile, setting: &str, slug: &str) -> Result<&'a mut Wording, String> {
    let kind = Kind::ALL.iter().copied().find(|kind| kind.slug() == slug);
    let kind = kind.ok_or_else(|| {
        format!("{setting}: there is no problem {slug:?}; the pages under spec/problems have their names")
    })?;
    let all = &mut profile.wire.wording;
    let at = all.iter().position(|wording| wording.kind == kind).unwrap_or_else(|| {
        all.push(Wording { kind, code: None, text: None });
        all.len() - 1
    });
    Ok(&mut all[at])
}

/// What a sender does.
fn apply_sending(profile: &mut Profile, settings: &Settings) -> Result<(), String> {
    let own = settings.classify.iter().flatten().map(|meaning| {
        let Statuses { from, to } = meaning.status.0;
        let codes = meaning.codes.iter().flatten().map(|code| code.clone().into()).collect();
        Rule { from, to, codes, class: meaning.means.0.clone() }
    });
    profile.classify.rules.splice(0..0, own);
    let rules = std::mem::take(&mut profile.classify.rules);
    for rule in rules {
        let covers = |before: &Rule| {
            let speaks_of = |code| before.codes.contains(code);
            before.from <= rule.from
                && rule.to <= before.to
                && (before.codes.is_empty() || (!rule.codes.is_empty() && rule.codes.iter().all(speaks_of)))
        };
        if !profile.classify.rules.iter().any(covers) {
            profile.classify.rules.push(rule);
        }
    }
    let Some(given) = &settings.schedule else { return Ok(()) };
    let schedule = &mut profile.schedule;
    for (duration, place) in [
        (&given.base, &mut schedule.base),
        (&given.cap, &mut schedule.cap),
        (&given.period, &mut schedule.period),
        (&given.blocked, &mut schedule.blocked),
    ] {
        if let Some(duration) = duration {
            *place = duration.0;
        }
    }
    if let Some(factor) = given.factor {
        if !(1.0..=100.0).contains(&factor) {
            return Err(format!("schedule: bad factor {factor}: expected a number from 1 to 100"));
        }
        schedule.factor = factor;
    }
    if let Some(jitter) = &given.jitter {
        schedule.jitter = jitter.0;
    }
    schedule.burst_attempts = given.burst_attempts.or(schedule.burst_attempts);
    schedule.burst_budget = given.burst_budget.as_ref().map(|budget| budget.0).or(schedule.burst_budget);
    schedule.max_attempts = given.max_attempts.or(schedule.max_attempts);
    Ok(())
}

fn recipe(before: Option<Recipe>, changes: &settings::Recipe) -> Recipe {
    let mut recipe = before.unwrap_or_default();
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

fn required(header: &settings::Header) -> Result<RequiredHeader, String> {
    if !is_header_name(&header.name) {
        return Err(format!("require_headers: {:?} is not a header's name", header.name));
    }
    Ok(RequiredHeader { name: header.name.clone(), format: header.format.0.clone() })
}
