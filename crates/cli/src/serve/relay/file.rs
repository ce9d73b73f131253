//! The shape of `[relay]` in `semel.toml`: the names of the settings and how each is written. What they mean together is
//! decided where they are used.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_contract::profile::Reducer;
use semel_delivery::relay::policy::Scope;
use semel_delivery::relay::recovery::Blind;
use semel_delivery::relay::target::Interference;
use semel_delivery::relay::upstream::http::VersionAt;
use serde::Deserialize;

use super::values::{BodyType, HeaderTemplate, Preset, Tier, UrlTemplate};
use crate::config::{Bytes, RedisUrl, Store, Text};

/// `[relay]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where changes are kept: `sqlite:PATH`, a file of its own, or `postgres://…`. Default: the `store` of the file's top,
    /// else `sqlite:relay.db`.
    pub(super) store: Option<Text<Store>>,
    /// Where senders connect. Default `127.0.0.1:7420`.
    pub(super) listen: Option<Text<SocketAddr>>,
    /// Where operators look; beyond the loopback it needs a token. Default `127.0.0.1:7421`.
    pub(super) admin: Option<Text<SocketAddr>>,
    /// A file with the token of operators.
    pub(super) admin_token_file: Option<PathBuf>,
    /// A file with the token of operators who may only look.
    pub(super) admin_read_token_file: Option<PathBuf>,
    /// A header by which a proxy on this machine says which operator asks, such as `X-User`; on a loopback admin address only.
    pub(super) admin_trusted: Option<String>,
    /// The operators named by that header who may change things; others may only look.
    pub(super) admin_operators: Option<Vec<String>>,
    /// Names by which that proxy calls the admin address in `Host`, such as `ops.example`.
    pub(super) admin_hosts: Option<Vec<String>>,
    /// Addresses or networks whose `trusted:NAME` header is believed. Default: the loopback.
    pub(super) trusted_peers: Option<Vec<String>>,
    /// Origins of pages that may use the relay from a browser, such as `https://app.example`; `*` means all. Default: none.
    pub(super) cors: Option<Vec<String>>,
    /// Whether those pages may send cookies; not together with `*`. Default `false`.
    pub(super) cors_credentials: Option<bool>,
    /// What senders may take: see below.
    pub(super) limits: LimitsFile,
    /// Lanes that are worked on at a time. Default `32`.
    pub(super) parallel: Option<usize>,
    /// Connections to PostgreSQL; `postgres.connections` is the same. Default `8`.
    pub(super) connections: Option<usize>,
    /// The connection to PostgreSQL: see below.
    pub(super) postgres: PostgresFile,
    /// Where replicas tell each other that something is due, and who works on it: `redis://…`. Without it, or while it is
    /// away, they find out at the next `poll`.
    pub(super) redis: Option<Text<RedisUrl>>,
    /// How long a lane that is due waits at most until somebody looks. Default `1s`.
    pub(super) poll: Option<Text<Duration>>,
    /// How long writes that are under way are waited for at the end. Default `25s`.
    pub(super) drain: Option<Text<Duration>>,
    /// How long clients may go on sending one request; `retention.completed` must be above it. Default `23h`.
    pub(super) client_max_age: Option<Text<Duration>>,
    /// The keys under which credentials are sealed that callers give: see below.
    pub(super) at_rest: AtRestFile,
    /// How long finished entries are kept: see below.
    pub(super) retention: RetentionFile,
    /// How long background changes wait for company. Default `15s`.
    pub(super) debounce: Option<Text<Duration>>,
    /// How long they wait at most when others keep coming. Default: as `debounce`.
    pub(super) max_wait: Option<Text<Duration>>,
    /// The targets, each under its name: see below.
    pub(super) target: BTreeMap<String, TargetFile>,
    /// Where credentials are found: see below.
    pub(super) credential: Vec<CredentialFile>,
}

/// `[relay.limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsFile {
    /// Bytes of the bodies of senders that are in memory at a time, in all; what finds no room is refused before it is read.
    /// Default `256MiB`.
    pub(super) bodies: Option<Text<Bytes>>,
    /// How long one whole body may take. Default `5m`.
    pub(super) body_deadline: Option<Text<Duration>>,
}

/// `[relay.postgres]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PostgresFile {
    /// Connections at most. Default `8`.
    pub(super) connections: Option<usize>,
    /// Whether the relay may change the schema when it starts; otherwise `semel migrate` does. Default `true`.
    pub(super) migrate: Option<bool>,
    /// A PEM file of authorities to trust where the URL says `sslmode=require` or `verify-full`.
    pub(super) ca: Option<PathBuf>,
}

/// `[relay.at_rest]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AtRestFile {
    /// The key file: `ID BASE64` on each line, the first of which seals while all of them open. Default: the one of
    /// `[gate.at_rest]`. Without one, credentials are not taken by call.
    pub(super) keys: Option<PathBuf>,
}

/// `[relay.retention]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetentionFile {
    /// How long an applied request is known again. Default `24h`.
    pub(super) completed: Option<Text<Duration>>,
    /// How long dead letters are kept. Default `7d`.
    pub(super) failed: Option<Text<Duration>>,
    /// How long parked entries wait for another credential. Default `7d`.
    pub(super) auth_revoked: Option<Text<Duration>>,
}

/// `[[relay.credential]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CredentialFile {
    /// The target's name. A credential goes to this target only, also where others are at the same origin.
    pub(super) target: String,
    /// Whose it is. Without it, everybody's who has none of their own.
    pub(super) principal: Option<String>,
    /// The header that carries it. Default `Authorization`, where a bare token is sent as `Bearer`.
    pub(super) header: Option<String>,
    /// The file whose first line it is, read for each write.
    pub(super) file: Option<PathBuf>,
    /// The command that prints it, as a list of words.
    pub(super) command: Option<Vec<String>>,
}

/// `[relay.target.NAME]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TargetFile {
    /// Where it is written to. In it, in `headers` and in `body`, `{lane}`, `{group}`, `{label}`, `{principal}`, `{delta}`,
    /// `{before}`, `{after}`, `{value}`, `{key}`, `{marker}` and `{version}` stand for values, encoded; `{{` is a brace.
    pub(super) url: Text<UrlTemplate>,
    /// The method. Default `POST`.
    pub(super) method: Option<String>,
    /// More headers.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Text<HeaderTemplate>>,
    /// The body.
    pub(super) body: Option<String>,
    /// How values are encoded in it: `json` or `form`. Default `json`.
    pub(super) body_type: Option<Text<BodyType>>,
    /// Where the present value is read: see below.
    pub(super) read: Option<ReadFile>,
    /// Authorities in this PEM file are believed, and no others.
    pub(super) ca: Option<PathBuf>,
    /// What the service offers to find out about a write that broke off: `key`, `marker`, `compare-and-set`, `read-back`
    /// or `blind`.
    pub(super) tier: Text<Tier>,
    /// What a `blind` target does: `at-most-once` or `at-least-once`.
    pub(super) on_blind: Option<Text<Blind>>,
    /// How late after its sending a write may still be applied. Needed for `marker` and `read-back`.
    pub(super) late_window: Option<Text<Duration>>,
    /// How long the service knows a key again. Needed for `key`.
    pub(super) key_retention: Option<Text<Duration>>,
    /// How entries of a lane become one: `sum`, `last` or `max`. Default `sum`.
    pub(super) reducer: Option<Text<Reducer>>,
    /// The profile: keys, refusals, the schedule of retries. Without one, keys are read from `Idempotency-Key` or
    /// `X-Idempotency-Key`, and refusals are problems.
    pub(super) profile: Option<Text<Preset>>,
    /// As `relay.debounce`, for this target.
    pub(super) debounce: Option<Text<Duration>>,
    /// As `relay.max_wait`, for this target.
    pub(super) max_wait: Option<Text<Duration>>,
    /// How long an interactive answer waits for its write. Default `10s`.
    pub(super) sync_deadline: Option<Text<Duration>>,
    /// How long the service may take. Default `10s`; at most half a lease.
    pub(super) timeout: Option<Text<Duration>>,
    /// Entries in one write at most. Default `1000`.
    pub(super) batch_max: Option<usize>,
    /// Items in one request at most. Default `100`.
    pub(super) items_max: Option<usize>,
    /// Statuses and codes of the body that mean that we are blocked.
    #[serde(default)]
    pub(super) blocked: Vec<String>,
    /// How long to stay away then. Default `10m`.
    pub(super) blocked_wait: Option<Text<Duration>>,
    /// What a 429 pauses: `credential`, `target` or `host`. Default `credential`.
    pub(super) limit_scope: Option<Text<Scope>>,
    /// When somebody else has changed the value: `accept` or `hold`. Default `accept`.
    pub(super) interference: Option<Text<Interference>>,
}

/// `[relay.target.NAME.read]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// Where it is read.
    pub(super) url: Text<UrlTemplate>,
    /// More headers.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Text<HeaderTemplate>>,
    /// The JSON pointer to the value.
    pub(super) value: Text<Pointer>,
    /// Where its version is: `header:NAME` or a JSON pointer.
    pub(super) version: Option<Text<VersionAt>>,
    /// The JSON pointer to the marker, or to the list of markers.
    pub(super) marker: Option<Text<Pointer>>,
}
