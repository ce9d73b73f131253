//! What a gate says about itself once it is ready: where its settings come from, what it protects, for whom, where records
//! are kept, what is promised, and one command to try.

use std::net::SocketAddr;

use semel_contract::identity::Identity;
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Presence, Source};
use semel_contract::profile::Profile;
use serde_json::{Value, json};

use crate::client::uuid;
use crate::config::{Config, Mode, Route, redacted};

/// The text for standard output.
pub(crate) fn text(config: &Config, require_key: bool, listen: SocketAddr, admin: SocketAddr) -> String {
    let scheme = if config.gate.tls.is_some() { "https" } else { "http" };
    let upstream =
        config.gate.upstream.as_ref().map(|upstream| upstream.target.to_string()).unwrap_or_default();
    let mut text = "semel gate is ready\n".to_owned();
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<11}{value}\n"));
    line("listening", &format!("{scheme}://{listen}"));
    line("admin", &format!("http://{admin}"));
    line("upstream", &upstream);
    line("config", &origin(config));
    for protected in protected(config, require_key) {
        line("protects", &protected);
    }
    line("identity", &identity(&config.identity));
    line("store", &config.store.to_string());
    match config.gate.mode {
        Mode::Enforce => line("guarantee", guarantee(config)),
        Mode::Observe => line("guarantee", "none: it only observes"),
    }
    line("try", &curl(config, scheme, listen));
    if config.gate.mode == Mode::Enforce {
        line("", "send it twice: the second answer is the first one again, with Idempotency-Replayed: true");
    }
    text
}

/// Where the settings come from.
fn origin(config: &Config) -> String {
    let file = match &config.path {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string(),
        None => "none: no file was named, and there is no semel.toml here".to_owned(),
    };
    match config.applied.overriding.as_slice() {
        [] => file,
        variables => format!("{file}, and {}", variables.join(", ")),
    }
}

/// What is protected, a line for each route.
pub(crate) fn protected(config: &Config, require_key: bool) -> Vec<String> {
    if config.gate.mode == Mode::Observe {
        return vec!["nothing: mode observe, would-be duplicates are counted and logged".to_owned()];
    }
    if config.protects_every_path() {
        let Profile { name, key, .. } = &config.defaults;
        let when = match key.presence {
            Presence::Optional => "when a key is present",
            Presence::Required => "a key is required",
            Presence::Mint => "a key is made where there is none",
        };
        let all =
            format!("every method but GET, HEAD, OPTIONS and TRACE, on every path, {when} (profile {name})");
        let must = "POST and PATCH, on every path: a key is required".to_owned();
        return if require_key { vec![must, all] } else { vec![all] };
    }
    let route = |route: &Route| {
        let presence = match route.profile.key.presence {
            Presence::Optional if !require_key => "when a key is present",
            Presence::Optional | Presence::Required => "a key is required",
            Presence::Mint => "a key is made where there is none",
        };
        format!("{} as {} ({}, {presence})", route.pattern, route.name, route.profile.guarantee.name())
    };
    config.routes.iter().map(route).collect()
}

fn identity(identity: &Identity) -> String {
    let shown = redacted(&identity.to_string());
    match identity {
        Identity::Authorization => {
            format!("{shown}: the hashed Authorization header, which cannot know revocation")
        }
        Identity::Cookie(_) => format!("{shown}: the hashed cookie, which cannot know revocation"),
        Identity::Trusted(_) => format!("{shown}: as your proxy says, from trusted peers only"),
        Identity::Jwt(_) => format!("{shown}: verified tokens"),
        Identity::Check(_) => format!("{shown}: as this service says"),
        Identity::Shared(_) => format!("{shown}: one principal for everybody; keys must be random UUIDs"),
    }
}

fn guarantee(config: &Config) -> &'static str {
    use semel_contract::record::Guarantee;
    let atomic = config.routes.iter().filter(|route| route.profile.guarantee == Guarantee::Atomic).count();
    match (atomic, config.routes.len()) {
        (0, _) => {
            "fenced: at most one dispatch for each key; an outcome that cannot be known is said to be unknown"
        }
        (atomic, all) if atomic == all => "atomic: effect and record commit together, by semel.settle()",
        _ => "atomic or fenced, as each route says above",
    }
}

/// A command that the first route keys. Its key is written out, so that the same line sent twice shows a replay.
fn curl(config: &Config, scheme: &str, listen: SocketAddr) -> String {
    let route = config.routes.first();
    let profile = route.map_or(&config.defaults, |route| &route.profile);
    let identity = route.and_then(|route| route.identity.as_ref()).unwrap_or(&config.identity);
    let credential = match identity {
        Identity::Authorization => " -H 'Authorization: Bearer demo'".to_owned(),
        Identity::Cookie(name) => format!(" -b '{name}=demo'"),
        Identity::Trusted(name) => format!(" -H '{name}: demo'"),
        Identity::Jwt(_) | Identity::Check(_) => " -H \"Authorization: Bearer $TOKEN\"".to_owned(),
        Identity::Shared(_) => String::new(),
    };
    let (method, path) = route.map_or_else(|| ("POST".to_owned(), "/orders".to_owned()), example);
    let key = example_of(&profile.key.format);
    let (header, body) = match profile.key.sources.first() {
        Some(Source::Header(name)) => (format!(" -H '{name}: {key}'"), json!({})),
        Some(Source::Json(pointer)) => (String::new(), nested(pointer, &key)),
        None => (format!(" -H 'Idempotency-Key: {key}'"), json!({})),
    };
    let required = profile.key.require_headers.iter();
    let required: String = required
        .map(|required| format!(" -H '{}: {}'", required.name, example_of(&required.format)))
        .collect();
    format!(
        "curl -i -X {method} {scheme}://{listen}{path}{credential}{header}{required} \
         -H 'Content-Type: application/json' -d '{body}'"
    )
}

/// A request that a route covers.
fn example(route: &Route) -> (String, String) {
    let pattern = route.pattern.to_string();
    let (methods, path) = pattern.split_once(' ').unwrap_or(("POST", "/"));
    let method = methods.split('|').next().filter(|method| *method != "*").unwrap_or("POST");
    let segment = |segment: &str| if segment.starts_with('{') { "1".to_owned() } else { segment.to_owned() };
    (method.to_owned(), path.split('/').map(segment).collect::<Vec<_>>().join("/"))
}

/// A text of this format.
fn example_of(format: &Format) -> String {
    match format {
        Format::Ulid => "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
        Format::Regex(_) => "KEY".to_owned(),
        Format::Uuid4Lower | Format::Uuid | Format::Token255 | Format::Printable255 | Format::Any255 => {
            uuid().unwrap_or_else(|_| "8e03978e-40d5-43e8-bc93-6894a57f9324".to_owned())
        }
    }
}

/// A document with a text where the pointer says.
fn nested(pointer: &Pointer, text: &str) -> Value {
    let place = pointer.to_string();
    place.split('/').skip(1).collect::<Vec<_>>().into_iter().rev().fold(json!(text), |inner, name| {
        let name = name.replace("~1", "/").replace("~0", "~");
        json!({ name: inner })
    })
}
