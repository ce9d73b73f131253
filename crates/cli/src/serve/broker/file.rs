//! The shape of `[broker]` in `semel.toml`. Owns the names of the settings; what they mean is decided where they are used.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::profile::Rate;
use serde::Deserialize;

use crate::config::{Bytes, RedisUrl, Store, Text};

/// `[broker]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where members connect. Default `127.0.0.1:7430`.
    pub(super) listen: Option<Text<SocketAddr>>,
    /// Where operators look; beyond the loopback it needs a token. Default `127.0.0.1:7431`.
    pub(super) admin: Option<Text<SocketAddr>>,
    /// A file with the token that operators must show.
    pub(super) admin_token_file: Option<PathBuf>,
    /// A file with the token of operators who may only look.
    pub(super) admin_read_token_file: Option<PathBuf>,
    /// A header by which a proxy on this machine says which operator asks, such as `X-User`; on a loopback admin address only.
    pub(super) admin_trusted: Option<String>,
    /// The operators named by that header who may change things; others may only look.
    pub(super) admin_operators: Option<Vec<String>>,
    /// Names by which that proxy calls the admin address in `Host`, such as `ops.example`.
    pub(super) admin_hosts: Option<Vec<String>>,
    /// Where messages are kept: `sqlite:PATH`, a file of its own, or `postgres://…`. Default `sqlite:broker.db`.
    pub(super) store: Option<Text<Store>>,
    /// By what members are known: `tokens`, or as at the top `jwt:KEYS`, `check:URL` or `trusted:NAME`, whose tenant is the
    /// mesh. Default `tokens`.
    pub(super) identity: Option<String>,
    /// Addresses or networks whose `trusted:NAME` header is believed. Default: the loopback.
    pub(super) trusted_peers: Option<Vec<String>>,
    /// Where budgets are counted across brokers: `redis://…`. Without it, in the PostgreSQL that they share, or in the process.
    pub(super) redis: Option<Text<RedisUrl>>,
    /// Days for which ids are remembered and messages kept; at least 7. Default `7`.
    pub(super) dedupe_retention_days: Option<u64>,
    /// The largest payload: `{ inline_bytes = 65536 }`, at most 1 MiB.
    pub(super) max_payload: Option<Payload>,
    /// What members may take: see below.
    pub(super) limits: LimitsFile,
    /// For how long a topic or member that is not there yet is a reason to come back. Default `0s`.
    pub(super) b2_retry: Option<Text<Duration>>,
    /// New messages of one mesh, such as `1000/60s`. Default: no bound.
    pub(super) budget: Option<Text<Rate>>,
    /// Messages with an unknown id of one member, such as `100/1s`. Default: no bound.
    pub(super) request_limit: Option<Text<Rate>>,
    /// Webhooks: `{ allow_loopback = true }` lets them lead to this machine. Default `false`.
    pub(super) webhooks: Option<Webhooks>,
    /// Pages that may use the broker from a browser: `{ origins = ["https://app.example"] }`. Default: none.
    pub(super) cors: Option<CorsFile>,
    /// The certificate that members see: `{ cert = "…", key = "…" }`. Without it the broker speaks plain HTTP.
    pub(super) tls: Option<Tls>,
    /// How long open streams are waited for at the end. Default `5s`.
    pub(super) drain: Option<Text<Duration>>,
    /// The connection to PostgreSQL: see below.
    pub(super) postgres: PostgresFile,
}

/// `[broker.limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsFile {
    /// Bytes of the bodies of members that are in memory at a time, in all; what finds no room is refused before it is read.
    /// Default `256MiB`.
    pub(super) bodies: Option<Text<Bytes>>,
    /// How long one whole body may take. Default `5m`.
    pub(super) body_deadline: Option<Text<Duration>>,
}

/// `[broker] max_payload = { … }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payload {
    /// Bytes.
    pub(super) inline_bytes: usize,
}

/// `[broker] webhooks = { … }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhooks {
    /// Whether a webhook may lead to an address of this machine.
    pub(super) allow_loopback: bool,
}

/// `[broker] cors = { … }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CorsFile {
    /// The origins, or `*` for all.
    pub(super) origins: Vec<String>,
}

/// `[broker] tls = { … }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tls {
    /// The certificate chain, a PEM file. Read again on SIGHUP.
    pub(super) cert: PathBuf,
    /// Its private key, a PEM file.
    pub(super) key: PathBuf,
}

/// `[broker.postgres]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PostgresFile {
    /// Connections. Default `8`.
    pub(super) connections: Option<usize>,
    /// Whether the schema is brought up to date at the start. Default `true`; otherwise `semel migrate` does it.
    pub(super) migrate: Option<bool>,
    /// Whose certificates are believed where the URL says `sslmode=require`, as a PEM file. Default: those that browsers believe.
    pub(super) ca: Option<PathBuf>,
}
