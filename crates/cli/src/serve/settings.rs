//! What is in force, part by part, in words: for the console and for `semel check`.

use std::sync::Arc;

use semel_console::part::Section;
use semel_contract::profile::Profile;
use semel_contract::time::format_duration;
use semel_delivery::relay::Target;
use serde_json::{Map, Value, json};

use super::announce;
use super::relay::config::Config as Relay;
use crate::config::{Config, describe, redacted, without_passwords};

/// What is in force in a gate, for its console: the same words and the same arithmetic.
pub(crate) fn sections(config: &Config) -> Vec<Section> {
    let shown = |rows: Vec<(String, String)>| -> Vec<(String, String)> {
        rows.into_iter().map(|(name, value)| (name, without_passwords(&value))).collect()
    };
    let mut rows = vec![
        (
            "configuration".to_owned(),
            config.path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string()),
        ),
        ("store".to_owned(), config.store.to_string()),
        ("identity".to_owned(), redacted(&config.identity.to_string())),
    ];
    rows.extend(announce::protected(config, false).into_iter().map(|line| ("protects".to_owned(), line)));
    rows.extend(config.gate.describe().into_iter().map(|(name, value)| (name.to_owned(), value)));
    let upstream = config
        .gate
        .upstream
        .as_ref()
        .map_or_else(|| "none".to_owned(), |upstream| upstream.target.to_string());
    rows.push(("upstream".to_owned(), upstream));
    let bounds = config.warnings().into_iter().map(|warning| (false, warning)).collect();
    let mut sections = vec![Section { title: "Gate".to_owned(), rows: shown(rows), bounds }];
    for (name, profile) in profiles(config) {
        let mut rows: Vec<(String, String)> = Vec::new();
        if let Some(route) = config.routes.iter().find(|route| format!("route.{}", route.name) == name) {
            rows.push(("match".to_owned(), route.pattern.to_string()));
            rows.extend(route.probe.as_ref().map(|probe| ("probe".to_owned(), probe.clone())));
        }
        rows.extend(describe(profile).into_iter().map(|(name, value)| (name.to_owned(), value)));
        let bounds = profile.arithmetic().into_iter().map(|bound| (bound.holds, bound.rule)).collect();
        sections.push(Section { title: name, rows: shown(rows), bounds });
    }
    sections
}

/// What is in force in a relay.
pub(crate) fn relay_sections(relay: &Relay) -> Vec<Section> {
    let mut rows = Vec::new();
    for (name, value) in relay_about(relay) {
        match value {
            Value::Null => {}
            Value::String(text) => rows.push((name, without_passwords(&text))),
            Value::Object(targets) => rows.extend(targets.into_iter().map(|(target, about)| {
                let about = about.as_object().into_iter().flatten();
                let about: Vec<String> = about
                    .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
                    .collect();
                (format!("target {target}"), without_passwords(&about.join(", ")))
            })),
            other => rows.push((name, other.to_string())),
        }
    }
    vec![Section { title: "Relay".to_owned(), rows, bounds: Vec::new() }]
}

/// Each profile in force with its name in the file.
pub(crate) fn profiles(config: &Config) -> impl Iterator<Item = (String, &Profile)> {
    let routes = config.routes.iter().map(|route| (format!("route.{}", route.name), &route.profile));
    std::iter::once(("defaults".to_owned(), &config.defaults)).chain(routes)
}

/// What is in force in a relay, in words.
pub(crate) fn relay_about(relay: &Relay) -> Map<String, Value> {
    let kept = relay.retention;
    let target = |target: &Arc<Target>| {
        json!({
            "origin": target.upstream.origin(),
            "tier": target.tier.name(),
            "profile": target.profile.name,
            "debounce": format_duration(target.debounce.quiet),
            "max_wait": format_duration(target.debounce.max_wait),
            "sync_deadline": format_duration(target.sync_deadline),
            "timeout": format_duration(target.timeout),
            "late_window": format_duration(target.late_window),
        })
    };
    let targets: Map<String, Value> =
        relay.targets.iter().map(|(name, found)| (name.clone(), target(found))).collect();
    let about = json!({
        "listen": relay.listen.to_string(),
        "admin": relay.admin.to_string(),
        "store": relay.store.to_string(),
        "identity": redacted(&relay.identity.to_string()),
        "redis": relay.redis.as_deref().map(redacted),
        "retention": format!(
            "completed {}, failed {}, auth_revoked {}; all above client_max_age {}",
            format_duration(kept.completed),
            format_duration(kept.failed),
            format_duration(kept.auth_revoked),
            format_duration(kept.client_max_age)
        ),
        "targets": targets,
    });
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}
