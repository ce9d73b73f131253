//! What a table of settings may say about a route or a profile: the names of the settings and how each is written. One reader
//! for the profiles that come with semel and for the files of users, so that what the one can say the other can. What the settings
//! mean is in `apply`.

mod apply;
pub mod values;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{
    Anchor, Charge, FailedKey, Generator, GiveUp, InFlight, Lane, OnError, OnUnknown, Rate, Replay, Reveal,
    SweepWhen,
};
use crate::BadSetting;
use crate::classify::Class;
use crate::fingerprint::Input;
use crate::identity::Identity;
use crate::json::Pointer;
use crate::keep::Keep;
use crate::key::{Format, Presence, Source, Syntax};
use crate::problem::render::Form;
use crate::record::Guarantee;
use crate::schedule::Jitter;
use crate::staleness::Submitted;
use values::{Bytes, Kept, Match, OneOf, Setting, Statuses, Text, Url};

/// Settings that can be laid over one another: each is there or it is not.
#[doc(hidden)]
#[macro_export]
macro_rules! layered {
    ($(#[$about:meta])* $name:ident { $($(#[$how:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$how])* pub $field: Option<$type>,)*
        }

        impl $name {
            /// Whether any setting is there.
            pub fn says_something(&self) -> bool {
                false $(|| self.$field.is_some())*
            }

            /// These settings, and where they say nothing those below.
            pub fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field),)* }
            }
        }
    };
}

layered! {
    /// `[defaults]`, every `[route.NAME]` and every `[profile.NAME]`. The profiles that come with semel are such tables too.
    Settings {
        /// Which requests the route covers: `POST /orders/{id}`, `PUT|PATCH /a`, `* /api/{rest*}`. Required in a
        /// route.
        #[serde(rename = "match")]
        matches: Text<Match>,
        /// Former names of the endpoint; keys known under them stay known.
        was: Vec<String>,
        /// Who sends requests on this route, where that is another question than elsewhere.
        identity: Text<Identity>,
        /// The profile that it starts from: `ietf`, `stripe`, `walker`, `agents`, `scores`, `feed`, `mesh`, or one of
        /// `[profile.NAME]`. Default `ietf`.
        profile: String,
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
        /// What a retry gets: `verbatim`, or `duplicate 200`: the first body under another status, with `duplicate: true`.
        replay: Text<Replay>,
        /// Codes of refusals by the names of their problems, for forms that have one: `{ key-missing = "KEY_REQUIRED" }`.
        codes: BTreeMap<String, String>,
        /// Texts of refusals by the names of their problems: `{ in-flight = "Request is being processed" }`.
        texts: BTreeMap<String, String>,
        /// Whether Stripe's header names are sent and read too.
        stripe_headers: bool,
        /// What one unit of `admission_limit` pays for: `new-key`, or `id-window` (one id within one window).
        admission_charge: Text<Charge>,
        /// Attempts that one id may make within a window for its one unit.
        attempts_per_id: u32,
        /// The methods that a `match` without methods covers.
        methods: Vec<String>,
        /// How the states of a record are called where callers see them: `{ claimed = "processing", settled = "completed" }`.
        state_names: Names,
        /// How keys are made for what brings none: `uuid4`, `uuid4-millis` or `ulid`.
        generator: Text<Generator>,
        /// When expired records are removed: `every 1h` or `daily 03:00`.
        sweep: Text<SweepWhen>,
        /// Rows that one step of a sweep removes.
        sweep_batch: u32,
        /// Whether each sweep leaves a row in the cleanup log.
        sweep_log: bool,
        /// Whether answers are compressed where they are kept.
        compress: bool,
        /// A record's lifetime below which the settings are refused.
        least_lifetime: Text<Duration>,
        /// A margin below which the settings are refused.
        least_margin: Text<Duration>,
        /// What answers mean to the outbox and the relay, each a table (see below); the first that speaks of an answer counts,
        /// and these come before those that the profile has.
        classify: Vec<Meaning>,
        /// When the outbox tries again: a table (see below).
        schedule: Schedule,
        /// A message of the outbox that is given up: `dead` (kept for an operator) or `drop`.
        give_up: Text<GiveUp>,
        /// How waiting messages are ordered: `fifo`, `independent`, or reduced into one by `sum`, `last` or `max`.
        lane: Text<Lane>,
    }
}

/// `state_names = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// While an attempt runs.
    pub claimed: Option<String>,
    /// Once its answer is kept.
    pub settled: Option<String>,
    /// When it surely had no effect.
    pub released: Option<String>,
    /// When it is not known whether it had one.
    pub unknown: Option<String>,
}

/// `classify = [{ … }]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// A status such as `"409"`, or a range such as `"500-599"`.
    pub status: Text<Statuses>,
    /// The codes in the body that it speaks of. Default: any.
    pub codes: Option<Vec<String>>,
    /// What it means: `success`, `retry`, `retry-after`, `auth`, `rebuild`, `drop REASON`, `dead REASON`, or
    /// `retry 3 then dead REASON`.
    pub means: Text<Class>,
}

/// `schedule = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The first pause.
    pub base: Option<Text<Duration>>,
    /// What each pause is multiplied by.
    pub factor: Option<f64>,
    /// The longest pause.
    pub cap: Option<Text<Duration>>,
    /// How pauses are spread: `none`, `full`, or a share to either side such as `25%`.
    pub jitter: Option<Text<Jitter>>,
    /// Attempts in one burst, the first included.
    pub burst_attempts: Option<u32>,
    /// How long one burst may last.
    pub burst_budget: Option<Text<Duration>>,
    /// The pause after a burst.
    pub period: Option<Text<Duration>>,
    /// Attempts in all.
    pub max_attempts: Option<u32>,
    /// The pause after the receiver says that it blocks the sender.
    pub blocked: Option<Text<Duration>>,
}

/// `require_headers = [{ … }]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The header's name.
    pub name: String,
    /// What its value may be, as `key_format`.
    pub format: Text<Format>,
}

/// A part of the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// The tenant.
    Tenant,
    /// The caller.
    Principal,
    /// The endpoint.
    Endpoint,
}

/// `fingerprint = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Of `method`, `route`, `params`, `query`, `principal` and `body`.
    pub inputs: Option<Vec<Text<Input>>>,
    /// JSON pointers: only these parts of the body count.
    pub include: Option<Vec<Text<Pointer>>>,
    /// JSON pointers: these parts do not count.
    pub exclude: Option<Vec<Text<Pointer>>>,
}

/// The word `none`.
#[derive(Clone, Copy, Debug)]
pub struct NoneWord;

/// `mismatch = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The status.
    pub status: Option<u16>,
    /// What the refusal shows: `none`, `prefix8` or `payload-hashes`.
    pub reveal: Option<Text<Reveal>>,
}

/// The word `ignore`.
#[derive(Clone, Copy, Debug)]
pub struct IgnoreWord;

/// `on_unknown = { probe = "…" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// A URL template with `{key}` and the path's parameters: 2xx means applied, 404 not applied, anything else
    /// unknown.
    pub probe: Text<Url>,
}

/// A rate, or `"all"`: the limiter, whatever its rate, refuses known keys too.
#[derive(Clone, Copy, Debug)]
pub enum LimitWord {
    /// Known keys are refused too.
    All,
    /// A rate.
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
pub struct RequestLimit {
    /// The rate, such as `100/1s`.
    pub rate: Text<Rate>,
    /// `unknown` (only unknown keys) or `all`.
    pub refuses: Text<Refuses>,
}

/// Whom the request limiter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuses {
    /// Those with a key that is not known.
    Unknown,
    /// Everybody.
    All,
}

/// `guard = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// JSON pointer to the time at which the user acted.
    pub generated_at: Text<Pointer>,
    /// JSON pointer to the time at which the client sent it.
    pub submitted_at: Option<Text<Pointer>>,
    /// How old an action may be.
    pub cap: Text<Duration>,
    /// How far clocks may be apart, both ways.
    pub grace: Text<Duration>,
    /// What the time of sending is for: `ignore`, `refuse` or `correct`.
    pub submitted: Option<Text<Submitted>>,
    /// How far the time of sending may lie from the server's.
    pub submitted_gap: Option<Text<Duration>>,
}

/// Where the time of the first attempt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgeFrom {
    /// Nowhere.
    None,
    /// A header.
    Header,
    /// The header, or the time in a version 7 UUID.
    Uuid7,
}

impl Settings {
    /// A route's name and its renames make no sense as defaults.
    pub fn refuse_in_defaults(&self) -> Result<(), BadSetting> {
        match (&self.matches, &self.was, &self.identity) {
            (None, None, None) => Ok(()),
            (None, None, Some(_)) => Err("defaults: `identity` stands at the top, or in a route".into()),
            (Some(_), ..) | (_, Some(_), _) => Err("defaults: `match` and `was` belong to a route".into()),
        }
    }

    /// A profile says nothing of one route.
    pub fn refuse_in_profile(&self) -> Result<(), BadSetting> {
        let is_of_a_route = self.matches.is_some() || self.was.is_some() || self.identity.is_some();
        match is_of_a_route {
            false => Ok(()),
            true => Err("`match`, `was` and `identity` belong to a route".into()),
        }
    }
}
