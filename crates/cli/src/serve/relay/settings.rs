//! What is in force in a relay, in words: the same for the console and for `semel check`.

use std::sync::Arc;

use semel_console::part::Section;
use semel_contract::time::format_duration;
use semel_delivery::relay::Target;
use serde_json::{Map, Value, json};

use super::config::Config as Relay;
use crate::config::{describe_bounds, redacted, without_passwords};

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
        "limits": describe_bounds(relay.bodies),
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
