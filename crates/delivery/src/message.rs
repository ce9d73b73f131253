//! A message: what is asked of whom, and what became of it so far. Owns the names of states; decides nothing.

use semel_contract::hex::hex;
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// It waits for its turn or its next attempt.
    Pending,
    /// It is being sent.
    Inflight,
    /// It waits for a credential or for the application.
    Held,
    /// It was delivered.
    Done,
    /// It was given up; an operator may requeue it.
    Dead,
    /// It was taken back, by an operator or by the rules of its profile.
    Aborted,
}

impl Status {
    /// Every status.
    pub const ALL: [Status; 6] =
        [Status::Pending, Status::Inflight, Status::Held, Status::Done, Status::Dead, Status::Aborted];

    /// The status's name.
    pub fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Inflight => "inflight",
            Status::Held => "held",
            Status::Done => "done",
            Status::Dead => "dead",
            Status::Aborted => "aborted",
        }
    }

    /// The status of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Whether something may still be sent.
    pub fn is_live(self) -> bool {
        match self {
            Status::Pending | Status::Inflight | Status::Held => true,
            Status::Done | Status::Dead | Status::Aborted => false,
        }
    }
}

/// What a held message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldFor {
    /// A fresh credential of its principal.
    Auth,
    /// The application, which must rebuild the lane.
    Rebuild,
}

impl HeldFor {
    /// The name in the store.
    pub fn name(self) -> &'static str {
        match self {
            HeldFor::Auth => "auth",
            HeldFor::Rebuild => "rebuild",
        }
    }

    /// The reason of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Auth, Self::Rebuild].into_iter().find(|reason| reason.name() == name)
    }
}

/// What is sent. Credentials are no part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Absolute, or a path under the outbox's upstream.
    pub url: String,
    /// Header lines.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// A request with a JSON body.
    pub fn json(method: &str, url: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.into(),
        }
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// An answer, as far as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Header lines, without cookies and those of the connection.
    pub headers: Vec<(String, String)>,
    /// The body, up to a limit.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The first 8 bytes of a fingerprint, as callers see it.
pub fn prefix(fingerprint: &[u8; 32]) -> String {
    hex(&fingerprint[..8])
}

/// How far the schedule has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Attempts that count.
    pub failures: u32,
    /// Those of this burst.
    pub burst_failures: u32,
    /// When the burst began.
    pub burst_started_at: Option<i64>,
    /// The answer that was tried again.
    pub same_answer: Option<String>,
    /// How often.
    pub same_answer_count: u32,
}

/// A message as it is kept, without its body.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its number. Within a lane, order is by number.
    pub id: i64,
    /// The id that callers know it by. It is also the key of every attempt.
    pub client_message_id: String,
    /// Lets a client recognise its own echo.
    pub client_tx_id: String,
    /// What the id was used for. Frozen when it was accepted.
    pub fingerprint: [u8; 32],
    /// On whose behalf it is sent.
    pub principal: String,
    /// Its queue.
    pub lane: String,
    /// The action that it stands for.
    pub logical_key: Option<String>,
    /// What kind of action it is, where ids are its principal's for one kind each.
    pub operation: Option<String>,
    /// The profile by which answers are read and attempts are timed; empty for the outbox's own.
    pub profile: String,
    /// The method.
    pub method: String,
    /// The address as it was given.
    pub url: String,
    /// Header lines.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body.
    pub payload_bytes: u64,
    /// When the application says that it happened.
    pub client_generated_at: Timestamp,
    /// When it was accepted, by the store's clock.
    pub enqueued_at: Timestamp,
    /// The run of the process that stamped that time.
    pub epoch: i64,
    /// Attempts so far.
    pub attempts: u32,
    /// How far the schedule has come.
    pub progress: Progress,
    /// When the next attempt may begin.
    pub next_attempt_at: Timestamp,
    /// When the first attempt began.
    pub first_attempt_at: Option<Timestamp>,
    /// Where it stands.
    pub status: Status,
    /// What it waits for, when it is held.
    pub held_for: Option<HeldFor>,
    /// The fence of the attempt that runs.
    pub fence: Option<Fence>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Some attempt may have taken effect although nobody knows.
    pub ambiguous: bool,
    /// The server showed that it knows keys again.
    pub deduplicated: bool,
    /// When it was delivered.
    pub delivered_at: Option<Timestamp>,
    /// The last answer.
    pub answer: Option<Answer>,
    /// The receiver's name for it.
    pub broker_message_id: Option<String>,
    /// Its place in the receiver's history.
    pub history_id: Option<String>,
    /// All ids that were read from the answer, as JSON.
    pub ids: Vec<(String, String)>,
    /// When it was taken back.
    pub aborted_at: Option<Timestamp>,
    /// By whom: `operator` or `auto`.
    pub aborted_by: Option<String>,
    /// The row that took its place.
    pub superseded_by: Option<i64>,
    /// That row's id.
    pub superseded_by_id: Option<String>,
    /// The row whose place it took.
    pub supersedes: Option<i64>,
    /// That row's id.
    pub supersedes_id: Option<String>,
    /// The id of the first of all those that gave way to one another before it. Receivers are told this one: it is the same for
    /// every message of the chain, whichever of them arrived.
    pub first_id: Option<String>,
}

impl Row {
    /// Whether no server can know of it: every attempt so far ended before its first byte, or there was none.
    pub fn reached_nobody(&self) -> bool {
        !self.ambiguous && !self.deduplicated && self.answer.is_none() && self.progress.same_answer.is_none()
    }

    /// Whether it may have taken effect without a receipt of it.
    pub fn is_possibly_delivered(&self) -> bool {
        self.ambiguous && self.status != Status::Done
    }

    /// Whether a delivered message may have taken effect more than once: an attempt before broke off, and the server
    /// did not show that it knows keys again; or the message whose place it took may have arrived.
    pub fn is_possibly_repeated(&self) -> bool {
        self.ambiguous && self.status == Status::Done && !self.deduplicated
    }
}

/// One attempt in the log of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How: `answered`, `not-sent`, `broken`, `timed-out`; `None` when the process ended first.
    pub outcome: Option<String>,
    /// The answer's status.
    pub status: Option<u16>,
    /// What went wrong.
    pub error: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number, from which a reader resumes.
    pub number: i64,
    /// When.
    pub at: Timestamp,
    /// What: `queued`, `retry`, `done`, `dead`, `dropped`, `expired`, `held`, `released`, `rebuild`, `aborted`, …;
    /// and `expiry`, once a drain: see [`crate::expiry`].
    pub kind: String,
    /// The message.
    pub row_id: Option<i64>,
    /// Its id.
    pub client_message_id: Option<String>,
    /// Its lane.
    pub lane: Option<String>,
    /// More.
    pub detail: Option<String>,
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number here, in order of arrival; 0 before it is kept.
    pub number: i64,
    /// The mesh that it came in; empty where the application handed it in itself.
    pub mesh: String,
    /// Who sent it.
    pub sender: String,
    /// The sender's id of it.
    pub message_id: String,
    /// The id of the message whose place it takes; after several requeues, of the first of them.
    pub supersedes: Option<String>,
    /// When it arrived.
    pub received_at: Timestamp,
    /// When it was acknowledged. Its body is gone then.
    pub acked_at: Option<Timestamp>,
    /// What it says.
    pub payload: Vec<u8>,
    /// What its broker says of it.
    pub about: Option<Published>,
}

impl Default for Received {
    fn default() -> Self {
        Self {
            number: 0,
            mesh: String::new(),
            sender: String::new(),
            message_id: String::new(),
            supersedes: None,
            received_at: Timestamp::from_millis(0),
            acked_at: None,
            payload: Vec::new(),
            about: None,
        }
    }
}

/// What a broker says of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The line, as the broker names it: `topic:NAME` or `direct`.
    pub line: String,
    /// Its place in the line.
    pub event_id: String,
    /// The broker's id of it.
    pub broker_message_id: String,
    /// The sender's tag, by which it knows its own echo.
    pub client_tx_id: Option<String>,
    /// What the body is, in its sender's words.
    pub content_type: Option<String>,
    /// When the broker took it.
    pub created_at: Option<String>,
    /// How its body is to be read.
    pub body: BodyKind,
}

/// How a body is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyKind {
    /// As JSON.
    #[default]
    Json,
    /// As bytes.
    Bytes,
    /// An owner of the mesh has hidden it: there is none.
    Hidden,
}

impl BodyKind {
    /// The name in the store.
    pub fn name(self) -> &'static str {
        match self {
            BodyKind::Json => "json",
            BodyKind::Bytes => "bytes",
            BodyKind::Hidden => "hidden",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Json, Self::Bytes, Self::Hidden].into_iter().find(|kind| kind.name() == name)
    }
}

/// Messages of a line that cannot be had any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its number here; 0 before it is kept.
    pub number: i64,
    /// When it was heard of.
    pub at: Timestamp,
    /// The mesh.
    pub mesh: String,
    /// The line.
    pub line: String,
    /// How far the line had come.
    pub since: String,
    /// The first message that is still kept.
    pub oldest: String,
    /// `swept`, `epoch`, `ahead` or `check`.
    pub reason: String,
}

/// What came on a line of a mesh, and how far the line has come with it.
#[derive(Clone, Debug, Default)]
pub struct Came {
    /// The mesh.
    pub mesh: String,
    /// The line, as the settings name it.
    pub line: String,
    /// Its messages, in their order.
    pub messages: Vec<Received>,
    /// What it said cannot be had.
    pub gaps: Vec<Gap>,
    /// The id of the event after which the line goes on.
    pub cursor: String,
}

/// A message as a caller hands it in.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// The id; without one, a fresh key is minted.
    pub client_message_id: Option<String>,
    /// The queue; without one, the principal's.
    pub lane: Option<String>,
    /// On whose behalf; without one, `default`.
    pub principal: Option<String>,
    /// The action that it stands for: while one waits, a second one is the same.
    pub logical_key: Option<String>,
    /// What kind of action it is. Then the id is unique for this principal and kind alone: the same one may be used by another
    /// principal, and for another kind. Only where the profile's servers tell principals and endpoints apart as well.
    pub operation: Option<String>,
    /// When the action happened; without it, now.
    pub client_generated_at: Option<Timestamp>,
    /// A profile other than the outbox's.
    pub profile: Option<String>,
    /// What is sent.
    pub request: Request,
}

impl Enqueue {
    /// A message with everything left to the outbox.
    pub fn new(request: Request) -> Self {
        Self {
            client_message_id: None,
            lane: None,
            principal: None,
            logical_key: None,
            operation: None,
            client_generated_at: None,
            profile: None,
            request,
        }
    }
}
