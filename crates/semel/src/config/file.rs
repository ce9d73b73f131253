//! The shape of `semel.toml`. Owns the names of the settings; means nothing by them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_contract::fingerprint::Input;
use semel_contract::identity::Identity;
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Presence, Source, Syntax};
use semel_contract::problem::render::Form;
use semel_contract::profile::presets::{PRESETS, Preset};
use semel_contract::profile::{Anchor, FailedKey, InFlight, OnError, OnUnknown, Rate, Reveal, SweepWhen};
use semel_contract::record::Guarantee;
use semel_contract::staleness::Submitted;
use serde::Deserialize;

use super::values::{Bytes, LogTo, Match, OneOf, RedisUrl, Setting, Store, Text, Url, Word};
use crate::exit::{Exit, Stop};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) store: Option<Text<Store>>,
    pub(crate) identity: Option<Text<Identity>>,
    pub(crate) gate: Gate,
    pub(crate) defaults: Settings,
    pub(crate) route: BTreeMap<String, Settings>,
}

/// Whether anything is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is.
    #[default]
    Enforce,
    /// Duplicates are counted, nothing is changed.
    Observe,
}

impl Word for Mode {
    const WORDS: &'static [(&'static str, Self)] = &[("enforce", Mode::Enforce), ("observe", Mode::Observe)];
}

/// Settings that can be laid over one another: each is there or it is not.
macro_rules! layered {
    ($(#[$about:meta])* $name:ident { $($(#[$how:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $($(#[$how])* pub(crate) $field: Option<$type>,)*
        }

        impl $name {
            /// These settings, and where they say nothing those below.
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field),)* }
            }
        }
    };
}

layered! {
    /// `[gate]`
    Gate {
        listen: Text<SocketAddr>,
        admin: Text<SocketAddr>,
        upstream: OneOf<Url, Upstream>,
        mode: Text<Mode>,
        tls: Tls,
        limits: Limits,
        trusted_peers: Vec<String>,
        access_log: Text<LogTo>,
        drain: Text<Duration>,
        redis: Text<RedisUrl>,
        at_rest: AtRest,
        sweep: Text<SweepWhen>,
        postgres: Postgres,
    }
}

/// `upstream = { url = "https://…", … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    pub(crate) url: Text<Url>,
    pub(crate) timeout: Option<Text<Duration>>,
    pub(crate) connect_timeout: Option<Text<Duration>>,
    pub(crate) stream_idle: Option<Text<Duration>>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) http2: Option<bool>,
    pub(crate) host: Option<Text<HostWord>>,
    pub(crate) connections: Option<usize>,
}

/// Which `Host` the upstream is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostWord {
    Client,
    Upstream,
}

/// `tls = { cert = "…", key = "…" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// `[gate.limits]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub(crate) header_timeout: Option<Text<Duration>>,
    pub(crate) body_timeout: Option<Text<Duration>>,
    pub(crate) idle_timeout: Option<Text<Duration>>,
    pub(crate) write_timeout: Option<Text<Duration>>,
    pub(crate) connections: Option<usize>,
    pub(crate) headers: Option<usize>,
    pub(crate) header_bytes: Option<Text<Bytes>>,
    pub(crate) streams: Option<u32>,
    pub(crate) running: Option<usize>,
    pub(crate) waiting: Option<usize>,
    pub(crate) waiting_per_key: Option<usize>,
}

/// `at_rest = { keys = "…", compress = true }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtRest {
    pub(crate) keys: Option<PathBuf>,
    pub(crate) compress: Option<bool>,
}

/// `postgres = { connections = 8, migrate = false }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Postgres {
    pub(crate) connections: Option<usize>,
    pub(crate) migrate: Option<bool>,
}

layered! {
    /// `[defaults]` and every `[route.NAME]`.
    Settings {
        #[serde(rename = "match")]
        matches: Text<Match>,
        was: Vec<String>,
        profile: Text<&'static Preset>,
        guarantee: Text<Guarantee>,
        key: Text<Presence>,
        key_sources: Vec<Text<Source>>,
        key_syntax: Text<Syntax>,
        key_format: Text<Format>,
        require_headers: Vec<Header>,
        scope: Vec<Text<ScopePart>>,
        fingerprint: OneOf<NoneWord, Recipe>,
        mismatch: OneOf<IgnoreWord, Refusal>,
        in_flight: Text<InFlight>,
        on_unknown: OneOf<OnUnknown, Probe>,
        on_error: Text<OnError>,
        failed_key: Text<FailedKey>,
        errors: Text<Form>,
        retry_window: Text<Duration>,
        skew: Text<Duration>,
        margin: Text<Duration>,
        record_lifetime: Text<Duration>,
        released_lifetime: Text<Duration>,
        lifetime_from: Text<Anchor>,
        sweep_grace: Text<Duration>,
        max_age: Text<Duration>,
        request_limit: OneOf<LimitWord, RequestLimit>,
        admission_limit: Text<Rate>,
        max_body: Text<Bytes>,
        max_response: Text<Bytes>,
        lease: Text<Duration>,
        late_window: Text<Duration>,
        guard: Guard,
        age: Text<AgeFrom>,
    }
}

/// A header that must come with the key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) format: Text<Format>,
}

/// A part of the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopePart {
    Tenant,
    Principal,
    Endpoint,
}

/// What a fingerprint is made of.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    pub(crate) inputs: Option<Vec<Text<Input>>>,
    pub(crate) include: Option<Vec<Text<Pointer>>>,
    pub(crate) exclude: Option<Vec<Text<Pointer>>>,
}

/// The word `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoneWord;

/// How a mismatch is refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusal {
    pub(crate) status: Option<u16>,
    pub(crate) reveal: Option<Text<Reveal>>,
}

/// The word `ignore`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IgnoreWord;

/// `{ probe = "URL" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Probe {
    pub(crate) probe: Text<Url>,
}

/// A rate, or `"all"`: the limiter, whatever its rate, refuses known keys too.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LimitWord {
    All,
    Rate(Rate),
}

impl Setting for LimitWord {
    fn read(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(LimitWord::All) } else { Rate::read(text).map(LimitWord::Rate) }
    }
}

/// `{ rate = "100/1s", refuses = "all" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLimit {
    pub(crate) rate: Text<Rate>,
    pub(crate) refuses: Text<Refuses>,
}

/// Whom the request limiter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refuses {
    Unknown,
    All,
}

/// The staleness guard.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guard {
    pub(crate) generated_at: Text<Pointer>,
    pub(crate) submitted_at: Option<Text<Pointer>>,
    pub(crate) cap: Text<Duration>,
    pub(crate) grace: Text<Duration>,
    pub(crate) submitted: Option<Text<Submitted>>,
    pub(crate) submitted_gap: Option<Text<Duration>>,
}

/// Where the time of the first attempt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgeFrom {
    Header,
    Uuid7,
}

macro_rules! words {
    ($($type:ty { $($word:literal $value:expr),* $(,)? })*) => {
        $(impl Word for $type { const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),*]; })*
    };
}

words! {
    Guarantee { "atomic" Guarantee::Atomic, "fenced" Guarantee::Fenced }
    Presence { "required" Presence::Required, "optional" Presence::Optional, "mint" Presence::Mint }
    Syntax { "bare" Syntax::Bare, "sf-string" Syntax::SfString, "both" Syntax::Both }
    ScopePart { "tenant" ScopePart::Tenant, "principal" ScopePart::Principal, "endpoint" ScopePart::Endpoint }
    NoneWord { "none" NoneWord }
    IgnoreWord { "ignore" IgnoreWord }
    Input {
        "method" Input::Method, "route" Input::Route, "params" Input::Params, "query" Input::Query,
        "principal" Input::Principal, "body" Input::Body,
    }
    Reveal { "none" Reveal::None, "prefix8" Reveal::Prefix8, "payload-hashes" Reveal::PayloadHashes }
    OnUnknown { "hold" OnUnknown::Hold, "forward" OnUnknown::Forward, "rerun" OnUnknown::Rerun }
    OnError { "replay" OnError::Replay, "release" OnError::Release }
    FailedKey { "reclaim" FailedKey::Reclaim, "sealed" FailedKey::Sealed }
    Anchor { "created" Anchor::Created, "settled" Anchor::Settled }
    HostWord { "client" HostWord::Client, "upstream" HostWord::Upstream }
    Refuses { "unknown" Refuses::Unknown, "all" Refuses::All }
    Submitted { "ignore" Submitted::Ignore, "refuse" Submitted::Refuse, "correct" Submitted::Correct }
    AgeFrom { "header" AgeFrom::Header, "uuid7" AgeFrom::Uuid7 }
}

impl Word for Form {
    const WORDS: &'static [(&'static str, Self)] = &Form::ALL;
}

impl Word for &'static Preset {
    const WORDS: &'static [(&'static str, Self)] = &{
        let mut words = [("", &PRESETS[0]); PRESETS.len()];
        let mut at = 0;
        while at < PRESETS.len() {
            words[at] = (PRESETS[at].0, &PRESETS[at]);
            at += 1;
        }
        words
    };
}

impl File {
    /// This file, and where it says nothing the one below. Routes are not overridden.
    pub(crate) fn over(self, below: Self) -> Self {
        Self {
            store: self.store.or(below.store),
            identity: self.identity.or(below.identity),
            gate: self.gate.over(below.gate),
            defaults: self.defaults.over(below.defaults),
            route: if self.route.is_empty() { below.route } else { self.route },
        }
    }

    /// What holds without a file: a key is welcome, not demanded.
    pub(crate) fn without_configuration() -> Self {
        let defaults = Settings { key: Some(Text(Presence::Optional)), ..Settings::default() };
        Self { defaults, ..Self::default() }
    }

    /// Reads a file. Errors carry the line.
    pub(crate) fn read(path: &Path) -> Result<Self, Stop> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Stop::new(Exit::Config, format!("failed to read {}: {error}", path.display()))
        })?;
        toml::from_str(&text).map_err(|error| {
            Stop::new(Exit::Config, format!("{}: {}", path.display(), error.to_string().trim_end()))
        })
    }
}

impl Settings {
    /// A route's name and its renames make no sense as defaults.
    pub(crate) fn refuse_in_defaults(&self) -> Result<(), String> {
        match (&self.matches, &self.was) {
            (None, None) => Ok(()),
            (Some(_), _) | (_, Some(_)) => Err("defaults: `match` and `was` belong to a route".to_owned()),
        }
    }
}
