//! A profile as the file would write it: every setting in force, spelled as it is read.

use semel_contract::classify::Class;
use semel_contract::json::Pointer;
use semel_contract::key::{Presence, Syntax};
use semel_contract::outcome::{Keep, KeepRule};
use semel_contract::problem::render::Wording;
use semel_contract::profile::settings::values::Word;
use semel_contract::profile::{
    Anchor, FailedKey, InFlight, Mismatch, OnError, Profile, Rate, Replay, Reveal, SweepWhen,
};
use semel_contract::schedule::Jitter;
use semel_contract::staleness::Submitted;
use semel_contract::time::format_duration as show;

use super::values::{Bytes, Kept};

/// Every setting of a profile and its value.
pub(crate) fn describe(profile: &Profile) -> Vec<(&'static str, String)> {
    let mut settings = key(profile);
    settings.extend(decisions(profile));
    settings.extend(lifetimes(profile));
    settings.extend(limits(profile));
    settings.extend(sending(profile));
    settings
}

fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn key(profile: &Profile) -> Vec<(&'static str, String)> {
    let key = &profile.key;
    let presence = match key.presence {
        Presence::Required => "required",
        Presence::Optional => "optional",
        Presence::Mint => "mint",
    };
    let syntax = match key.syntax {
        Syntax::Bare => "bare",
        Syntax::SfString => "sf-string",
        Syntax::Both => "both",
    };
    let required = key.require_headers.iter().map(|header| format!("{} ({})", header.name, header.format));
    let scope = [
        ("tenant", profile.scope.tenant),
        ("principal", profile.scope.principal),
        ("endpoint", profile.scope.endpoint),
    ];
    vec![
        ("profile", profile.name.to_string()),
        ("guarantee", profile.guarantee.name().to_owned()),
        ("key", presence.to_owned()),
        ("key_sources", listed(&key.sources)),
        ("key_syntax", syntax.to_owned()),
        ("key_format", key.format.to_string()),
        ("require_headers", listed(required)),
        ("scope", listed(scope.into_iter().filter(|(_, there)| *there).map(|(name, _)| name))),
        ("fingerprint", fingerprint(profile)),
    ]
}

fn fingerprint(profile: &Profile) -> String {
    let Some(recipe) = &profile.fingerprint else { return "none".to_owned() };
    let mut text = listed(recipe.inputs.iter().map(|input| input.name()));
    for (word, pointers) in [("include", &recipe.include), ("exclude", &recipe.exclude)] {
        if !pointers.is_empty() {
            text.push_str(&format!("; {word} {}", listed::<&Pointer>(pointers)));
        }
    }
    text
}

fn decisions(profile: &Profile) -> Vec<(&'static str, String)> {
    let mismatch = match profile.mismatch {
        Mismatch::Ignore => "ignore".to_owned(),
        Mismatch::Refuse { status, reveal } => {
            let reveal = match reveal {
                Reveal::None => "none",
                Reveal::Prefix8 => "prefix8",
                Reveal::PayloadHashes => "payload-hashes",
            };
            format!("status {status}, reveal {reveal}")
        }
    };
    let in_flight = match profile.in_flight {
        InFlight::Wait { deadline } => format!("wait {}", show(deadline)),
        InFlight::Reject { retry_after } => format!("reject {}", show(retry_after)),
        InFlight::Accepted => "accepted".to_owned(),
    };
    let on_error = match profile.on_error {
        OnError::Replay => "replay",
        OnError::Release => "release",
    };
    let replay = match profile.replay {
        Replay::Verbatim => "verbatim".to_owned(),
        Replay::Duplicate { status } => format!("duplicate {status}"),
    };
    let failed_key = match profile.failed_key {
        FailedKey::Reclaim => "reclaim",
        FailedKey::Sealed => "sealed",
    };
    vec![
        ("mismatch", mismatch),
        ("in_flight", in_flight),
        ("on_unknown", profile.on_unknown.name().to_owned()),
        ("on_error", on_error.to_owned()),
        ("failed_key", failed_key.to_owned()),
        ("record", recorded(profile)),
        ("replay", replay),
        ("errors", profile.wire.form.name().to_owned()),
        ("codes", wording(profile, |wording| wording.code.as_deref())),
        ("texts", wording(profile, |wording| wording.text.as_deref())),
        ("stripe_headers", profile.wire.stripe_headers.to_string()),
        ("state_names", state_names(profile)),
    ]
}

/// Which answers are kept, the rule that counts first.
fn recorded(profile: &Profile) -> String {
    let rule = |rule: &KeepRule| {
        let keep = match rule.keep {
            Keep::Settle => "settle",
            Keep::Release => "release",
        };
        format!("{} {keep}", statuses(rule.from, rule.to))
    };
    profile.record.iter().map(rule).collect::<Vec<_>>().join(", ")
}

fn lifetimes(profile: &Profile) -> Vec<(&'static str, String)> {
    let life = &profile.lifetime;
    let anchor = match life.anchor {
        Anchor::Created => "created",
        Anchor::Settled => "settled",
    };
    let or_none = |duration: Option<_>| duration.map_or_else(|| "none".to_owned(), show);
    let guard = profile.guard.as_ref().map_or_else(
        || "none".to_owned(),
        |guard| {
            let bounds = &guard.bounds;
            let submitted = match bounds.submitted {
                Submitted::Ignore => "ignore",
                Submitted::Refuse => "refuse",
                Submitted::Correct => "correct",
            };
            let sent = guard
                .submitted_at
                .as_ref()
                .map_or_else(String::new, |pointer| format!(", submitted_at {pointer}"));
            let gap =
                bounds.submitted_gap.map_or_else(String::new, |gap| format!(", submitted_gap {}", show(gap)));
            let (cap, grace) = (show(bounds.cap), show(bounds.grace));
            format!(
                "generated_at {}{sent}, cap {cap}, grace {grace}, submitted {submitted}{gap}",
                guard.generated_at
            )
        },
    );
    let age = profile.age.map_or("none", |age| if age.from_uuid7 { "uuid7" } else { "header" });
    vec![
        ("retry_window", show(life.retry_window)),
        ("skew", show(life.skew)),
        ("margin", show(life.margin)),
        (
            "record_lifetime",
            if life.record() >= Kept::FOREVER { "forever".to_owned() } else { show(life.record()) },
        ),
        ("released_lifetime", or_none(life.released)),
        ("lifetime_from", anchor.to_owned()),
        ("sweep_grace", show(life.sweep_grace)),
        ("sweep", describe_sweep(profile.sweep.when)),
        ("sweep_batch", profile.sweep.batch.to_string()),
        ("sweep_log", profile.sweep.log.to_string()),
        ("least_lifetime", show(life.least)),
        ("least_margin", show(life.least_margin)),
        ("max_age", or_none(profile.schedule.max_age)),
        ("guard", guard),
        ("age", age.to_owned()),
    ]
}

fn limits(profile: &Profile) -> Vec<(&'static str, String)> {
    let rate = |rate: Option<Rate>| {
        rate.map_or_else(|| "none".to_owned(), |rate| format!("{}/{}", rate.count, show(rate.window)))
    };
    let refuses = if profile.limits.request_refuses_known { ", refuses all" } else { "" };
    vec![
        ("request_limit", format!("{}{refuses}", rate(profile.limits.request))),
        ("admission_limit", rate(profile.limits.admission)),
        ("admission_charge", named(profile.limits.admission_charge).to_owned()),
        ("attempts_per_id", profile.limits.attempts_per_id.to_string()),
        ("max_body", Bytes(profile.stored.max_body_bytes).to_string()),
        ("max_response", Bytes(profile.stored.max_response_bytes).to_string()),
        ("compress", profile.stored.compress.to_string()),
    ]
}

/// The word that stands for a value.
fn named<T: Word + PartialEq>(value: T) -> &'static str {
    T::WORDS.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

/// What a profile calls some problems.
fn wording(profile: &Profile, of: impl Fn(&Wording) -> Option<&str>) -> String {
    listed(profile.wire.wording.iter().filter_map(|one| Some(format!("{} {:?}", one.kind.slug(), of(one)?))))
}

fn state_names(profile: &Profile) -> String {
    let names = &profile.state_names;
    format!(
        "claimed {}, settled {}, released {}, unknown {}",
        names.claimed, names.settled, names.released, names.unknown
    )
}

/// When records are swept, as it is read.
pub(super) fn describe_sweep(when: SweepWhen) -> String {
    match when {
        SweepWhen::Every(period) => format!("every {}", show(period)),
        SweepWhen::DailyAt(time) => {
            let minutes = time.as_secs() / 60;
            format!("daily {:02}:{:02}", minutes / 60, minutes % 60)
        }
    }
}

/// What a sender does by this profile.
fn sending(profile: &Profile) -> Vec<(&'static str, String)> {
    let schedule = &profile.schedule;
    let jitter = match schedule.jitter {
        Jitter::None => "none".to_owned(),
        Jitter::Full => "full".to_owned(),
        Jitter::Ratio(share) => format!("{}%", (share * 100.0).round()),
    };
    let mut times = vec![
        format!("base {}", show(schedule.base)),
        format!("factor {}", schedule.factor),
        format!("cap {}", show(schedule.cap)),
        format!("jitter {jitter}"),
        format!("period {}", show(schedule.period)),
        format!("blocked {}", show(schedule.blocked)),
    ];
    times.extend(schedule.burst_attempts.map(|count| format!("burst_attempts {count}")));
    times.extend(schedule.burst_budget.map(|budget| format!("burst_budget {}", show(budget))));
    times.extend(schedule.max_attempts.map(|count| format!("max_attempts {count}")));
    let rules = profile.classify.rules.iter().map(|rule| {
        let statuses = statuses(rule.from, rule.to);
        let codes = if rule.codes.is_empty() { String::new() } else { format!(" ({})", listed(&rule.codes)) };
        format!("{statuses}{codes} {}", meaning(&rule.class))
    });
    vec![
        ("methods", listed(&profile.methods)),
        ("generator", named(profile.generator).to_owned()),
        ("schedule", times.join(", ")),
        ("classify", listed(rules)),
        ("give_up", named(profile.give_up).to_owned()),
        ("lane", named(profile.lane).to_owned()),
    ]
}

/// What an answer means, as it is read.
fn meaning(class: &Class) -> String {
    match class {
        Class::Success => "success".to_owned(),
        Class::Retry => "retry".to_owned(),
        Class::RetryAfter => "retry-after".to_owned(),
        Class::RetryAtMost(count, then) => format!("retry {count} then {}", meaning(then)),
        Class::Auth => "auth".to_owned(),
        Class::Rebuild => "rebuild".to_owned(),
        Class::Drop(why) => format!("drop {why}"),
        Class::Dead(why) => format!("dead {why}"),
    }
}

fn statuses(from: u16, to: u16) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}
