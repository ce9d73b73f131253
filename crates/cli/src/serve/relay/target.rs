//! `[relay.target.NAME]`: what is declared about an upstream, and what it means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_contract::profile::settings::values::Word;
use semel_delivery::http1::Http1;
use semel_delivery::relay::Target;
use semel_delivery::relay::debounce::Debounce;
use semel_delivery::relay::recovery::Capability;
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::template::{Place, Template, Values};
use semel_delivery::relay::upstream::http::{HttpUpstream, Reading};
use semel_delivery::transport::Transport;
use semel_delivery::url::Target as Address;

use super::file::{ReadFile, TargetFile};
use super::values::{BodyType, HeaderTemplate, Tier, template};
use crate::config::Text;

/// What is written, else what is usual.
pub(super) fn or<T: Clone>(written: Option<&Text<T>>, usual: T) -> T {
    written.map_or(usual, |written| written.0.clone())
}

/// The target that these settings mean.
pub(crate) fn target(
    name: &str,
    file: &TargetFile,
    (quiet, max_wait): (Duration, Duration),
    transport: &Arc<dyn Transport>,
) -> Result<Target, String> {
    let timeout = or(file.timeout.as_ref(), Duration::from_secs(10));
    let upstream = upstream(file, timeout, transport)?;
    let groups = upstream.tells_groups_apart();
    let writes_deltas = upstream.writes_only_deltas();
    let mut made = Target::new(name, Arc::new(upstream), capability(file)?);
    made.groups = groups;
    made.timeout = timeout;
    made.late_window = match (&file.late_window, made.tier) {
        (None, Capability::Marker | Capability::ReadBack) => {
            return Err(format!(
                "tier {} needs late_window: how late a write may still be applied",
                made.tier.name()
            ));
        }
        (window, _) => or(window.as_ref(), made.late_window),
    };
    made.reducer = or(file.reducer.as_ref(), made.reducer);
    if made.reducer != Reducer::Sum && writes_deltas {
        let reducer = Reducer::WORDS.iter().find(|(_, reducer)| *reducer == made.reducer);
        return Err(format!(
            "reducer {} writes whole values, and {{delta}} alone is not one: use {{after}} or {{value}} in the url or the body",
            reducer.map_or("", |(word, _)| word)
        ));
    }
    let quiet_own = or(file.debounce.as_ref(), quiet);
    let usual = if file.debounce.is_some() { quiet_own } else { max_wait };
    made.debounce = Debounce { quiet: quiet_own, max_wait: or(file.max_wait.as_ref(), usual) };
    made.sync_deadline = or(file.sync_deadline.as_ref(), made.sync_deadline);
    made.batch_max = file.batch_max.unwrap_or(made.batch_max);
    made.items_max = file.items_max.unwrap_or(made.items_max);
    made.blocked.clone_from(&file.blocked);
    made.limit_scope = or(file.limit_scope.as_ref(), made.limit_scope);
    made.interference = or(file.interference.as_ref(), made.interference);
    if let Some(Text(preset)) = &file.profile {
        made.profile = preset.0.clone();
    }
    made.profile.schedule.blocked = or(file.blocked_wait.as_ref(), made.profile.schedule.blocked);
    made.check()?;
    Ok(made)
}

fn capability(file: &TargetFile) -> Result<Capability, String> {
    Ok(match file.tier.0 {
        Tier::Key => {
            let retention = file.key_retention.as_ref();
            let Text(retention) =
                *retention.ok_or("tier key needs key_retention: how long the upstream knows a key again")?;
            if retention.is_zero() {
                return Err(
                    "key_retention: a service that forgets a key at once offers none; use another tier"
                        .to_owned(),
                );
            }
            Capability::Key { retention }
        }
        Tier::Marker => Capability::Marker,
        Tier::CompareAndSet => Capability::CompareAndSet,
        Tier::ReadBack => Capability::ReadBack,
        Tier::Blind => match &file.on_blind {
            Some(Text(blind)) => Capability::Blind(*blind),
            None => return Err("tier blind needs on_blind: at-most-once or at-least-once".to_owned()),
        },
    })
}

fn upstream(
    file: &TargetFile,
    timeout: Duration,
    transport: &Arc<dyn Transport>,
) -> Result<HttpUpstream, String> {
    let url = file.url.0.0.clone();
    let body_type = or(file.body_type.as_ref(), BodyType::default());
    let body_place = match body_type {
        BodyType::Json => Place::Json,
        BodyType::Form => Place::Form,
    };
    let body = file.body.as_deref().map(|body| template(body_place, body));
    let body = body.transpose().map_err(|error| format!("body: {error}"))?;
    let mut headers = lines(&file.headers)?;
    let has = |headers: &[(String, Template)], name: &str| {
        headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    if body.is_some() && !has(&headers, "content-type") {
        let kind = match body_type {
            BodyType::Json => "application/json",
            BodyType::Form => "application/x-www-form-urlencoded",
        };
        headers.push(("content-type".to_owned(), template(Place::Header, kind)?));
    }
    let all = || std::iter::once(&url).chain(&body).chain(headers.iter().map(|(_, value)| value));
    let tier = file.tier.0;
    let needed: &[&str] = match tier {
        Tier::Key => &["key"],
        Tier::Marker => &["marker", "key"],
        Tier::CompareAndSet => &["version"],
        Tier::ReadBack | Tier::Blind => &[],
    };
    if !needed.is_empty() && !needed.iter().any(|name| all().any(|template| template.uses(name))) {
        return Err(format!("tier {} needs {{{}}} in the url, a header or the body", tier.name(), needed[0]));
    }
    let is_absolute = match tier {
        Tier::Marker | Tier::CompareAndSet | Tier::ReadBack => true,
        Tier::Key | Tier::Blind => false,
    };
    if is_absolute && !["after", "value"].iter().any(|name| all().any(|template| template.uses(name))) {
        return Err(format!(
            "tier {} writes whole values: use {{after}} in the url or the body",
            tier.name()
        ));
    }
    let read = file.read.as_ref().map(reading).transpose()?;
    if tier == Tier::CompareAndSet && read.as_ref().is_none_or(|read| read.version.is_none()) {
        return Err("tier compare-and-set needs read.version: header:NAME or a JSON pointer".to_owned());
    }
    if tier == Tier::Marker && read.as_ref().is_none_or(|read| read.marker.is_none()) {
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

/// The header lines that are sent, each with its name.
fn lines(headers: &BTreeMap<String, Text<HeaderTemplate>>) -> Result<Vec<(String, Template)>, String> {
    let line = |(name, value): (&String, &Text<HeaderTemplate>)| {
        if !semel_contract::key::is_header_name(name) {
            return Err(format!("headers: {name:?} is not the name of a header"));
        }
        Ok((name.clone(), value.0.0.clone()))
    };
    headers.iter().map(line).collect()
}

fn reading(file: &ReadFile) -> Result<Reading, String> {
    Ok(Reading {
        url: file.url.0.0.clone(),
        headers: lines(&file.headers)?,
        value: file.value.0.clone(),
        version: file.version.as_ref().map(|version| version.0.clone()),
        marker: file.marker.as_ref().map(|marker| marker.0.clone()),
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
