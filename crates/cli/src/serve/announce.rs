//! What a gate says about itself once it is ready: what is keyed, for whom, where it is kept, what is promised, and one
//! command to try.

use std::net::SocketAddr;

use semel_contract::identity::Identity;
use semel_contract::key::Presence;

use crate::config::{Config, Mode, redacted};

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
    for keyed in keyed(config, require_key) {
        line("keyed", &keyed);
    }
    line("identity", &identity(&config.identity));
    line("store", &config.store.to_string());
    line("guarantee", guarantee(config));
    if config.gate.mode == Mode::Observe {
        line("mode", "observe: nothing is enforced, would-be duplicates are counted and logged");
    }
    line("try", &curl(config, scheme, listen));
    text
}

fn keyed(config: &Config, require_key: bool) -> Vec<String> {
    if config.path.is_none() {
        let profile = config.defaults.name;
        let all = format!(
            "every method but GET, HEAD, OPTIONS and TRACE, on every path, when a key is present (profile {profile})"
        );
        let must = "POST and PATCH, on every path: a key is required".to_owned();
        return if require_key { vec![must, all] } else { vec![all] };
    }
    let route = |route: &crate::config::Route| {
        let presence = match route.profile.key.presence {
            Presence::Optional if !require_key => "when a key is present",
            Presence::Optional | Presence::Required => "a key is required",
            Presence::Mint => "a key is made where there is none",
        };
        format!("{} as {} ({}, {presence})", route.pattern, route.name, route.profile.guarantee.name())
    };
    match config.routes.is_empty() {
        true => vec!["nothing: the configuration has no routes".to_owned()],
        false => config.routes.iter().map(route).collect(),
    }
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

fn curl(config: &Config, scheme: &str, listen: SocketAddr) -> String {
    let credential = match &config.identity {
        Identity::Authorization => " -H 'Authorization: Bearer demo'".to_owned(),
        Identity::Cookie(name) => format!(" -b '{name}=demo'"),
        Identity::Trusted(name) => format!(" -H '{name}: demo'"),
        Identity::Jwt(_) | Identity::Check(_) => " -H \"Authorization: Bearer $TOKEN\"".to_owned(),
        Identity::Shared(_) => String::new(),
    };
    let path = config.routes.first().map_or_else(
        || "/orders".to_owned(),
        |route| {
            let pattern = route.pattern.to_string();
            pattern.split_once(' ').map_or("/", |(_, path)| path).to_owned()
        },
    );
    format!(
        "curl -i -X POST {scheme}://{listen}{path}{credential} -H \"Idempotency-Key: $(uuidgen)\" \
         -H 'Content-Type: application/json' -d '{{}}'"
    )
}
