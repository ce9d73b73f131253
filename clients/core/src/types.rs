//! What applications hand in and are shown. Data only; times are milliseconds since 1970 by the wall clock.

use semel_contract::time::Timestamp;
use semel_delivery::message::{Event as StoredEvent, HeldFor, Row, Status as RowStatus};
use semel_delivery::{Enqueue, Request};
use serde::{Deserialize, Serialize};

/// One header line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// How an outbox is opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Options {
    /// The file. It is created where there is none.
    pub path: String,
    /// The profile: how answers are read, attempts timed and keys minted.
    #[uniffi(default = "ietf")]
    pub profile: String,
    /// Where paths lead.
    #[uniffi(default = None)]
    pub base_url: Option<String>,
    /// Whether messages need credentials, which the host gives.
    #[uniffi(default = false)]
    pub needs_credentials: bool,
    /// Whether a message that was given up stops its lane.
    #[uniffi(default = false)]
    pub blocks_on_dead: bool,
    /// The age at which a message is given up, where it is not the profile's.
    #[uniffi(default = None)]
    pub max_age_millis: Option<u64>,
    /// How long one attempt may take.
    #[uniffi(default = None)]
    pub attempt_timeout_millis: Option<u64>,
    /// A PEM file with the authorities to trust in the place of the web's.
    #[uniffi(default = None)]
    pub trust_file: Option<String>,
}

/// A message as an application hands it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Message {
    /// The method.
    pub method: String,
    /// Absolute, or a path under `base_url`.
    pub url: String,
    /// Header lines, without credentials.
    #[uniffi(default = [])]
    pub headers: Vec<Header>,
    /// The body.
    pub body: Vec<u8>,
    /// Its id, which is its key; without one, one is minted.
    #[uniffi(default = None)]
    pub id: Option<String>,
    /// Its queue; without one, its principal's.
    #[uniffi(default = None)]
    pub lane: Option<String>,
    /// On whose behalf; without one, `default`.
    #[uniffi(default = None)]
    pub principal: Option<String>,
    /// The action that it stands for: while one waits, a second one is the same.
    #[uniffi(default = None)]
    pub logical_key: Option<String>,
    /// What kind of action it is: then its id is its principal's for this kind alone.
    #[uniffi(default = None)]
    pub operation: Option<String>,
    /// When the user acted; without it, now.
    #[uniffi(default = None)]
    pub generated_at_millis: Option<i64>,
}

impl Message {
    pub(crate) fn enqueue(self) -> Enqueue {
        let headers = self.headers.into_iter().map(|header| (header.name, header.value)).collect();
        let request = Request { method: self.method, url: self.url, headers, body: self.body };
        Enqueue {
            client_message_id: self.id,
            lane: self.lane,
            principal: self.principal,
            logical_key: self.logical_key,
            operation: self.operation,
            client_generated_at: self.generated_at_millis.map(Timestamp::from_millis),
            profile: None,
            request,
        }
    }
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Enum)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It waits for its turn or its next attempt.
    Pending,
    /// It is being sent.
    Inflight,
    /// It waits for a credential or for the application.
    Held,
    /// It was delivered.
    Done,
    /// It was given up.
    Dead,
    /// It was taken back.
    Aborted,
}

impl From<RowStatus> for Status {
    fn from(status: RowStatus) -> Self {
        match status {
            RowStatus::Pending => Status::Pending,
            RowStatus::Inflight => Status::Inflight,
            RowStatus::Held => Status::Held,
            RowStatus::Done => Status::Done,
            RowStatus::Dead => Status::Dead,
            RowStatus::Aborted => Status::Aborted,
        }
    }
}

/// What is known of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Receipt {
    /// Its id, which is its key.
    pub id: String,
    /// Its second id, by which a client recognises its own echo.
    pub tx_id: String,
    /// Its place in the order of acceptance.
    pub number: i64,
    /// Where it stands.
    pub status: Status,
    /// On whose behalf.
    pub principal: String,
    /// Its queue.
    pub lane: String,
    /// What kind of action it is.
    pub operation: Option<String>,
    /// The action that it stands for.
    pub logical_key: Option<String>,
    /// The method.
    pub method: String,
    /// The address as it was given.
    pub url: String,
    /// Attempts so far.
    pub attempts: u32,
    /// When the user acted.
    pub generated_at_millis: i64,
    /// When it was accepted, by the outbox's clock.
    pub accepted_at_millis: i64,
    /// When the next attempt may begin.
    pub next_attempt_at_millis: i64,
    /// When it was delivered.
    pub delivered_at_millis: Option<i64>,
    /// What went wrong last.
    pub reason: Option<String>,
    /// What it waits for, in words for a person.
    pub waits_for: Option<String>,
    /// It is held until the application has rebuilt its lane; another that is held waits for a credential.
    pub needs_rebuild: bool,
    /// It may have taken effect without a receipt of it.
    pub possibly_delivered: bool,
    /// It was delivered, and may have taken effect more than once.
    pub possibly_repeated: bool,
    /// The last answer's status. Lists leave answers out; `get` has them.
    pub answer_status: Option<u16>,
    /// The last answer's body.
    pub answer_body: Option<Vec<u8>>,
    /// The id of the message that took its place.
    pub superseded_by: Option<String>,
    /// The id of the message whose place it took.
    pub supersedes: Option<String>,
}

impl Receipt {
    pub(crate) fn of(row: Row, waits_for: Option<String>) -> Self {
        let (possibly_delivered, possibly_repeated) =
            (row.is_possibly_delivered(), row.is_possibly_repeated());
        Self {
            id: row.client_message_id,
            tx_id: row.client_tx_id,
            number: row.id,
            status: row.status.into(),
            principal: row.principal,
            lane: row.lane,
            operation: row.operation,
            logical_key: row.logical_key,
            method: row.method,
            url: row.url,
            attempts: row.attempts,
            generated_at_millis: row.client_generated_at.millis(),
            accepted_at_millis: row.enqueued_at.millis(),
            next_attempt_at_millis: row.next_attempt_at.millis(),
            delivered_at_millis: row.delivered_at.map(Timestamp::millis),
            reason: row.last_error,
            waits_for,
            needs_rebuild: row.held_for == Some(HeldFor::Rebuild),
            possibly_delivered,
            possibly_repeated,
            answer_status: row.answer.as_ref().map(|answer| answer.status),
            answer_body: row.answer.map(|answer| answer.body),
            superseded_by: row.superseded_by_id,
            supersedes: row.supersedes_id,
        }
    }
}

/// What a caller is told of a message that was accepted, now or before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Accepted {
    /// The message.
    pub receipt: Receipt,
    /// The id of the message that already stands for the same action, where it is another one.
    pub alias_of: Option<String>,
    /// It was accepted before.
    pub was_known: bool,
}

/// Something that happened, as the file keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Event {
    /// Its number, from which a reader resumes.
    pub number: i64,
    /// When.
    pub at_millis: i64,
    /// What: `queued`, `retry`, `done`, `dead`, `dropped`, `expired`, `held`, `released`, `rebuild`, `aborted`, `requeued`, …
    pub kind: String,
    /// The message; of those that one drain found too old, the first.
    pub id: Option<String>,
    /// All messages that one drain found too old, for `expired`.
    pub ids: Vec<String>,
    /// Their places in the order of acceptance.
    pub message_numbers: Vec<i64>,
    /// Its place in the order of acceptance, as its receipt says.
    pub message_number: Option<i64>,
    /// Its lane.
    pub lane: Option<String>,
    /// More.
    pub detail: Option<String>,
}

impl Event {
    /// What an application is shown of an event. Of messages that were too old it is told once a drain, by one event for all:
    /// those of single messages are left out.
    pub(crate) fn shown(event: StoredEvent) -> Option<Self> {
        let expired = semel_delivery::expiry::messages(&event);
        if expired.is_none() && event.kind == "expired" {
            return None;
        }
        let is_expired = expired.is_some();
        let (message_numbers, ids): (Vec<i64>, Vec<String>) = expired.unwrap_or_default().into_iter().unzip();
        Some(Self {
            number: event.number,
            at_millis: event.at.millis(),
            kind: if is_expired { "expired".to_owned() } else { event.kind },
            id: event.client_message_id.or_else(|| ids.first().cloned()),
            message_number: event.row_id.or_else(|| message_numbers.first().copied()),
            ids,
            message_numbers,
            lane: event.lane,
            detail: if is_expired { None } else { event.detail },
        })
    }
}

/// A lane's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct LaneState {
    /// Its name.
    pub lane: String,
    /// Somebody paused it.
    pub is_paused: bool,
    /// A message that was given up blocks it.
    pub is_blocked: bool,
    /// Messages that wait in it.
    pub depth: u64,
}

/// A credential of the moment. It is never stored.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Credential {
    /// For whom it speaks: messages of anybody else stay parked.
    pub principal: String,
    /// The header lines.
    pub headers: Vec<Header>,
}

/// What the application makes of a lane that the server wants rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Rebuild {
    /// The lane waits until somebody resumes it, aborts or requeues the message.
    Wait,
    /// It cannot tell now: it is asked again in a minute or two.
    Later,
    /// The message is dropped, and with it those behind it with these numbers; these take their place.
    Replace {
        /// Numbers of receipts.
        drop: Vec<i64>,
        /// Messages.
        instead: Vec<Message>,
    },
}

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum NoticeKind {
    /// Messages were too old, as the outbox or as their server found: one notice for all that went in one go.
    Expired,
    /// What the user wanted is not possible any more.
    NoLongerValid,
    /// One key was used for two requests: a bug.
    Conflict,
    /// The server did not understand the request: a bug.
    BadRequest,
    /// It was dropped for another reason.
    Dropped,
    /// The steps of a lane were out of order, and it was rebuilt or waits for that.
    Rebuilt,
    /// A principal has to sign in again.
    SignIn,
}

/// How loudly it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Severity {
    /// For the user.
    Info,
    /// For the log.
    Warning,
    /// For whoever mends the application: report it like a crash.
    Error,
}

/// What a person should be told, once.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Notice {
    /// What it is about.
    pub kind: NoticeKind,
    /// How loudly it is said.
    pub severity: Severity,
    /// In words.
    pub text: String,
    /// The principal whose messages they are.
    pub principal: String,
    /// The messages.
    pub receipts: Vec<Receipt>,
}

/// What became of an older queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, uniffi::Record)]
pub struct Imported {
    /// Rows that are messages now.
    pub imported: u64,
    /// Rows that were messages before.
    pub known: u64,
}
