//! Takes entries in, by one transaction for all that come together: a row for each request, and for each item a row in its
//! lane, numbered under the lane's lock. The batcher says who comes together.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_contract::time::{Timestamp, millis_of};

use super::look::{Item, Request};
use super::sql::{HURRY, NOW, StoreError, Value};
use super::state::{LaneName, locked_all, locked_in_turn, save_all};
use super::{LaneState, RelayStore, State, Tx};
use crate::relay::debounce::{Debounce, Due, Mode, due};

/// One item of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// Its lane.
    pub lane: String,
    /// The lane's group; empty where it has none.
    pub group: String,
    /// What people call the lane.
    pub label: Option<String>,
    /// The session that sends it.
    pub session: Option<String>,
    /// The value.
    pub value: i64,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The target's name.
    pub target: String,
    /// Whose it is.
    pub principal: String,
    /// Its key, of this principal alone.
    pub key: String,
    /// What it asks for, hashed.
    pub fingerprint: String,
    /// How it is treated.
    pub mode: Mode,
    /// How long background entries wait.
    pub debounce: Debounce,
    /// Whether one name in two groups is two lanes of the target.
    pub groups: bool,
    /// What it brings.
    pub items: Vec<NewItem>,
    /// How old it is; nothing where it does not say when it was first sent.
    pub age: Option<Age>,
}

/// When a request was first sent, as its sender says, and how far from now that may be for one that nobody knows: what came of an
/// older one may have been forgotten. All in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// When it was first sent.
    pub first_sent: i64,
    /// How long ago that may be.
    pub most: i64,
    /// How far in the future: so much clocks may differ.
    pub skew: i64,
}

impl Age {
    /// Of a request that says when it was first sent.
    pub fn since(first_sent: Timestamp, most: Duration, skew: Duration) -> Self {
        Self { first_sent: first_sent.millis(), most: millis_of(most), skew: millis_of(skew) }
    }

    /// Why a request that nobody knows is not taken in at this time.
    fn refusal(self, now: i64) -> Option<Accepted> {
        match now.saturating_sub(self.first_sent) {
            age if age > self.most => Some(Accepted::TooOld),
            age if age < -self.skew => Some(Accepted::FromFuture),
            _ => None,
        }
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is in.
    New {
        /// The request's number.
        request: i64,
        /// Its lanes.
        lanes: Vec<i64>,
        /// The request as it was then.
        found: Request,
    },
    /// The same request is known.
    Known {
        /// Its number.
        request: i64,
    },
    /// The key is known with another request.
    Mismatch,
    /// Nobody knows it, and it was first sent so long ago that it may have been done and forgotten. Nothing was written.
    TooOld,
    /// Nobody knows it, and it says that it was first sent in the future. Nothing was written.
    FromFuture,
}

/// How lanes are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    /// All of them in one round trip, where all are there.
    AtOnce,
    /// One after the other, created where they are not there.
    InTurn,
    /// The same, and whoever else has locked one is waited for. Whoever takes others along does not wait long: they wait
    /// with it.
    Patiently,
}

/// Why requests were not taken in.
pub(super) enum NotDone {
    /// There is no connection, and nobody else would get one, or the store says so.
    Away(StoreError),
    /// The transaction was refused; nobody knows which of the requests is the reason.
    Refused(StoreError),
    /// A lane is not where it was looked for. Nothing was changed.
    Lanes,
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        NotDone::Refused(error)
    }
}

impl From<NotDone> for StoreError {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Away(error) | NotDone::Refused(error) => error,
            NotDone::Lanes => StoreError::Failed("a lane is gone".to_owned()),
        }
    }
}

impl RelayStore {
    pub(super) async fn accept_all(
        &self,
        submissions: &[&Submission],
        locks: Locks,
    ) -> Result<Vec<Accepted>, NotDone> {
        let tx = self.db.begin().await.map_err(NotDone::Away)?;
        accept_all(tx, submissions, locks).await
    }
}

/// Takes requests in, or finds them, in one transaction.
async fn accept_all(mut tx: Tx, submissions: &[&Submission], locks: Locks) -> Result<Vec<Accepted>, NotDone> {
    let mut start = vec![(NOW, vec![])];
    if locks != Locks::Patiently {
        start.push((HURRY, vec![]));
    }
    let now = tx.run_all(start).await?;
    let now = now.iter().flatten().next().ok_or_else(|| StoreError::Failed("no time".to_owned()))?.int(0)?;
    let known = requests(&mut tx, submissions, now).await?;
    let mut by_lane: BTreeMap<LaneName<'_>, Vec<NewEntry<'_>>> = BTreeMap::new();
    for (at, submission) in submissions.iter().enumerate() {
        // The first of those with this key, and nobody has brought it before.
        let Some(request) = known.get(&submission.id()).and_then(|known| known.new_as(at)) else { continue };
        for (pos, item) in (0..).zip(&submission.items) {
            let name = LaneName {
                target: &submission.target,
                group: submission.groups.then_some(item.group.as_str()),
                name: &item.lane,
            };
            by_lane.entry(name).or_default().push(NewEntry { at, request, pos, submission, item });
        }
    }
    let mut items: BTreeMap<(usize, i64), Item> = BTreeMap::new();
    let mut lanes: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    if !by_lane.is_empty() {
        let names: Vec<_> = by_lane.iter().map(|(name, entries)| (*name, said(entries))).collect();
        // In one order for everybody, so that no two wait for each other.
        let mut states = match locks {
            Locks::AtOnce => locked_all(&mut tx, &names).await?.ok_or(NotDone::Lanes)?,
            Locks::InTurn | Locks::Patiently => locked_in_turn(&mut tx, &names).await?,
        };
        let (mut rows, mut changed) = (Vec::new(), Vec::new());
        for (state, entries) in states.iter_mut().zip(by_lane.values()) {
            if into_lane(state, entries, now, &mut rows) {
                changed.push(&*state);
            }
            for NewEntry { at, pos, item, .. } in entries {
                items.insert((*at, *pos), waiting_item(state, item.value));
                let lanes = lanes.entry(*at).or_default();
                if !lanes.contains(&state.lane) {
                    lanes.push(state.lane);
                }
            }
        }
        let sql =
            "INSERT INTO relay_item (lane, seq, request, pos, principal, value, session, created_ms, alone)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        tx.run_each(sql, rows).await?;
        save_all(&mut tx, &changed).await?;
    }
    if known.values().any(|known| known.brought_by.is_some()) {
        tx.commit().await?;
    }
    let refused = refusals(submissions, now);
    let accepted = |(at, submission): (usize, &&Submission)| match known.get(&submission.id()) {
        // What is not known by now was left out, and only for this.
        None => refused.get(&submission.id()).cloned().unwrap_or(Accepted::TooOld),
        Some(Known { fingerprint, .. }) if *fingerprint != submission.fingerprint => Accepted::Mismatch,
        Some(known) => match known.new_as(at) {
            Some(request) => {
                let items: Vec<Item> =
                    items.range((at, 0)..=(at, i64::MAX)).map(|(_, item)| item.clone()).collect();
                let found = Request { open: items.len() as i64, dead: 0, items };
                Accepted::New { request, lanes: lanes.get(&at).cloned().unwrap_or_default(), found }
            }
            None => Accepted::Known { request: known.request },
        },
    };
    Ok(submissions.iter().enumerate().map(accepted).collect())
}

impl Submission {
    /// What it is known by.
    fn id(&self) -> (&str, &str) {
        (&self.principal, &self.key)
    }
}

/// What is known of a key.
struct Known {
    request: i64,
    fingerprint: String,
    /// Who of those that came together has brought it now, if nobody has before.
    brought_by: Option<usize>,
}

impl Known {
    /// Its number, if this one has brought it.
    fn new_as(&self, at: usize) -> Option<i64> {
        (self.brought_by == Some(at)).then_some(self.request)
    }
}

/// One item on its way into its lane.
struct NewEntry<'a> {
    at: usize,
    request: i64,
    pos: i64,
    submission: &'a Submission,
    item: &'a NewItem,
}

/// The keys that are not taken in where nobody knows them, and why: where one says that it is too old, all of that key are.
fn refusals<'a>(submissions: &[&'a Submission], now: i64) -> BTreeMap<(&'a str, &'a str), Accepted> {
    let refusal = |one: &&'a Submission| Some((one.id(), one.age?.refusal(now)?));
    submissions.iter().filter_map(refusal).collect()
}

/// The requests of these keys: known ones, and new ones, which have a row from now on.
async fn requests<'a>(
    tx: &mut Tx,
    submissions: &[&'a Submission],
    now: i64,
) -> Result<BTreeMap<(&'a str, &'a str), Known>, StoreError> {
    // One of each key, in one order for everybody, so that no two wait for each other.
    let mut first: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (at, submission) in submissions.iter().enumerate() {
        first.entry(submission.id()).or_insert(at);
    }
    let known = find(tx, first.keys()).await?;
    let row = |at: &usize| {
        let submission = submissions[*at];
        let count = submission.items.len() as i64;
        vec![
            (&submission.target).into(),
            (&submission.principal).into(),
            (&submission.key).into(),
            (&submission.fingerprint).into(),
            submission.mode.name().into(),
            count.into(),
            count.into(),
            now.into(),
        ]
    };
    let refused = refusals(submissions, now);
    first.retain(|id, _| known.contains_key(id) || !refused.contains_key(id));
    let absent: Vec<_> = first.iter().filter(|(id, _)| !known.contains_key(*id)).collect();
    let sql = "INSERT INTO relay_request (target, principal, key, fingerprint, mode, items, open, created_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (principal, key) DO NOTHING RETURNING id, principal, key";
    let mut new: BTreeMap<(String, String), i64> = BTreeMap::new();
    for row in tx.run_each(sql, absent.iter().map(|(_, at)| row(at)).collect()).await? {
        new.insert((row.text(1)?, row.text(2)?), row.int(0)?);
    }
    // Of the others a racer was first, and has committed: a second read sees it.
    let id_of = |id: &(&str, &str)| new.get(&(id.0.to_owned(), id.1.to_owned())).copied();
    let raced: Vec<_> = absent.iter().map(|(id, _)| *id).filter(|id| id_of(id).is_none()).collect();
    let mut known = known;
    known.extend(find(tx, raced).await?);
    for (id, at) in first {
        if let Some(request) = id_of(&id) {
            let fingerprint = submissions[at].fingerprint.clone();
            known.insert(id, Known { request, fingerprint, brought_by: Some(at) });
        } else if !known.contains_key(&id) {
            return Err(StoreError::Failed("a racer's request is gone again".to_owned()));
        }
    }
    Ok(known)
}

async fn find<'a: 'b, 'b>(
    tx: &mut Tx,
    ids: impl IntoIterator<Item = &'b (&'a str, &'a str)>,
) -> Result<BTreeMap<(&'a str, &'a str), Known>, StoreError> {
    let sql = "SELECT id, fingerprint FROM relay_request WHERE principal = $1 AND key = $2";
    let ids: Vec<(&str, &str)> = ids.into_iter().copied().collect();
    let asked = ids.iter().map(|(principal, key)| (sql, vec![(*principal).into(), (*key).into()]));
    let mut known = BTreeMap::new();
    for (id, rows) in ids.iter().zip(tx.run_all(asked.collect()).await?) {
        if let Some(row) = rows.first() {
            known.insert(*id, Known { request: row.int(0)?, fingerprint: row.text(1)?, brought_by: None });
        }
    }
    Ok(known)
}

/// The group that is said for a lane which is one in all groups.
fn said<'a>(entries: &[NewEntry<'a>]) -> Option<&'a str> {
    entries.iter().rev().map(|entry| entry.item.group.as_str()).find(|group| !group.is_empty())
}

/// An item that was accepted just now.
fn waiting_item(state: &State, value: i64) -> Item {
    Item {
        lane: state.name.clone(),
        group: state.group.clone(),
        label: state.label.clone(),
        value,
        applied: state.applied,
        state: state.of_new_entries(),
    }
}

/// Puts entries at the end of their lane: adds their rows, and says whether anything else of the lane was changed, which is
/// then to be saved.
fn into_lane(state: &mut State, entries: &[NewEntry<'_>], now: i64, rows: &mut Vec<Vec<Value>>) -> bool {
    let before = state.clone();
    for (seq, entry) in (state.last_seq + 1..).zip(entries) {
        let NewEntry { request, pos, submission, item, .. } = entry;
        let alone = (submission.items.len() == 1).then_some(1);
        rows.push(vec![
            state.lane.into(),
            seq.into(),
            (*request).into(),
            (*pos).into(),
            (&submission.principal).into(),
            item.value.into(),
            item.session.as_deref().into(),
            now.into(),
            alone.into(),
        ]);
        if let Some(label) = &item.label {
            state.label = Some(label.clone());
        }
        // A lane that waits for a person or a credential is not among the waiting work.
        if state.state == LaneState::Open {
            let known = match (state.since, state.due) {
                (Some(since), Some(at)) => Some(Due { since, at }),
                (Some(_), None) | (None, _) => None,
            };
            let next = due(known, submission.mode, submission.debounce, now);
            state.make_due(next.since, next.at);
        }
    }
    // The entries themselves tell the last number: most of them change nothing else of the lane.
    let is_changed = *state != before;
    if is_changed {
        state.last_seq += entries.len() as i64;
    }
    is_changed
}
