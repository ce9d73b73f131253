//! The shape of `semel.toml`: the names of the settings and how each is written. Their meaning is decided elsewhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_contract::identity::Identity;
use semel_contract::layered;
use semel_contract::profile::SweepWhen;
use semel_contract::profile::settings::Settings;
use semel_contract::profile::settings::values::Word;
use serde::Deserialize;

use super::values::{Bytes, LogFormat, LogTo, OneOf, RedisUrl, Store, Text, Url};
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
    /// The broker: see `[broker]`.
    pub(crate) broker: Option<toml::Table>,
    /// What every route takes over: see the settings of a route.
    pub(crate) defaults: Settings,
    /// Profiles of your own, each under its name: the settings of a route, beginning with the profile that its `profile` names.
    pub(crate) profile: BTreeMap<String, Settings>,
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
        /// A header by which a proxy on this machine says which operator asks, such as `X-User`; on a loopback admin address only.
        admin_trusted: String,
        /// The operators named by that header who may change things; others may only look.
        admin_operators: Vec<String>,
        /// Names by which that proxy calls the admin address in `Host`, such as `ops.example`.
        admin_hosts: Vec<String>,
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
        /// Where requests are written down: `on` or `stderr`, `off`, or a path; `1/100`, before a path or alone, is one in a
        /// hundred. Default `stderr`.
        access_log: Text<LogTo>,
        /// The form of everything on standard error: `text` or `json`. Default: text for the program's own log, JSON for
        /// requests; text for both on a terminal.
        log_format: Text<LogFormat>,
        /// Cores that serve connections, each in a thread of its own. Default: all that the process may use.
        cores: usize,
        /// How long running requests are waited for at the end; then they are marked unknown. Default `30s`.
        drain: Text<Duration>,
        /// Where limits are counted across gateways: `redis://…`. Without it, in the store.
        redis: Text<RedisUrl>,
        /// How answers are protected where they are kept. Not together with `atomic` routes.
        at_rest: AtRest,
        /// A file of secrets, one on each line, with the first of which fingerprints are keyed, so that a guessable body
        /// cannot be recognised by its hash. The others, and none, are still recognised: leave an old one there, behind
        /// the first, for one retention. Without one that may still be needed the gate does not start, and says until when.
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

impl Word for HostWord {
    const WORDS: &'static [(&'static str, Self)] =
        &[("client", HostWord::Client), ("upstream", HostWord::Upstream)];
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

impl File {
    /// This file, and where it says nothing the one below. Routes are not overridden.
    pub(crate) fn over(self, below: Self) -> Self {
        Self {
            store: self.store.or(below.store),
            identity: self.identity.or(below.identity),
            gate: self.gate.over(below.gate),
            outbox: self.outbox.or(below.outbox),
            relay: self.relay.or(below.relay),
            broker: self.broker.or(below.broker),
            defaults: self.defaults.over(below.defaults),
            profile: if self.profile.is_empty() { below.profile } else { self.profile },
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
