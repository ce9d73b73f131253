//! Takes messages in, by one transaction for all that come together: lock the lines, look the ids up, decide, insert the id,
//! the message, its history, webhook and mention rows, commit. Lines are locked in one order for everybody, then ids are
//! inserted in one order, so that no two brokers wait for each other. Who comes together is the door's to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use semel_contract::planted::{self, Bug};
use semel_delivery::relay::store::sql::{HURRY, NOW, Row, StoreError, Value};

use super::ids::{IdKind, KnownId, LOOK_UP, known_of};
use super::{Store, Tx, first_int};
use crate::event_id::EventId;
use crate::identity::Caller;
use crate::message::{Destination, Draft, Payload};
use crate::published::{Published, Receipt, Refusal};

/// A message on its way in.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) caller: Caller,
    pub(crate) draft: Draft,
    /// Minted for this attempt.
    pub(crate) broker_message_id: String,
}

/// What holds for all messages of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) epoch: i64,
    pub(crate) retention: i64,
    /// Whether it waits for what others have locked. A transaction that takes others along does not wait long.
    pub(crate) is_patient: bool,
}

/// What came of one message, and the line that it is in now.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) published: Published,
    pub(crate) line: Option<i64>,
}

/// Why a transaction did not take messages in.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// Another broker took one of the ids in between. Nothing was changed.
    Raced,
    /// The store says so.
    Store(StoreError),
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        NotDone::Store(error)
    }
}

/// What a line's row says, under its lock.
struct Locked {
    line: i64,
    next_number: i64,
    is_for_members: bool,
    webhooks: i64,
    is_deleted: bool,
    bytes: i64,
}

type LineName<'a> = (&'a str, &'static str, &'a str);

/// What a transaction reads before it decides.
struct Found<'a> {
    lines: BTreeMap<LineName<'a>, Locked>,
    known: BTreeMap<(&'a str, &'a str), KnownId>,
    subscribed: Vec<(i64, &'a str)>,
    webhooks: BTreeMap<i64, Vec<i64>>,
}

/// Rows to be inserted.
#[derive(Default)]
struct Rows {
    ids: BTreeMap<(String, String), Vec<Value>>,
    topic: Vec<Vec<Value>>,
    direct: Vec<Vec<Value>>,
    history: Vec<Vec<Value>>,
    mentions: Vec<Vec<Value>>,
    queue: Vec<Vec<Value>>,
    waiting: Vec<Vec<Value>>,
}

impl Store {
    /// Takes messages in, or says why not, each for itself.
    ///
    /// Before: senders are members. After: each that is `Accepted` is there whole; of every other there is nothing. Numbers
    /// of a line are in the order of commits. Crash: all of them are there, or none.
    pub(crate) async fn accept(&self, jobs: &[Arc<Job>], terms: Terms) -> Result<Vec<Decided>, NotDone> {
        let early =
            if planted::is(Bug::BrokerNumberBeforeLock) { self.early_numbers(jobs).await? } else { vec![] };
        let mut tx = self.db.begin().await?;
        let mut start = vec![(NOW, vec![])];
        if !terms.is_patient {
            start.push((HURRY, vec![]));
        }
        let now = first_int(tx.run_all(start).await?.first().map_or(&[], Vec::as_slice))?;
        let mut found = find(&mut tx, jobs).await?;
        for (name, number) in early {
            if let Some(locked) = found.lines.values_mut().find(|locked| locked.line == name) {
                locked.next_number = number;
            }
        }
        let mut rows = Rows::default();
        let decided: Vec<Decided> =
            jobs.iter().map(|job| decide(job, &mut found, &mut rows, terms, now)).collect();
        if rows.ids.is_empty() {
            return Ok(decided);
        }
        let is_late = planted::is(Bug::BrokerWebhooksOutside);
        let outside = if is_late { std::mem::take(&mut rows.queue) } else { Vec::new() };
        let mut tx = self.claim(tx, &mut rows).await?;
        insert(&mut tx, rows).await?;
        save_lines(&mut tx, &found).await?;
        tx.commit().await?;
        if !outside.is_empty() {
            let mut tx = self.db.begin().await?;
            tx.run_each(QUEUE, outside).await?;
            tx.commit().await?;
        }
        Ok(decided)
    }

    /// Inserts the ids. Where another broker has one of them, nothing stays.
    async fn claim(&self, mut tx: Tx, rows: &mut Rows) -> Result<Tx, NotDone> {
        let ids: Vec<Vec<Value>> = std::mem::take(&mut rows.ids).into_values().collect();
        let count = ids.len();
        let sql = "INSERT INTO client_message_dedupe (mesh_id, client_message_id, kind, broker_message_id, \
            request_fingerprint, fingerprint_version, sender, destination_kind, destination_ref, line, number, epoch, \
            first_seen_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
            ON CONFLICT (mesh_id, client_message_id) DO NOTHING RETURNING line";
        if tx.run_each(sql, ids).await?.len() < count {
            return Err(NotDone::Raced);
        }
        if planted::is(Bug::BrokerDedupeFirst) {
            tx.commit().await?;
            tx = self.db.begin().await?;
        }
        Ok(tx)
    }

    /// What a broker would do that looks at numbers before it has the lines.
    async fn early_numbers(&self, jobs: &[Arc<Job>]) -> Result<Vec<(i64, i64)>, StoreError> {
        let mut numbers = Vec::new();
        for job in jobs {
            let to = &job.draft.destination;
            if let Some(line) = self.line(&job.caller.mesh, to.kind(), to.name()).await? {
                numbers.push((line.line, line.next_number));
            }
        }
        tokio::task::yield_now().await;
        Ok(numbers)
    }
}

/// Locks the lines, and reads what is known of ids, senders and webhooks.
async fn find<'a>(tx: &mut Tx, jobs: &'a [Arc<Job>]) -> Result<Found<'a>, StoreError> {
    let mut found = Found {
        lines: BTreeMap::new(),
        known: BTreeMap::new(),
        subscribed: Vec::new(),
        webhooks: BTreeMap::new(),
    };
    let mut names: Vec<LineName<'a>> = jobs.iter().map(|job| name_of(job)).collect();
    names.sort_unstable();
    names.dedup();
    let lock = "SELECT line, next_number, publish, webhooks, deleted_at, bytes FROM line \
        WHERE mesh_id = $1 AND kind = $2 AND ref = $3 /*LOCK*/";
    let asked =
        names.iter().map(|(mesh, kind, name)| (lock, vec![(*mesh).into(), (*kind).into(), (*name).into()]));
    for (name, rows) in names.iter().zip(tx.run_all(asked.collect()).await?) {
        if let Some(row) = rows.first() {
            found.lines.insert(*name, locked_of(row)?);
        }
    }
    // In a statement after the lock: it sees what the one before committed.
    let mut ids: Vec<(&str, &str)> =
        jobs.iter().map(|job| (job.caller.mesh.as_str(), job.draft.client_message_id.as_str())).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut senders: Vec<(i64, &str)> = jobs
        .iter()
        .filter_map(|job| Some((found.lines.get(&name_of(job))?.line, job.caller.member.as_str())))
        .collect();
    senders.sort_unstable();
    senders.dedup();
    let hooked: Vec<i64> =
        found.lines.values().filter(|line| line.webhooks > 0).map(|line| line.line).collect();
    let subscribed = "SELECT since FROM topic_subscription WHERE line = $1 AND member = $2 AND until IS NULL";
    let webhooks = "SELECT webhook FROM webhook WHERE line = $1 AND deleted_at IS NULL ORDER BY webhook";
    let mut asked: Vec<(&str, Vec<Value>)> =
        ids.iter().map(|(mesh, id)| (LOOK_UP, vec![(*mesh).into(), (*id).into()])).collect();
    asked.extend(senders.iter().map(|(line, member)| (subscribed, vec![(*line).into(), (*member).into()])));
    asked.extend(hooked.iter().map(|line| (webhooks, vec![(*line).into()])));
    let mut answers = tx.run_all(asked).await?.into_iter();
    for id in ids {
        if let Some(row) = answers.next().unwrap_or_default().first() {
            found.known.insert(id, known_of(row)?);
        }
    }
    for sender in senders {
        if !answers.next().unwrap_or_default().is_empty() {
            found.subscribed.push(sender);
        }
    }
    for line in hooked {
        let rows = answers.next().unwrap_or_default();
        found.webhooks.insert(line, rows.iter().map(|row| row.int(0)).collect::<Result<_, _>>()?);
    }
    Ok(found)
}

fn name_of(job: &Job) -> LineName<'_> {
    (&job.caller.mesh, job.draft.destination.kind(), job.draft.destination.name())
}

fn locked_of(row: &Row) -> Result<Locked, StoreError> {
    Ok(Locked {
        line: row.int(0)?,
        next_number: row.int(1)?,
        is_for_members: row.text(2)? == "members",
        webhooks: row.int(3)?,
        is_deleted: row.maybe_int(4)?.is_some(),
        bytes: row.int(5)?,
    })
}

/// Decides about one message, after those before it.
fn decide<'a>(job: &'a Job, found: &mut Found<'a>, rows: &mut Rows, terms: Terms, now: i64) -> Decided {
    let Job { caller, draft, broker_message_id } = job;
    let id = (caller.mesh.as_str(), draft.client_message_id.as_str());
    let refused = |why| Decided { published: Published::Refused(why), line: None };
    if let Some(known) = found.known.get(&id) {
        return Decided { published: known.judge(&caller.member, &draft.fingerprint), line: None };
    }
    let Some(locked) = found.lines.get_mut(&name_of(job)).filter(|line| !line.is_deleted) else {
        return refused(Refusal::DestinationUnknown);
    };
    let is_subscribed = || found.subscribed.contains(&(locked.line, caller.member.as_str()));
    let may_publish = match draft.destination {
        Destination::Topic(_) => locked.is_for_members || is_subscribed(),
        Destination::Member(_) => true,
    };
    if !may_publish {
        return refused(Refusal::NotSubscribed);
    }
    let number = locked.next_number;
    locked.next_number += 1;
    locked.bytes += draft.payload.as_bytes().len() as i64;
    let receipt = Receipt {
        client_message_id: id.1.to_owned(),
        broker_message_id: broker_message_id.clone(),
        history_id: EventId::of(terms.epoch, number, broker_message_id),
        first_seen_at: now,
        history_available: true,
    };
    let line = locked.line;
    let webhooks = found.webhooks.get(&line).map_or(&[][..], Vec::as_slice);
    rows.add(job, line, number, webhooks, terms, now);
    let known = KnownId {
        kind: IdKind::Committed,
        fingerprint: draft.fingerprint,
        sender: caller.member.clone(),
        line,
        number,
        receipt: receipt.clone(),
    };
    found.known.insert(id, known);
    Decided { published: Published::Accepted(receipt), line: Some(line) }
}

impl Rows {
    fn add(&mut self, job: &Job, line: i64, number: i64, webhooks: &[i64], terms: Terms, now: i64) {
        let Job { caller, draft, broker_message_id } = job;
        let to = &draft.destination;
        let id = (caller.mesh.clone(), draft.client_message_id.as_str().to_owned());
        self.ids.insert(
            id,
            vec![
                (&caller.mesh).into(),
                draft.client_message_id.as_str().into(),
                "committed".into(),
                broker_message_id.into(),
                draft.fingerprint.bytes.to_vec().into(),
                i64::from(draft.fingerprint.version as u8).into(),
                (&caller.member).into(),
                to.kind().into(),
                to.name().into(),
                line.into(),
                number.into(),
                terms.epoch.into(),
                now.into(),
                now.saturating_add(terms.retention).into(),
            ],
        );
        let message = message_row(job, webhooks.len(), now);
        match to {
            Destination::Topic(_) => self.topic.push(message),
            Destination::Member(_) => self.direct.push(message),
        }
        self.history.push(vec![
            line.into(),
            number.into(),
            broker_message_id.into(),
            (&caller.mesh).into(),
            to.kind().into(),
            to.name().into(),
            (&caller.member).into(),
            now.into(),
        ]);
        let mention = |member: &String| {
            let (id, mesh) = (broker_message_id.into(), (&caller.mesh).into());
            vec![id, member.into(), mesh, line.into(), number.into(), now.into()]
        };
        self.mentions.extend(draft.mentions.iter().map(mention));
        for webhook in webhooks {
            let (id, mesh) = (broker_message_id.into(), (&caller.mesh).into());
            self.queue.push(vec![
                line.into(),
                number.into(),
                (*webhook).into(),
                id,
                mesh,
                "pending".into(),
                now.into(),
            ]);
            self.waiting.push(vec![(*webhook).into(), line.into(), number.into(), now.into()]);
        }
    }
}

fn message_row(job: &Job, webhooks: usize, now: i64) -> Vec<Value> {
    let Job { caller, draft, broker_message_id } = job;
    let body = match &draft.payload {
        Payload::Json(text) => text.as_bytes().to_vec(),
        Payload::Bytes(bytes) => bytes.clone(),
    };
    vec![
        broker_message_id.into(),
        (&caller.mesh).into(),
        draft.client_message_id.as_str().into(),
        draft.destination.name().into(),
        (&caller.member).into(),
        body.into(),
        draft.payload.kind().into(),
        draft.content_type.as_ref().into(),
        draft.client_tx_id.as_ref().into(),
        draft.supersedes.as_ref().into(),
        (draft.mentions.len() as i64).into(),
        (webhooks as i64).into(),
        now.into(),
    ]
}

const TOPIC: &str = "INSERT INTO topic_message (id, mesh_id, client_message_id, topic, sender, body, body_kind, \
    content_type, client_tx_id, supersedes, mentions, webhooks, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
const DIRECT: &str = "INSERT INTO message_queue (id, mesh_id, client_message_id, recipient, sender, body, body_kind, \
    content_type, client_tx_id, supersedes, mentions, webhooks, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
const HISTORY: &str = "INSERT INTO message_history (line, number, broker_message_id, mesh_id, destination_kind, \
    destination_ref, sender, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const MENTIONS: &str = "INSERT INTO mention_index (broker_message_id, mentioned, mesh_id, line, number, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const QUEUE: &str = "INSERT INTO delivery_queue (line, number, webhook, broker_message_id, mesh_id, status, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const WAITING: &str = "INSERT INTO delivery_waiting (webhook, line, number, due_at) VALUES ($1, $2, $3, $4)";

async fn insert(tx: &mut Tx, rows: Rows) -> Result<(), StoreError> {
    let Rows { ids: _, topic, direct, history, mentions, queue, waiting } = rows;
    let all = [
        (TOPIC, topic),
        (DIRECT, direct),
        (HISTORY, history),
        (MENTIONS, mentions),
        (QUEUE, queue),
        (WAITING, waiting),
    ];
    for (sql, rows) in all.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        tx.run_each(sql, rows).await?;
    }
    Ok(())
}

/// Writes down where the numbers of each line go on.
async fn save_lines(tx: &mut Tx, found: &Found<'_>) -> Result<(), StoreError> {
    let sql = "UPDATE line SET next_number = $2, bytes = $3 WHERE line = $1 AND next_number < $2";
    let changed = found.lines.values().filter(|line| !line.is_deleted);
    let changed =
        changed.map(|line| (sql, vec![line.line.into(), line.next_number.into(), line.bytes.into()]));
    tx.run_all(changed.collect()).await.map(drop)
}
