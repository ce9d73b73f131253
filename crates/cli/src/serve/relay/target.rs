//! `[relay.target.NAME]`: what is declared about an upstream, and what it means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_contract::profile::presets;
use semel_contract::time::parse_duration;
use semel_delivery::http1::Http1;
use semel_delivery::relay::Target;
use semel_delivery::relay::debounce::Debounce;
use semel_delivery::relay::policy::Scope;
use semel_delivery::relay::recovery::{Blind, Capability};
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::target::Interference;
use semel_delivery::relay::template::{Place, Template, Values};
use semel_delivery::relay::upstream::http::{HttpUpstream, Reading, VersionAt};
use semel_delivery::transport::Transport;
use semel_delivery::url::Target as Address;

use super::file::{ReadFile, TargetFile};

/// A duration of the settings.
pub(crate) fn duration(name: &str, text: Option<&str>, usual: Duration) -> Result<Duration, String> {
    text.map_or(Ok(usual), |text| parse_duration(text).map_err(|error| format!("{name}: {error}")))
}

/// The target that these settings mean.
pub(crate) fn target(
    name: &str,
    file: &TargetFile,
    (quiet, max_wait): (Duration, Duration),
    transport: &Arc<dyn Transport>,
) -> Result<Target, String> {
    let timeout = duration("timeout", file.timeout.as_deref(), Duration::from_secs(10))?;
    let upstream = upstream(file, timeout, transport)?;
    let groups = upstream.tells_groups_apart();
    let writes_deltas = upstream.writes_only_deltas();
    let mut made = Target::new(name, Arc::new(upstream), tier(file)?);
    made.groups = groups;
    made.timeout = timeout;
    made.late_window = match (&file.late_window, made.tier) {
        (None, Capability::Marker | Capability::ReadBack) => {
            return Err(format!(
                "tier {} needs late_window: how late a write may still be applied",
                made.tier.name()
            ));
        }
        (text, _) => duration("late_window", text.as_deref(), made.late_window)?,
    };
    made.reducer = match file.reducer.as_deref() {
        None | Some("sum") => Reducer::Sum,
        Some("last") => Reducer::Last,
        Some("max") => Reducer::Max,
        Some(other) => return Err(format!("reducer {other:?}: expected sum, last or max")),
    };
    if made.reducer != Reducer::Sum && writes_deltas {
        let reducer = file.reducer.as_deref().unwrap_or_default();
        return Err(format!(
            "reducer {reducer} writes whole values, and {{delta}} alone is not one: use {{after}} or {{value}} in the url or the body"
        ));
    }
    let quiet_own = duration("debounce", file.debounce.as_deref(), quiet)?;
    let usual = if file.debounce.is_some() { quiet_own } else { max_wait };
    made.debounce =
        Debounce { quiet: quiet_own, max_wait: duration("max_wait", file.max_wait.as_deref(), usual)? };
    made.sync_deadline = duration("sync_deadline", file.sync_deadline.as_deref(), made.sync_deadline)?;
    made.batch_max = file.batch_max.unwrap_or(made.batch_max);
    made.items_max = file.items_max.unwrap_or(made.items_max);
    made.blocked.clone_from(&file.blocked);
    if let Some(scope) = &file.limit_scope {
        made.limit_scope = Scope::parse(scope)
            .ok_or(format!("limit_scope {scope:?}: expected credential, target or host"))?;
    }
    made.interference = match file.interference.as_deref() {
        None | Some("accept") => Interference::Accept,
        Some("hold") => Interference::Hold,
        Some(other) => return Err(format!("interference {other:?}: expected accept or hold")),
    };
    if let Some(profile) = &file.profile {
        made.profile = presets::preset(profile).ok_or(format!("there is no profile {profile:?}"))?;
    }
    made.profile.schedule.blocked =
        duration("blocked_wait", file.blocked_wait.as_deref(), made.profile.schedule.blocked)?;
    made.check()?;
    Ok(made)
}

fn tier(file: &TargetFile) -> Result<Capability, String> {
    Ok(match file.tier.as_str() {
        "key" => {
            let text = file.key_retention.as_deref();
            let text = text.ok_or("tier key needs key_retention: how long the upstream knows a key again")?;
            let retention = duration("key_retention", Some(text), Duration::ZERO)?;
            if retention.is_zero() {
                return Err(
                    "key_retention: a service that forgets a key at once offers none; use another tier"
                        .to_owned(),
                );
            }
            Capability::Key { retention }
        }
        "marker" => Capability::Marker,
        "compare-and-set" => Capability::CompareAndSet,
        "read-back" => Capability::ReadBack,
        "blind" => Capability::Blind(match file.on_blind.as_deref() {
            Some("at-most-once") => Blind::AtMostOnce,
            Some("at-least-once") => Blind::AtLeastOnce,
            _ => return Err("tier blind needs on_blind: at-most-once or at-least-once".to_owned()),
        }),
        other => {
            return Err(format!("tier {other:?}: expected key, marker, compare-and-set, read-back or blind"));
        }
    })
}

fn upstream(
    file: &TargetFile,
    timeout: Duration,
    transport: &Arc<dyn Transport>,
) -> Result<HttpUpstream, String> {
    let template = |name: &str, place, text: &str| {
        Template::parse(place, text).map_err(|error| format!("{name}: {error}"))
    };
    let lines = |headers: &BTreeMap<String, String>| {
        let line = |(name, value): (&String, &String)| {
            if !semel_contract::key::is_header_name(name) {
                return Err(format!("headers: {name:?} is not the name of a header"));
            }
            Ok((name.clone(), template(name, Place::Header, value)?))
        };
        headers.iter().map(line).collect::<Result<Vec<_>, String>>()
    };
    let url = template("url", Place::Url, &file.url)?;
    let body_place = match file.body_type.as_deref() {
        None | Some("json") => Place::Json,
        Some("form") => Place::Form,
        Some(other) => return Err(format!("body_type {other:?}: expected json or form")),
    };
    let body = file.body.as_deref().map(|body| template("body", body_place, body)).transpose()?;
    let mut headers = lines(&file.headers)?;
    let has = |headers: &[(String, Template)], name: &str| {
        headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    if body.is_some() && !has(&headers, "content-type") {
        let kind =
            if body_place == Place::Json { "application/json" } else { "application/x-www-form-urlencoded" };
        headers.push(("content-type".to_owned(), template("content-type", Place::Header, kind)?));
    }
    let all = || std::iter::once(&url).chain(&body).chain(headers.iter().map(|(_, value)| value));
    let needed: &[&str] = match file.tier.as_str() {
        "key" => &["key"],
        "marker" => &["marker", "key"],
        "compare-and-set" => &["version"],
        _ => &[],
    };
    if !needed.is_empty() && !needed.iter().any(|name| all().any(|template| template.uses(name))) {
        return Err(format!("tier {} needs {{{}}} in the url, a header or the body", file.tier, needed[0]));
    }
    let is_absolute = matches!(file.tier.as_str(), "marker" | "compare-and-set" | "read-back");
    if is_absolute && !["after", "value"].iter().any(|name| all().any(|template| template.uses(name))) {
        return Err(format!("tier {} writes whole values: use {{after}} in the url or the body", file.tier));
    }
    let read = file.read.as_ref().map(|read| reading(read, &template, &lines)).transpose()?;
    if file.tier == "compare-and-set" && read.as_ref().is_none_or(|read| read.version.is_none()) {
        return Err("tier compare-and-set needs read.version: header:NAME or a JSON pointer".to_owned());
    }
    if file.tier == "marker" && read.as_ref().is_none_or(|read| read.marker.is_none()) {
        return Err(
            "tier marker needs read.marker: the JSON pointer to the marker or the list of markers".to_owned()
        );
    }
    let own = origin("url", &url)?;
    let transport = match &file.ca {
        Some(path) => Arc::new(Http1::trusting_file(path).map_err(|error| format!("ca: {error}"))?),
        None => Arc::clone(transport),
    };
    if file.ca.is_some() && !own.starts_with("https:") {
        return Err("`ca` is for https only".to_owned());
    }
    if let Some(read) = &read {
        let of_read = origin("read.url", &read.url)?;
        if of_read != own {
            return Err(format!(
                "read.url is at {of_read}, and must be at {own}: credentials go to one origin only"
            ));
        }
    }
    if let Some(body) = &body {
        let filled = body.fill(&sample("1")).map_err(|error| format!("body: {error}"))?;
        if !body.makes_json(&filled) {
            return Err(format!(
                "body: {filled} is not JSON: write {{{{ and }}}} for braces, and quotes around texts"
            ));
        }
    }
    Ok(HttpUpstream {
        origin: own,
        method: file.method.clone().unwrap_or_else(|| "POST".to_owned()).to_ascii_uppercase(),
        url,
        headers,
        body,
        read,
        timeout,
        transport,
    })
}

type Parse<'a> = dyn Fn(&str, Place, &str) -> Result<Template, String> + 'a;
type Lines<'a> = dyn Fn(&BTreeMap<String, String>) -> Result<Vec<(String, Template)>, String> + 'a;

fn reading(file: &ReadFile, template: &Parse<'_>, lines: &Lines<'_>) -> Result<Reading, String> {
    let pointer =
        |name: &str, text: &str| Pointer::parse(text).map_err(|error| format!("read.{name}: {error}"));
    Ok(Reading {
        url: template("read.url", Place::Url, &file.url)?,
        headers: lines(&file.headers)?,
        value: pointer("value", &file.value)?,
        version: match file.version.as_deref() {
            Some(text) => Some(match text.strip_prefix("header:") {
                Some(name) => VersionAt::Header(name.to_owned()),
                None => VersionAt::Body(pointer("version", text)?),
            }),
            None => None,
        },
        marker: file.marker.as_deref().map(|text| pointer("marker", text)).transpose()?,
    })
}

/// Scheme, host and port, which no value may change: it must not be part of them.
fn origin(name: &str, url: &Template) -> Result<String, String> {
    let filled = |value: &str| {
        let text = url.fill(&sample(value)).map_err(|error| format!("{name}: {error}"))?;
        Address::absolute(&text).map(|address| address.origin).map_err(|error| format!("{name}: {error}"))
    };
    let (one, other) = (filled("1")?, filled("2")?);
    if one == other { Ok(one) } else { Err(format!("{name}: a value must not be part of the host")) }
}

/// The same value for everything that a template may name.
fn sample(value: &str) -> Values {
    semel_delivery::relay::template::NAMES.iter().map(|name| (*name, value.to_owned())).collect()
}
