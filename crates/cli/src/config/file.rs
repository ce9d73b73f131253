//! The shape of `semel.toml`: the names of the settings and how each is written. Their meaning is decided elsewhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_contract::fingerprint::Input;
use semel_contract::identity::Identity;
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Presence, Source, Syntax};
use semel_contract::outcome::Keep;
use semel_contract::problem::render::Form;
use semel_contract::profile::presets::{PRESETS, Preset};
use semel_contract::profile::{
    Anchor, FailedKey, InFlight, OnError, OnUnknown, Rate, Replay, Reveal, SweepWhen,
};
use semel_contract::record::Guarantee;
use semel_contract::staleness::Submitted;
use serde::Deserialize;

use super::values::{Bytes, Kept, LogTo, Match, OneOf, RedisUrl, Setting, Store, Text, Url, Word};
use crate::exit::{Exit, Stop};

/// The whole file
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where records are kept: `sqlite:PATH` or `postgres://…`. Default `sqlite:semel.db`.
    pub(crate) store: Option<Text<Store>>,
    /// Who sends requests: `authorization`, `cookie:NAME`, `trusted:NAME`, `jwt:KEYS`, `check:URL` or
    /// `shared:NAME`. Default `authorization`.
    pub(crate) identity: Option<Text<Identity>>,
    /// The gateway: see `[gate]`.
    pub(crate) gate: Gate,
    /// The outbox: see `[outbox]`.
    pub(crate) outbox: Option<toml::Table>,
    /// The relay: see `[relay]`.
    pub(crate) relay: Option<toml::Table>,
    /// What every route takes over: see the settings of a route.
    pub(crate) defaults: Settings,
    /// The routes, each under its stable name.
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
            /// Whether any setting is there.
            pub(crate) fn says_something(&self) -> bool {
                false $(|| self.$field.is_some())*
            }

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
        /// Where clients connect. Default `127.0.0.1:7400`.
        listen: Text<SocketAddr>,
        /// Where operators look; beyond the loopback it needs tokens. Default `127.0.0.1:7401`.
        admin: Text<SocketAddr>,
        /// A file with the token of operators who may change things.
        admin_token_file: PathBuf,
        /// A file with the token of operators who may only look.
        admin_read_token_file: PathBuf,
        /// What stands behind the gate: a URL, or a table (see below).
        upstream: OneOf<Url, Upstream>,
        /// `enforce`, or `observe`: nothing is changed, would-be duplicates are counted. Default `enforce`.
        mode: Text<Mode>,
        /// The certificate that clients see. Without it the gate speaks plain HTTP.
        tls: Tls,
        /// What clients and the gate may take: see below.
        limits: Limits,
        /// Addresses or networks whose `trusted:NAME` header is believed. Default: the loopback.
        trusted_peers: Vec<String>,
        /// Origins of pages that may use the gate from a browser, such as `https://app.example`; `*` means all. Default: none.
        cors: Vec<String>,
        /// Whether those pages may send cookies; not together with `*`. Default `false`.
        cors_credentials: bool,
        /// Where requests are written down: `stderr`, `off` or a path. Default `stderr`.
        access_log: Text<LogTo>,
        /// How long running requests are waited for at the end; then they are marked unknown. Default `30s`.
        drain: Text<Duration>,
        /// Where limits are counted across gateways: `redis://…`. Without it, in the store.
        redis: Text<RedisUrl>,
        /// How answers are protected where they are kept. Not together with `atomic` routes.
        at_rest: AtRest,
        /// A file of secrets, one on each line, with the first of which fingerprints are keyed, so that a guessable body
        /// cannot be recognised by its hash. The others, and none, are still recognised: leave an old one there for one
        /// retention.
        fingerprint_keys: PathBuf,
        /// The name under which the store remembers how this gate's keys are recorded. Gates before different services that
        /// share a store need different names; replicas need the same one. Default: the upstream's address; say
        /// a name before that address changes, or the gate counts as a new one and does not know how its keys were recorded before.
        name: String,
        /// Identities that were in force before `identity` was changed. Keys that were used with them stay known for one
        /// retention on requests that still carry them. Needed for `trusted:`, `jwt:` and `check:`; others are read anyway.
        was_identity: Vec<Text<Identity>>,
        /// Whether keys that were used before a change of routes, identity, scope or fingerprints may run again. Default
        /// `false`: they are looked up as they were recorded, for one retention.
        forget_former: bool,
        /// When expired records are removed: `every 1h` or `daily 03:00`. Default: as the profile says.
        sweep: Text<SweepWhen>,
        /// The connection to PostgreSQL: see below.
        postgres: Postgres,
    }
}

/// `[gate.upstream]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    /// The service, `http://…` or `https://…`.
    pub(crate) url: Text<Url>,
    /// How long it may take to begin its answer, and be silent within it. Default `60s`.
    pub(crate) timeout: Option<Text<Duration>>,
    /// How long a connection may take to open. Default `5s`.
    pub(crate) connect_timeout: Option<Text<Duration>>,
    /// How long a stream without a key may be silent. Default `1h`.
    pub(crate) stream_idle: Option<Text<Duration>>,
    /// A PEM file of authorities to trust instead of the usual ones.
    pub(crate) ca: Option<PathBuf>,
    /// Whether HTTP/2 is spoken with it; a keyed request then has a connection of its own while it runs. Default `false`.
    pub(crate) http2: Option<bool>,
    /// Which `Host` it is told: `client` (what the client sent) or `upstream`. Default `client`.
    pub(crate) host: Option<Text<HostWord>>,
    /// Connections at most. Default `4096`.
    pub(crate) connections: Option<usize>,
}

/// Which `Host` the upstream is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostWord {
    Client,
    Upstream,
}

/// `[gate.tls]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    /// The certificate chain, a PEM file. Read anew on SIGHUP.
    pub(crate) cert: PathBuf,
    /// Its private key, a PEM file.
    pub(crate) key: PathBuf,
}

/// `[gate.limits]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// How long a client may take to send its first bytes and its headers. Default `10s`.
    pub(crate) header_timeout: Option<Text<Duration>>,
    /// How long a request's body may be silent. Default `60s`.
    pub(crate) body_timeout: Option<Text<Duration>>,
    /// How long the whole body of a keyed request may take. Default `5m`.
    pub(crate) body_deadline: Option<Text<Duration>>,
    /// Bytes of the bodies of keyed requests that are in memory at a time, in all; what finds no room is refused before it is
    /// read. Default `256MiB`.
    pub(crate) bodies: Option<Text<Bytes>>,
    /// How long a connection without a request is kept. Default `75s`.
    pub(crate) idle_timeout: Option<Text<Duration>>,
    /// How long a client may refuse to read its answer. Default `60s`.
    pub(crate) write_timeout: Option<Text<Duration>>,
    /// Connections of clients at most. Default `10000`.
    pub(crate) connections: Option<usize>,
    /// Header lines of a request at most. Default `100`.
    pub(crate) headers: Option<usize>,
    /// Bytes of a request's headers at most. Default `64KiB`.
    pub(crate) header_bytes: Option<Text<Bytes>>,
    /// HTTP/2 streams of one connection at most. Default `250`.
    pub(crate) streams: Option<u32>,
    /// Keyed requests that run at a time; more are refused before they are claimed. Default `10000`.
    pub(crate) running: Option<usize>,
    /// Requests that wait for another with their key, in all. Default `100000`.
    pub(crate) waiting: Option<usize>,
    /// The same, for one key. Default `10000`.
    pub(crate) waiting_per_key: Option<usize>,
}

/// `[gate.at_rest]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtRest {
    /// A file of keys, the first for writing, all for reading. Without it nothing is encrypted.
    pub(crate) keys: Option<PathBuf>,
    /// Whether answers are compressed. Default `false`.
    pub(crate) compress: Option<bool>,
}

/// `[gate.postgres]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Postgres {
    /// Connections for requests. Default `8`.
    pub(crate) connections: Option<usize>,
    /// Whether the schema is brought up to date at the start. Default `true`; otherwise `semel migrate` does it.
    pub(crate) migrate: Option<bool>,
    /// Whose certificates are believed where the store's URL says `sslmode=require`, as a PEM file. Default: those that
    /// browsers believe.
    pub(crate) ca: Option<PathBuf>,
}

layered! {
    /// `[defaults]` and every `[route.NAME]`.
    Settings {
        /// Which requests the route covers: `POST /orders/{id}`, `PUT|PATCH /a`, `* /api/{rest*}`. Required in a
        /// route.
        #[serde(rename = "match")]
        matches: Text<Match>,
        /// Former names of the endpoint; keys known under them stay known.
        was: Vec<String>,
        /// Who sends requests on this route, where that is another question than elsewhere.
        identity: Text<Identity>,
        /// The preset that the route starts from: `ietf`, `stripe`, `walker`, `agents`, `scores`, `feed` or `mesh`.
        /// Default `ietf`.
        profile: Text<&'static Preset>,
        /// `fenced`, or `atomic`: the handler calls `semel.settle()` in its own transaction.
        guarantee: Text<Guarantee>,
        /// `required`, `optional` or `mint` (a key is made where there is none). Default `optional`; the profiles `walker`,
        /// `scores` and `feed` require one, `mesh` makes one.
        key: Text<Presence>,
        /// Where the key is, in order: `header:NAME`, `json:/pointer`.
        key_sources: Vec<Text<Source>>,
        /// How it is written: `bare`, `sf-string` or `both`.
        key_syntax: Text<Syntax>,
        /// What it may be: `uuid4-lower`, `uuid`, `token255`, `printable255`, `any255`, `ulid` or `regex:…`.
        key_format: Text<Format>,
        /// Headers that must come with the key and are kept with the record.
        require_headers: Vec<Header>,
        /// Which of `tenant`, `principal` and `endpoint` a key belongs to.
        scope: Vec<Text<ScopePart>>,
        /// What makes two requests the same, a table; or `none`: it is not looked at.
        fingerprint: OneOf<NoneWord, Recipe>,
        /// What another request under the same key gets, a table; or `ignore`.
        mismatch: OneOf<IgnoreWord, Refusal>,
        /// While the first attempt runs: `wait 25s`, `reject 1s` (409 and `Retry-After`) or `accepted` (202).
        in_flight: Text<InFlight>,
        /// When it is not known whether it took effect: `hold`, `forward`, `rerun` or `{ probe = "URL" }`.
        on_unknown: OneOf<OnUnknown, Probe>,
        /// A 5xx that may have taken effect: `replay`, or `release` where the service rolls back on error.
        on_error: Text<OnError>,
        /// A key that surely had no effect: `reclaim` or `sealed`.
        failed_key: Text<FailedKey>,
        /// The form of refusals: `problem`, `envelope`, `error`, `message`, `text` or `mesh`.
        errors: Text<Form>,
        /// How long clients may go on retrying with one key; record lifetimes follow from it.
        retry_window: Text<Duration>,
        /// How far clocks may be apart.
        skew: Text<Duration>,
        /// What is added to a record's lifetime for safety.
        margin: Text<Duration>,
        /// A lifetime set by hand, or `forever`, instead of `retry_window` + 2 × `skew` + `margin`.
        record_lifetime: Text<Kept>,
        /// How long a released row stays for inspection. Without it, not at all.
        released_lifetime: Text<Duration>,
        /// From when a lifetime counts: `created` or `settled`.
        lifetime_from: Text<Anchor>,
        /// How long an expired record stays before it is swept.
        sweep_grace: Text<Duration>,
        /// How long the clients of this route may hold a request back; the record must outlive it.
        max_age: Text<Duration>,
        /// Requests of a principal: `100/1s`; known keys are answered all the same unless `refuses = "all"`.
        request_limit: OneOf<LimitWord, RequestLimit>,
        /// New keys of a principal: `60/1h`. A retry is never charged.
        admission_limit: Text<Rate>,
        /// Bytes of a keyed request's body at most; more is a 413.
        max_body: Text<Bytes>,
        /// Bytes of an answer that are kept; more passes, and its retry is told `answer-not-kept`.
        max_response: Text<Bytes>,
        /// How long a claim is exclusive without renewal, at least `1s`. Default `30s`.
        lease: Text<Duration>,
        /// How long after its time-out a request that was sent may still take effect. Default `1m`.
        late_window: Text<Duration>,
        /// Refuses actions that are too old or in the future: a table (see below), or `none`.
        guard: OneOf<NoneWord, Guard>,
        /// Where the time of the first attempt comes from: `header` (`Idempotency-First-Sent`), `uuid7` or
        /// `none`.
        age: Text<AgeFrom>,
        /// Which answers are kept (`settle`) and which free the key (`release`), by status or range of statuses:
        /// `{ "404" = "release", "400-499" = "settle" }`. The narrower one counts; others stay as the profile has them.
        record: BTreeMap<String, Text<Keep>>,
        /// What a retry gets: `verbatim`, or `duplicate 200`: the first body under another status.
        replay: Text<Replay>,
    }
}

/// `require_headers = [{ … }]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// The header's name.
    pub(crate) name: String,
    /// What its value may be, as `key_format`.
    pub(crate) format: Text<Format>,
}

/// A part of the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopePart {
    Tenant,
    Principal,
    Endpoint,
}

/// `fingerprint = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    /// Of `method`, `route`, `params`, `query`, `principal` and `body`.
    pub(crate) inputs: Option<Vec<Text<Input>>>,
    /// JSON pointers: only these parts of the body count.
    pub(crate) include: Option<Vec<Text<Pointer>>>,
    /// JSON pointers: these parts do not count.
    pub(crate) exclude: Option<Vec<Text<Pointer>>>,
}

/// The word `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoneWord;

/// `mismatch = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusal {
    /// The status.
    pub(crate) status: Option<u16>,
    /// What the refusal shows: `none`, `prefix8` or `payload-hashes`.
    pub(crate) reveal: Option<Text<Reveal>>,
}

/// The word `ignore`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IgnoreWord;

/// `on_unknown = { probe = "…" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Probe {
    /// A URL template with `{key}` and the path's parameters: 2xx means applied, 404 not applied, anything else
    /// unknown.
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

/// `request_limit = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLimit {
    /// The rate, such as `100/1s`.
    pub(crate) rate: Text<Rate>,
    /// `unknown` (only unknown keys) or `all`.
    pub(crate) refuses: Text<Refuses>,
}

/// Whom the request limiter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refuses {
    Unknown,
    All,
}

/// `guard = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guard {
    /// JSON pointer to the time at which the user acted.
    pub(crate) generated_at: Text<Pointer>,
    /// JSON pointer to the time at which the client sent it.
    pub(crate) submitted_at: Option<Text<Pointer>>,
    /// How old an action may be.
    pub(crate) cap: Text<Duration>,
    /// How far clocks may be apart, both ways.
    pub(crate) grace: Text<Duration>,
    /// What the time of sending is for: `ignore`, `refuse` or `correct`.
    pub(crate) submitted: Option<Text<Submitted>>,
    /// How far the time of sending may lie from the server's.
    pub(crate) submitted_gap: Option<Text<Duration>>,
}

/// Where the time of the first attempt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgeFrom {
    None,
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
    Keep { "settle" Keep::Settle, "release" Keep::Release }
    FailedKey { "reclaim" FailedKey::Reclaim, "sealed" FailedKey::Sealed }
    Anchor { "created" Anchor::Created, "settled" Anchor::Settled }
    HostWord { "client" HostWord::Client, "upstream" HostWord::Upstream }
    Refuses { "unknown" Refuses::Unknown, "all" Refuses::All }
    Submitted { "ignore" Submitted::Ignore, "refuse" Submitted::Refuse, "correct" Submitted::Correct }
    AgeFrom { "none" AgeFrom::None, "header" AgeFrom::Header, "uuid7" AgeFrom::Uuid7 }
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
            outbox: self.outbox.or(below.outbox),
            relay: self.relay.or(below.relay),
            defaults: self.defaults.over(below.defaults),
            route: if self.route.is_empty() { below.route } else { self.route },
        }
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
        match (&self.matches, &self.was, &self.identity) {
            (None, None, None) => Ok(()),
            (None, None, Some(_)) => Err("defaults: `identity` stands at the top, or in a route".to_owned()),
            (Some(_), ..) | (_, Some(_), _) => {
                Err("defaults: `match` and `was` belong to a route".to_owned())
            }
        }
    }
}
