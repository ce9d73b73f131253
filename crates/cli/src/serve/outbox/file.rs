//! The shape of `[outbox]` in `semel.toml`: the names of the settings and how each is written. What they mean together is
//! decided where they are used.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::json::Pointer;
use semel_delivery::HeadPolicy;
use semel_delivery::credentials::Place;
use serde::Deserialize;

use super::values::{Address, CredentialAt, Listen, StoreFile};
use crate::config::{Bytes, Profiles, Setting, Text};

/// `[outbox]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where messages are kept: `sqlite:PATH`, a file of its own. Default `sqlite:outbox.db`.
    pub(super) store: Option<Text<StoreFile>>,
    /// Where callers connect: `unix:PATH`, or `ADDRESS:PORT` with a `token_file`. Default: a socket beside the store.
    pub(super) listen: Option<Text<Listen>>,
    /// A file with the token that callers must show on TCP.
    pub(super) token_file: Option<PathBuf>,
    /// Where operators look with a browser: `ADDRESS:PORT`; beyond the loopback it needs a token. Default: nowhere.
    pub(super) admin: Option<Text<SocketAddr>>,
    /// A file with the token of operators who may change things.
    pub(super) admin_token_file: Option<PathBuf>,
    /// A file with the token of operators who may only look.
    pub(super) admin_read_token_file: Option<PathBuf>,
    /// A header by which a proxy on this machine says which operator asks, such as `X-User`; on a loopback admin address only.
    pub(super) admin_trusted: Option<String>,
    /// The operators named by that header who may change things; others may only look.
    pub(super) admin_operators: Option<Vec<String>>,
    /// Names by which that proxy calls the admin address in `Host`, such as `ops.example`.
    pub(super) admin_hosts: Option<Vec<String>>,
    /// Where paths such as `/orders` are sent.
    pub(super) upstream: Option<Text<Address>>,
    /// The profile: the schedule of retries, what answers mean; a preset, or one of `[profile.NAME]`. Default `default`.
    pub(super) profile: Option<String>,
    /// After how long a message is given up; below the server's retention.
    pub(super) max_age: Option<Text<Duration>>,
    /// Whether `max_age` may reach beyond the server's retention. Default `false`.
    pub(super) unsafe_max_age: Option<bool>,
    /// What a lane does behind a message that was given up: `skip` or `block`. Default `skip`.
    pub(super) head: Option<Text<HeadPolicy>>,
    /// Lanes that are sent from at a time.
    pub(super) parallel: Option<usize>,
    /// How long an attempt may take.
    pub(super) attempt_timeout: Option<Text<Duration>>,
    /// Messages that are kept at most.
    pub(super) max_rows: Option<u64>,
    /// Bytes that are kept at most.
    pub(super) max_bytes: Option<u64>,
    /// Bytes of a message's body at most.
    pub(super) max_body: Option<usize>,
    /// What callers may take: see below.
    pub(super) limits: LimitsFile,
    /// How long a finished message is kept.
    pub(super) keep: Option<Text<Duration>>,
    /// A PEM file of authorities to trust instead of the usual ones.
    pub(super) ca: Option<PathBuf>,
    /// More names by which the outbox may be called.
    pub(super) allow_hosts: Vec<String>,
    /// Ids that receipts show: names and JSON pointers into the server's answer.
    pub(super) ids: BTreeMap<String, Text<Pointer>>,
    /// Where credentials are found: see below.
    pub(super) credential: Vec<CredentialFile>,
    /// The broker to which messages for topics and members are sent.
    pub(super) broker: Option<Text<Address>>,
    /// The mesh in which they are published.
    pub(super) mesh: Option<String>,
    /// What is received: see below.
    pub(super) receive: Vec<ReceiveFile>,
    // The profiles of the whole file, beside this table.
    #[serde(skip)]
    pub(super) profiles: Profiles,
}

impl File {
    /// Settings of a member who publishes, and receives a topic and what is sent to it alone.
    pub(crate) fn of_member(member: super::Member) -> Result<Self, String> {
        let receive = ReceiveFile {
            broker: None,
            mesh: None,
            topics: vec![member.topic],
            direct: true,
            credential: Some(Text(CredentialAt(Place::File(member.token)))),
            consumer: None,
        };
        Ok(Self {
            broker: Some(Text(Address::read(&member.broker)?)),
            mesh: Some(member.mesh),
            receive: vec![receive],
            ..Self::default()
        })
    }

    /// The files that it names and that are read at start.
    pub(crate) fn named(&self) -> Vec<PathBuf> {
        self.token_file
            .iter()
            .chain(&self.ca)
            .chain(&self.admin_token_file)
            .chain(&self.admin_read_token_file)
            .cloned()
            .collect()
    }
}

/// `[outbox.limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsFile {
    /// Bytes of the bodies of callers that are in memory at a time, in all; what finds no room is refused before it is read.
    /// Default `256MiB`.
    pub(super) bodies: Option<Text<Bytes>>,
    /// How long one whole body may take. Default `5m`.
    pub(super) body_deadline: Option<Text<Duration>>,
}

/// `[[outbox.receive]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveFile {
    /// The broker. Default: `outbox.broker`.
    pub(super) broker: Option<Text<Address>>,
    /// The mesh. Default: `outbox.mesh`.
    pub(super) mesh: Option<String>,
    /// The topics whose messages are received.
    #[serde(default)]
    pub(super) topics: Vec<String>,
    /// Whether what is sent to the member itself is received. Default `false`.
    #[serde(default)]
    pub(super) direct: bool,
    /// Where the member's token is found: `file:PATH` or `command:COMMAND`; read for each connection.
    pub(super) credential: Option<Text<CredentialAt>>,
    /// Under which name it reads; of two that read under one name the newest does. Default: a name of this outbox's own.
    pub(super) consumer: Option<String>,
}

/// `[[outbox.credential]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CredentialFile {
    /// Whose it is. Without it, everybody's who has none of their own.
    pub(super) principal: Option<String>,
    /// To which origin it is sent. Default: the upstream's.
    pub(super) origin: Option<Text<Address>>,
    /// The header that carries it. Default `Authorization`, where a bare token is sent as `Bearer`.
    #[serde(default = "super::config::authorization")]
    pub(super) header: String,
    /// The file whose first line it is, read for each attempt.
    pub(super) file: Option<PathBuf>,
    /// The command that prints it, as a list of words.
    pub(super) command: Option<Vec<String>>,
}
