//! What the relay keeps, and what holds of each call before it, after it, and after a crash. The statements are the same
//! for every database ([`sql`]); the suite in `conformance` is passed by each.
//!
//! Every call is one short transaction, or several that may each be the last. What changes a lane under way presents the
//! fence of its claim: with a stale one it changes nothing and says so.

pub mod accept;
mod audit;
mod batcher;
pub mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod given;
pub mod hold;
pub mod list;
pub mod look;
pub mod operate;
pub mod postgres;
pub mod ready;
pub mod settle;
pub mod sql;
pub mod sqlite;
mod state;
pub mod sweep;

use std::sync::Arc;

pub use self::audit::AuditRow;
pub(crate) use self::audit::{about, audit, audit_all};
pub use self::sql::{Database, StoreError};
use self::sql::{Row, Transaction};
pub(crate) use self::state::{State, held, held_now, locked, locked_now};

/// The store of a relay.
#[derive(Clone)]
pub struct RelayStore {
    pub(crate) db: Arc<dyn Database>,
    batcher: Arc<batcher::AcceptBatcher>,
}

impl std::fmt::Debug for RelayStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RelayStore")
    }
}

/// Whether a call with a fence did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencedWrite {
    /// It did.
    Done,
    /// Somebody else holds the lane: nothing was changed.
    Stale,
}

/// The right to work on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The lane.
    pub lane: i64,
    /// The fence. It only grows.
    pub fence: i64,
    /// When somebody else may take over.
    pub until: i64,
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// It is worked on.
    Open,
    /// It waits for a credential or an operator.
    Blocked,
    /// Nobody knows whether its last write was applied.
    InDoubt,
}

impl LaneState {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            LaneState::Open => "open",
            LaneState::Blocked => "blocked",
            LaneState::InDoubt => "in-doubt",
        }
    }

    /// The state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [LaneState::Open, LaneState::Blocked, LaneState::InDoubt]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its number.
    pub id: i64,
    /// Its target's name.
    pub target: String,
    /// Its group; empty where it has none.
    pub group: String,
    /// Its name.
    pub name: String,
    /// What people call it.
    pub label: Option<String>,
    /// Entries up to this number are settled or held.
    pub watermark: i64,
    /// The upstream's value after the last write.
    pub applied: Option<i64>,
    /// Attempts in a row that failed.
    pub attempts: i64,
    /// Where it stands.
    pub state: LaneState,
    /// The last error.
    pub last_error: Option<String>,
}

pub(crate) const LANE: &str = "id, target, grp, name, label, watermark, applied, attempts, state, last_error";

impl Lane {
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.int(0)?,
            target: row.text(1)?,
            group: row.text(2)?,
            name: row.text(3)?,
            label: row.maybe_text(4)?,
            watermark: row.int(5)?,
            applied: row.maybe_int(6)?,
            attempts: row.int(7)?,
            state: parsed(&row.text(8)?)?,
            last_error: row.maybe_text(9)?,
        })
    }
}

fn parsed(state: &str) -> Result<LaneState, StoreError> {
    LaneState::parse(state).ok_or_else(|| StoreError::Failed(format!("no state of a lane: {state}")))
}

/// An entry that waits in its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in its lane.
    pub seq: i64,
    /// The request that brought it.
    pub request: i64,
    /// Its place in that request.
    pub pos: i64,
    /// Whose it is.
    pub principal: String,
    /// Its value.
    pub value: i64,
    /// The session that sent it.
    pub session: Option<String>,
    /// When it came.
    pub created: i64,
    /// Whether its request has no other entry: then the watermark says that it is done.
    pub is_alone: bool,
}

/// A frozen batch: what is being written, or may have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// By whose credential.
    pub principal: String,
    /// Entries after this number…
    pub lo: i64,
    /// …up to this one are its members.
    pub hi: i64,
    /// The upstream's value before, where it is known.
    pub before: Option<i64>,
    /// The value that the write leads to, where it is known.
    pub after: Option<i64>,
    /// The version that was read, where versions count.
    pub version: Option<String>,
    /// Its own key, the same in every attempt; also its marker.
    pub key: String,
    /// The request as it is sent, without credentials.
    pub request: String,
    /// Attempts so far.
    pub tries: i64,
    /// When the first attempt may have gone out, at the earliest.
    pub first: i64,
    /// When the last attempt may have gone out, at the latest.
    pub last: i64,
    /// What was seen so far, as a JSON array.
    pub evidence: String,
}

impl RelayStore {
    /// A store on this database.
    pub fn new(db: Arc<dyn Database>) -> Self {
        // A second transaction is of use where one can be written while another waits for the disk.
        let turns = if db.is_owned() { 1 } else { 2 };
        Self { db, batcher: Arc::new(batcher::AcceptBatcher::new(turns)) }
    }

    /// The store's time in milliseconds.
    pub async fn now(&self) -> Result<i64, StoreError> {
        self.db.now().await
    }

    /// Takes back what a process held that is no more, where one process owns the database. Call it once, at start.
    ///
    /// After: every lane may be claimed at once, and what was under way is found by its intent.
    pub async fn start(&self) -> Result<(), StoreError> {
        if !self.db.is_owned() {
            return Ok(());
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let sql = "UPDATE relay_state SET version = version + 1, owner = '', lease_until = 0,
                due_ms = CASE WHEN due_ms IS NULL THEN NULL ELSE $1 END
            WHERE owner <> ''";
        tx.run(sql, vec![now.into()]).await?;
        tx.commit().await
    }
}

pub(crate) type Tx = Box<dyn Transaction>;

/// The entries of a lane that wait, in order: after the watermark, up to this number.
pub(crate) async fn waiting(
    tx: &mut Tx,
    lane: i64,
    watermark: i64,
    hi: i64,
    most: i64,
) -> Result<Vec<Entry>, StoreError> {
    let rows = tx.run(WAITING, vec![lane.into(), watermark.into(), hi.into(), most.into()]).await?;
    entries(&rows)
}

const WAITING: &str =
    "SELECT seq, request, pos, principal, value, session, created_ms, alone FROM relay_item i
    WHERE lane = $1 AND seq > $2 AND seq <= $3
      AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)
    ORDER BY seq LIMIT $4";

fn entries(rows: &[Row]) -> Result<Vec<Entry>, StoreError> {
    let entry = |row: &Row| {
        Ok(Entry {
            seq: row.int(0)?,
            request: row.int(1)?,
            pos: row.int(2)?,
            principal: row.text(3)?,
            value: row.int(4)?,
            session: row.maybe_text(5)?,
            created: row.int(6)?,
            is_alone: row.maybe_int(7)?.is_some(),
        })
    };
    rows.iter().map(entry).collect()
}

/// The frozen batch of a lane: the one after those that have ended.
pub(crate) async fn intent(tx: &mut Tx, lane: i64, ended: i64) -> Result<Option<Intent>, StoreError> {
    intent_of(&tx.run(INTENT, vec![lane.into(), ended.into()]).await?)
}

/// The frozen batch of a lane, and what waits in it, frozen or not. Before: the lane is locked.
pub(crate) async fn intent_and_waiting(
    tx: &mut Tx,
    state: &State,
    most: i64,
) -> Result<(Option<Intent>, Vec<Entry>), StoreError> {
    let of_intent = vec![state.lane.into(), state.ended.into()];
    let of_waiting = vec![state.lane.into(), state.watermark.into(), state.last_seq.into(), most.into()];
    match tx.run_all(vec![(INTENT, of_intent), (WAITING, of_waiting)]).await?.as_slice() {
        [intents, waiting] => Ok((intent_of(intents)?, entries(waiting)?)),
        _ => Err(StoreError::Failed("a question has no answer".to_owned())),
    }
}

pub(crate) const INTENT: &str =
    "SELECT principal, lo, hi, before, after, version, key, request, tries, first_ms, last_ms, evidence
    FROM relay_intent WHERE lane = $1 AND fence > $2 ORDER BY fence DESC LIMIT 1";

fn intent_of(rows: &[Row]) -> Result<Option<Intent>, StoreError> {
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Intent {
        principal: row.text(0)?,
        lo: row.int(1)?,
        hi: row.int(2)?,
        before: row.maybe_int(3)?,
        after: row.maybe_int(4)?,
        version: row.maybe_text(5)?,
        key: row.text(6)?,
        request: row.text(7)?,
        tries: row.int(8)?,
        first: row.int(9)?,
        last: row.int(10)?,
        evidence: row.text(11)?,
    }))
}

/// Ends the batch of a lane, whatever became of it. Before: the lane is locked. After: once the state is saved, nobody finds
/// it any more.
pub(crate) async fn end_intent(tx: &mut Tx, state: &mut State) -> Result<(), StoreError> {
    let (sql, args) = ending(state);
    tx.run(sql, args).await?;
    state.ended = state.fence;
    Ok(())
}

/// What takes the batches of a lane away that have not ended.
pub(crate) fn ending(state: &State) -> (&'static str, Vec<sql::Value>) {
    let sql = "DELETE FROM relay_intent WHERE lane = $1 AND fence > $2";
    (sql, vec![state.lane.into(), state.ended.into()])
}
