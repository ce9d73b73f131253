//! The shape of `semel.toml`. Owns the names of the settings; means nothing by them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use semel_contract::fingerprint::Input;
use semel_contract::identity::Identity;
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Presence, Source, Syntax};
use semel_contract::problem::render::Form;
use semel_contract::profile::presets::{PRESETS, Preset};
use semel_contract::profile::{Anchor, FailedKey, InFlight, OnError, OnUnknown, Rate, Reveal};
use semel_contract::record::Guarantee;
use serde::Deserialize;

use super::values::{Bytes, Store, Text, Url, Word};
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

/// `[gate]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gate {
    pub(crate) listen: Option<Text<SocketAddr>>,
    pub(crate) admin: Option<Text<SocketAddr>>,
    pub(crate) upstream: Option<Text<Url>>,
    pub(crate) mode: Option<Mode>,
}

/// Whether anything is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// `[defaults]` and every `[route.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    #[serde(rename = "match")]
    pub(crate) matches: Option<String>,
    pub(crate) was: Vec<String>,
    pub(crate) profile: Option<Text<&'static Preset>>,
    pub(crate) guarantee: Option<Text<Guarantee>>,
    pub(crate) key: Option<Text<Presence>>,
    pub(crate) key_sources: Option<Vec<Text<Source>>>,
    pub(crate) key_syntax: Option<Text<Syntax>>,
    pub(crate) key_format: Option<Text<Format>>,
    pub(crate) require_headers: Option<Vec<Header>>,
    pub(crate) scope: Option<Vec<Text<ScopePart>>>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) mismatch: Option<Mismatch>,
    pub(crate) in_flight: Option<Text<InFlight>>,
    pub(crate) on_unknown: Option<Unknown>,
    pub(crate) on_error: Option<Text<OnError>>,
    pub(crate) failed_key: Option<Text<FailedKey>>,
    pub(crate) errors: Option<Text<Form>>,
    pub(crate) retry_window: Option<Text<Duration>>,
    pub(crate) skew: Option<Text<Duration>>,
    pub(crate) margin: Option<Text<Duration>>,
    pub(crate) record_lifetime: Option<Text<Duration>>,
    pub(crate) released_lifetime: Option<Text<Duration>>,
    pub(crate) lifetime_from: Option<Text<Anchor>>,
    pub(crate) sweep_grace: Option<Text<Duration>>,
    pub(crate) max_age: Option<Text<Duration>>,
    pub(crate) request_limit: Option<RequestLimit>,
    pub(crate) admission_limit: Option<Text<Rate>>,
    pub(crate) max_body: Option<Text<Bytes>>,
    pub(crate) max_response: Option<Text<Bytes>>,
    pub(crate) guard: Option<Guard>,
    pub(crate) age: Option<Text<AgeFrom>>,
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

/// `"none"`, or what it is made of.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"none\" or a table with inputs, include, exclude")]
pub(crate) enum Fingerprint {
    None(Text<NoneWord>),
    Recipe(Recipe),
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

/// `"ignore"`, or how a mismatch is refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"ignore\" or a table with status, reveal")]
pub(crate) enum Mismatch {
    Ignore(Text<IgnoreWord>),
    Refuse(Refusal),
}

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

/// What to do when the outcome is unknown.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"hold\", \"forward\", \"rerun\" or { probe = \"URL\" }")]
pub(crate) enum Unknown {
    Word(Text<OnUnknown>),
    Probe(Probe),
}

/// `{ probe = "URL" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Probe {
    pub(crate) probe: Text<Url>,
}

/// A rate, or `"all"`: the limiter, whatever its rate, refuses known keys too.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a rate such as \"100/1s\", \"all\", or { rate = \"100/1s\", refuses = \"all\" }"
)]
pub(crate) enum RequestLimit {
    All(Text<AllWord>),
    Rate(Text<Rate>),
    Table(RequestLimitTable),
}

/// The word `all`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllWord;

/// `{ rate = "100/1s", refuses = "all" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLimitTable {
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
    AllWord { "all" AllWord }
    Input {
        "method" Input::Method, "route" Input::Route, "params" Input::Params, "query" Input::Query,
        "principal" Input::Principal, "body" Input::Body,
    }
    Reveal { "none" Reveal::None, "prefix8" Reveal::Prefix8, "payload-hashes" Reveal::PayloadHashes }
    OnUnknown { "hold" OnUnknown::Hold, "forward" OnUnknown::Forward, "rerun" OnUnknown::Rerun }
    OnError { "replay" OnError::Replay, "release" OnError::Release }
    FailedKey { "reclaim" FailedKey::Reclaim, "sealed" FailedKey::Sealed }
    Anchor { "created" Anchor::Created, "settled" Anchor::Settled }
    Refuses { "unknown" Refuses::Unknown, "all" Refuses::All }
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
        match (&self.matches, self.was.is_empty()) {
            (None, true) => Ok(()),
            (Some(_), _) | (_, false) => Err("defaults: `match` and `was` belong to a route".to_owned()),
        }
    }
}
