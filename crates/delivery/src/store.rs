//! The outbox's store as a trait. Every method is one transaction: a crash leaves all of it or nothing, and what returned
//! is on disk. Stores keep and compare; what a message becomes is decided in [`crate::judge`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use semel_contract::record::Fence;
use semel_contract::time::Timestamp;
use semel_store::clock::Mark;

use crate::envelope::Draft;
use crate::judge::Verdict;
use crate::message::{Attempt, Came, Event, Gap, Received, Request, Row, Status};
use crate::operator::{Audited, Operator};

/// What a store promises.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The queue has reached its limit. Nothing was changed.
    QueueFull(String),
    /// The disk is full. Nothing was changed.
    DiskFull(String),
    /// Nothing was changed. Where the file cannot be relied on, the store recovers by itself.
    Failed(String),
    /// Whether it was done is not known. The same call again tells.
    Unknown(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::QueueFull(why) => write!(f, "the queue is full: {why}"),
            StoreError::DiskFull(why) => write!(f, "the disk is full: {why}"),
            StoreError::Failed(why) => write!(f, "the store failed: {why}"),
            StoreError::Unknown(why) => write!(f, "the store may or may not have done it: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// What a store knows of the outbox's time when it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptTime {
    /// What the process before has kept.
    pub mark: Mark,
    /// The latest time of an event, which may be later.
    pub last_event: Option<Timestamp>,
    /// The first run of the process in that run of the machine.
    pub boot_epoch: i64,
}

impl KeptTime {
    /// From where time goes on in this run of the machine. Within one run its ticks tell the time since the mark; in
    /// another one nothing does, and what happened after the mark must not lie ahead.
    pub fn mark_for(self, boot: u64) -> Mark {
        let is_of_this_run = self.mark.boot != 0 && self.mark.boot == boot;
        match self.last_event {
            Some(last) if !is_of_this_run => Mark { time: self.mark.time.max(last), ..self.mark },
            Some(_) | None => self.mark,
        }
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Messages.
    pub rows: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// What an arrival met.
#[derive(Clone, Debug)]
pub enum Arrived {
    /// It was inserted.
    New(Row),
    /// Its id is known; the fingerprint is the one that this id was used for.
    Known {
        /// The row.
        row: Row,
        /// What the id was used for.
        fingerprint: [u8; 32],
        /// Whether the id is another name of the row.
        is_alias: bool,
    },
    /// The same action waits already; the caller's id, if it chose one, is now another name of that row.
    SameAction(Row),
}

/// By what right a lane's head is taken.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Now.
    pub now: Timestamp,
    /// Until when the claim holds.
    pub lease_until: Timestamp,
    /// The attempt's random part of the fence.
    pub nonce: u64,
}

/// What a lane has to send.
#[derive(Clone, Debug)]
pub enum Head {
    /// This, now. The attempt, its time and its fence are on disk.
    Claimed(Box<Row>, Request),
    /// Something, at this time.
    Wait(Timestamp),
    /// Something that is being sent, held or behind a dead head: an event will say when to look again.
    Stuck,
    /// Nothing.
    Empty,
}

/// Whether a write of a holder counted.
#[derive(Clone, Debug)]
pub enum FencedWrite {
    /// It did; this is the row now.
    Done(Box<Row>),
    /// Somebody else had decided already. Nothing was changed.
    Stale,
}

/// Which message is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// By its id, or one of its other names.
    Id(String),
    /// By an id that is this principal's for one kind of action.
    Scoped {
        /// The id.
        id: String,
        /// Whose.
        principal: String,
        /// What kind.
        operation: String,
    },
    /// By its number.
    Row(i64),
}

/// Which rows of a list come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those with the lowest numbers.
    #[default]
    OldestFirst,
    /// Those with the highest numbers.
    NewestFirst,
}

/// Which messages are listed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only with this status.
    pub status: Option<Status>,
    /// Only of this lane.
    pub lane: Option<String>,
    /// Only of this id, or of another name of it.
    pub key: Option<String>,
    /// Only with numbers above this one.
    pub after: i64,
    /// Only with numbers below this one.
    pub before: Option<i64>,
    /// Which come first.
    pub order: Order,
    /// At most so many.
    pub limit: u32,
}

/// A lane's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// Its name.
    pub lane: String,
    /// Somebody paused it.
    pub is_paused: bool,
    /// A dead head blocks it.
    pub blocked_by: Option<i64>,
    /// Messages that wait in it.
    pub depth: u64,
    /// The first of them.
    pub head: Option<i64>,
}

/// How full the outbox is.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    /// Messages by status.
    pub by_status: Vec<(Status, u64)>,
    /// When the oldest one that waits was accepted.
    pub oldest: Option<Timestamp>,
    /// Principals whose credential was refused.
    pub refused: u64,
}

/// How full the inbox is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxDepth {
    /// Messages that nobody acknowledged.
    pub waiting: u64,
    /// When the oldest of them arrived.
    pub oldest: Option<Timestamp>,
    /// The number of the last message that arrived.
    pub newest: i64,
}

/// What a start found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// This run of the process.
    pub epoch: i64,
    /// Messages that were in flight when the last run ended.
    pub interrupted: u64,
    /// Earlier runs and how far the servers' clocks were ahead.
    pub epochs: Vec<(i64, Option<i64>)>,
    /// Origins and the retention, in seconds, that they announced.
    pub retentions: Vec<(String, u64)>,
    /// Principals that have signed out.
    pub signed_out: Vec<String>,
    /// Messages that were too old, of which no [`EXPIRY`](crate::expiry::EXPIRY) tells.
    pub expired_untold: Vec<i64>,
}

/// What a decision about a row rests on. Where it is another one by now, the decision is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its attempts so far.
    pub attempts: u32,
    /// Whether one of them may have taken effect.
    pub ambiguous: bool,
}

impl Judged {
    /// What rests on this row.
    pub fn of(row: &Row) -> Self {
        Self { attempts: row.attempts, ambiguous: row.ambiguous }
    }
}

/// How an old row gives way to a new one.
#[derive(Clone, Debug)]
pub struct Successor {
    /// The new row.
    pub draft: Draft,
    /// Whether the old one may have been delivered.
    pub possibly_delivered: bool,
    /// The claim under which the old row was kept from being sent meanwhile.
    pub fence: Option<Fence>,
    /// The old row as it was when this was decided.
    pub judged: Judged,
    /// Who wants it: `operator` or `auto`.
    pub by: &'static str,
}

/// What became of a requeue.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// The old row and the new one.
    Done(Box<Row>, Box<Row>),
    /// The new id is taken.
    IdTaken,
    /// The old row is not one that may be replaced any more.
    Stale,
}

/// What an application makes of a lane that its server wants rebuilt.
#[derive(Clone, Debug)]
pub struct LanePlan {
    /// The held message as it was when this was decided.
    pub judged: Judged,
    /// Messages behind it that are dropped. One that is no longer waiting is left as it is.
    pub drop: Vec<i64>,
    /// What takes its place: the first supersedes it, the others follow at the lane's end.
    pub with: Vec<Draft>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum LaneRebuilt {
    /// These messages are gone, and something may be sent in these lanes.
    Done {
        /// Messages that were dropped or superseded.
        gone: Vec<i64>,
        /// Lanes in which something changed.
        lanes: Vec<String>,
    },
    /// This new id is taken. Nothing was changed.
    IdTaken(String),
    /// The message is not held for this any more. Nothing was changed.
    Stale,
}

/// Keeps messages.
pub trait OutboxStore: Send + Sync + 'static {
    /// Whether the store can serve: it may answer, and there is room to write. Otherwise it recovers by itself.
    fn ready(&self) -> Reply<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The same store, in the name of somebody: aborts, replacements, pauses, releases, notes and acknowledgements stand in
    /// the trail.
    ///
    /// After each: it and its row of the trail are on disk. Crash: both or neither.
    fn by(&self, operator: Operator) -> Arc<dyn OutboxStore>;

    /// What was done by hand, the latest first; or what came before this number.
    fn trail(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<Audited>>;

    /// Takes over from the run before: what was in flight waits again under the same key, and may have been delivered.
    fn recover(&self, now: Timestamp) -> Reply<'_, Recovered>;

    /// Looks an id up and, where there is none, inserts the row: in one transaction, so that of many arrivals with one id
    /// one inserts.
    fn accept(&self, draft: Draft, now: Timestamp, epoch: i64, room: Room) -> Reply<'_, Arrived>;

    /// Takes the head of a lane, if it may be sent now. After: the attempt's number, time and fence are on disk, and no
    /// other claim of this lane succeeds before its settlement.
    fn claim(&self, lane: &str, terms: Terms) -> Reply<'_, Head>;

    /// Takes a row that waits out of the engine's hands, without an attempt; see [`OutboxStore::put_back`].
    fn set_aside(&self, row: i64, terms: Terms) -> Reply<'_, bool>;

    /// Gives back a row that was set aside.
    fn put_back(&self, row: i64, fence: Fence) -> Reply<'_, bool>;

    /// Writes what became of an attempt, if the fence is still the row's.
    fn settle(&self, row: i64, fence: Fence, verdict: Verdict) -> Reply<'_, FencedWrite>;

    /// Gives up a row that is held, where it still is.
    fn give_up(&self, row: i64, verdict: Verdict) -> Reply<'_, FencedWrite>;

    /// Ends claims whose lease is over: their rows wait again, and may have been delivered. Returns their lanes.
    fn end_leases(&self, now: Timestamp) -> Reply<'_, Vec<String>>;

    /// Takes a row back. `None`: it is not one that waits or was given up.
    fn abort(&self, row: i64, by: &'static str, why: &str, now: Timestamp) -> Reply<'_, Option<Row>>;

    /// Puts a new row in the place of an old one: both or neither. One that was sent since it was judged stays.
    fn replace(&self, row: i64, successor: Successor, now: Timestamp, epoch: i64) -> Reply<'_, Replaced>;

    /// Carries out what an application makes of a lane: all or nothing.
    fn rebuild(&self, row: i64, plan: LanePlan, now: Timestamp, epoch: i64) -> Reply<'_, LaneRebuilt>;

    /// Lets a row that waits for its next attempt be tried at once. `None`: it is not one that waits.
    fn hurry(&self, row: i64, now: Timestamp) -> Reply<'_, Option<Row>>;

    /// Pauses a lane, or lets it go on, past a dead head as well.
    fn set_paused(&self, lane: &str, is_paused: bool, now: Timestamp) -> Reply<'_, ()>;

    /// A fresh credential of a principal: what was held for it waits again. Returns the lanes.
    fn release(&self, principal: &str, now: Timestamp) -> Reply<'_, Vec<String>>;

    /// Keeps that a principal has signed out, or forgets it.
    fn set_signed_out(&self, principal: &str, is_out: bool, now: Timestamp) -> Reply<'_, ()>;

    /// Lanes in which something waits.
    fn live_lanes(&self) -> Reply<'_, Vec<String>>;

    /// Lanes with something waiting, paused or blocked.
    fn lanes(&self) -> Reply<'_, Vec<LaneState>>;

    /// One lane, also one that nobody ever used. What waits in others does not make this slower.
    fn lane(&self, lane: &str) -> Reply<'_, LaneState>;

    /// One message.
    fn find(&self, find: Find) -> Reply<'_, Option<Row>>;

    /// Its request; `None` once its body was purged.
    fn request(&self, row: i64) -> Reply<'_, Option<Request>>;

    /// Its log.
    fn attempts(&self, row: i64) -> Reply<'_, Vec<Attempt>>;

    /// Messages, by number, without their answers' bodies.
    fn list(&self, filter: Filter) -> Reply<'_, Vec<Row>>;

    /// Events above this number, and the lowest number that is still kept.
    fn events(&self, after: i64, limit: u32) -> Reply<'_, (Vec<Event>, i64)>;

    /// Records an event that belongs to no settlement.
    fn note(&self, kind: &'static str, detail: String, now: Timestamp) -> Reply<'_, ()>;

    /// How full it is.
    fn depth(&self) -> Reply<'_, Depth>;

    /// What a server's answer taught: how far its clock is ahead, and the retention that it announced.
    fn learn(
        &self,
        epoch: i64,
        ahead: Option<i64>,
        retention: Option<(String, u64)>,
        now: Timestamp,
    ) -> Reply<'_, ()>;

    /// Forgets bodies of messages that finished before this time, and events beyond those that are kept. Ids and
    /// fingerprints stay. Returns how many bodies went.
    fn purge(&self, before: Timestamp) -> Reply<'_, u64>;

    /// What was last kept of the outbox's time, and the latest time of an event. `None`: nothing was.
    fn kept_time(&self) -> Reply<'_, Option<KeptTime>>;

    /// Keeps the outbox's time for the next process.
    fn keep_time(&self, mark: Mark) -> Reply<'_, ()>;

    /// The number of the last event, told again whenever there is a new one.
    fn watch(&self) -> tokio::sync::watch::Receiver<i64>;

    /// Keeps what a sender sent, once for each mesh, sender and id. `true`: it is new.
    fn receive(&self, message: Received, now: Timestamp) -> Reply<'_, bool>;

    /// Keeps what came on a line, each message once, and how far the line has come. Returns how many are new.
    ///
    /// After: the messages and the cursor are on disk. Crash: all of them are, or none; the line then brings them again.
    fn receive_line(&self, came: Came, now: Timestamp) -> Reply<'_, u64>;

    /// How far a line has come. `None`: nothing came on it yet.
    fn line_cursor(&self, mesh: &str, line: &str) -> Reply<'_, Option<String>>;

    /// Received messages that nobody acknowledged, oldest first.
    fn received(&self, after: i64, limit: u32) -> Reply<'_, Vec<Received>>;

    /// Received messages of a sender under this id, acknowledged or not: one for each mesh.
    fn received_as(&self, sender: &str, message_id: &str) -> Reply<'_, Vec<Received>>;

    /// Acknowledges a received message: its body goes, its id stays. `false`: there is none, or it was acknowledged.
    fn acknowledge(&self, mesh: &str, sender: &str, message_id: &str, now: Timestamp) -> Reply<'_, bool>;

    /// What lines said cannot be had, above this number, the oldest first.
    fn gaps(&self, after: i64, limit: u32) -> Reply<'_, Vec<Gap>>;

    /// How full the inbox is.
    fn inbox_depth(&self) -> Reply<'_, InboxDepth>;

    /// A number that tells this file from others: the one that was kept, or this one, which is kept then.
    fn own_number(&self, or: i64) -> Reply<'_, i64>;
}
