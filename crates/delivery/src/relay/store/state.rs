//! What changes of a lane. It is read under the lane's lock, changed in memory and written back once, as a whole, under a
//! higher version: look-ups find the newest version first, however many older ones a database must keep.

use semel_contract::planted::{self, Bug};

use super::look::ItemState;
use super::sql::{NOW, Row, StoreError, Value};
use super::{Hold, Lane, LaneState, Tx};

/// A lane as it is, while its lock is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) lane: i64,
    pub(crate) target: String,
    pub(crate) group: String,
    pub(crate) name: String,
    version: i64,
    pub(crate) label: Option<String>,
    /// The highest number that was given.
    pub(crate) last_seq: i64,
    pub(crate) watermark: i64,
    pub(crate) applied: Option<i64>,
    pub(crate) applied_ms: Option<i64>,
    pub(crate) fence: i64,
    /// Batches up to this fence have ended.
    pub(crate) ended: i64,
    /// Who works on it; empty when nobody does.
    pub(crate) owner: String,
    pub(crate) lease_until: i64,
    pub(crate) attempts: i64,
    pub(crate) state: LaneState,
    pub(crate) waits_for: Option<String>,
    pub(crate) last_error: Option<String>,
    /// Since when its first entry waits, and when it is due; both or neither.
    pub(crate) since: Option<i64>,
    pub(crate) due: Option<i64>,
}

macro_rules! state_of {
    () => {
        "SELECT version, label, watermark, applied, applied_ms, fence, ended, owner, lease_until, attempts, state,
        waits_for, last_error, since_ms, due_ms, last_seq,
        (SELECT max(i.seq) FROM relay_item i WHERE i.lane = s.lane AND i.seq > s.last_seq)
    FROM relay_state s"
    };
}

const STATE_OF: &str = state_of!();
const STATE: &str = concat!(state_of!(), " WHERE lane = $1 ORDER BY version DESC LIMIT 1");

impl State {
    /// The lane as others see it.
    pub(crate) fn lane(&self) -> Lane {
        Lane {
            id: self.lane,
            target: self.target.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            label: self.label.clone(),
            watermark: self.watermark,
            applied: self.applied,
            attempts: self.attempts,
            state: self.state,
            last_error: self.last_error.clone(),
        }
    }

    /// Sets when the lane is due.
    pub(crate) fn make_due(&mut self, since: i64, due: i64) {
        self.since = Some(since);
        self.due = Some(due);
    }

    /// Gives the lane back, and says when it is due; without a time it is not among the waiting work.
    pub(crate) fn give_back(&mut self, error: Option<&str>, due: Option<i64>, now: i64) {
        self.owner = String::new();
        self.lease_until = 0;
        self.last_error = error.map(str::to_owned);
        self.since = due.map(|_| now);
        self.due = due;
    }

    /// Writes what was changed. Before: this transaction has locked the lane and read this state.
    pub(crate) async fn save(&mut self, tx: &mut Tx) -> Result<(), StoreError> {
        let (sql, args) = self.saving();
        self.version = saved(&tx.run(sql, args).await?)?;
        Ok(())
    }

    fn saving(&self) -> (&'static str, Vec<Value>) {
        let sql = "UPDATE relay_state SET version = version + 1, label = $3, last_seq = $4, watermark = $5, applied = $6,
                applied_ms = $7, fence = $8, ended = $9, owner = $10, lease_until = $11, attempts = $12, state = $13,
                waits_for = $14, last_error = $15, since_ms = $16, due_ms = $17
            WHERE lane = $1 AND version = $2 RETURNING version";
        let args: Vec<Value> = vec![
            self.lane.into(),
            self.version.into(),
            self.label.as_deref().into(),
            self.last_seq.into(),
            self.watermark.into(),
            self.applied.into(),
            self.applied_ms.into(),
            self.fence.into(),
            self.ended.into(),
            self.owner.as_str().into(),
            self.lease_until.into(),
            self.attempts.into(),
            self.state.name().into(),
            self.waits_for.as_deref().into(),
            self.last_error.as_deref().into(),
            self.since.into(),
            self.due.into(),
        ];
        (sql, args)
    }

    /// Where an entry stands that came just now.
    pub(crate) fn of_new_entries(&self) -> ItemState {
        match (self.state, &self.waits_for) {
            (LaneState::Open, _) => ItemState::Pending,
            (LaneState::Blocked | LaneState::InDoubt, Some(_)) => ItemState::AuthRevoked,
            (LaneState::Blocked | LaneState::InDoubt, None) => ItemState::Blocked,
        }
    }
}

fn saved(rows: &[Row]) -> Result<i64, StoreError> {
    rows.first().ok_or_else(|| StoreError::Failed("the lane changed under its lock".to_owned()))?.int(0)
}

/// Writes what was changed of several lanes. Before: this transaction has locked them and read these states.
pub(crate) async fn save_all(tx: &mut Tx, states: &[&State]) -> Result<(), StoreError> {
    let found = tx.run_all(states.iter().map(|state| state.saving()).collect()).await?;
    found.iter().try_for_each(|rows| saved(rows).map(drop))
}

/// What a lane is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneName<'a> {
    pub(crate) target: &'a str,
    /// `None` where one name is one lane in all groups.
    pub(crate) group: Option<&'a str>,
    pub(crate) name: &'a str,
}

const BY_NAME: &str =
    "SELECT id, target, grp, name FROM relay_lane WHERE target = $1 AND grp = $2 AND name = $3 /*LOCK*/";

/// The lanes of these names, locked in this order, each with the group that is said. `None` where one of them is not found
/// by it: to lock it now would be out of order, and two who do that may wait for each other.
pub(crate) async fn locked_all(
    tx: &mut Tx,
    names: &[(LaneName<'_>, Option<&str>)],
) -> Result<Option<Vec<State>>, StoreError> {
    let state_by_name = format!(
        "{STATE_OF} WHERE lane = (SELECT id FROM relay_lane WHERE target = $1 AND grp = $2 AND name = $3)
         ORDER BY version DESC LIMIT 1"
    );
    let mut asked = Vec::with_capacity(2 * names.len());
    for (LaneName { target, group, name }, said) in names {
        // Mostly a group is the one that is said, by which a lane is found in the index.
        let group = group.or(*said).unwrap_or_default();
        let names: Vec<Value> = vec![(*target).into(), group.into(), (*name).into()];
        // Each state by a statement of its own: what was committed while we waited for the lock is seen.
        asked.extend([(BY_NAME, names.clone()), (state_by_name.as_str(), names)]);
    }
    let found = tx.run_all(asked).await?;
    found.chunks(2).map(state_of).collect()
}

/// The same, one after the other, created where there are none.
pub(crate) async fn locked_in_turn(
    tx: &mut Tx,
    names: &[(LaneName<'_>, Option<&str>)],
) -> Result<Vec<State>, StoreError> {
    let mut states = Vec::with_capacity(names.len());
    for (LaneName { target, group, name }, said) in names {
        states.push(match group {
            Some(group) => locked_or_new(tx, target, group, name).await?,
            None => locked_by_name(tx, target, *said, name).await?,
        });
    }
    Ok(states)
}

/// The lane of this number, locked until the transaction ends.
pub(crate) async fn locked(tx: &mut Tx, lane: i64) -> Result<Option<State>, StoreError> {
    state_of(&tx.run_all(lock(lane).into()).await?)
}

/// The same, and the store's time before it was locked.
pub(crate) async fn locked_now(tx: &mut Tx, lane: i64) -> Result<(Option<State>, i64), StoreError> {
    let [first, then] = lock(lane);
    let found = tx.run_all(vec![(NOW, vec![]), first, then]).await?;
    let [time, lane @ ..] = found.as_slice() else { return Err(StoreError::Failed("no time".to_owned())) };
    let time = time.first().ok_or_else(|| StoreError::Failed("no time".to_owned()))?.int(0)?;
    Ok((state_of(lane)?, time))
}

/// Locks a lane, and reads its state by a statement of its own: what was committed while we waited for the lock is seen.
fn lock(lane: i64) -> [(&'static str, Vec<Value>); 2] {
    let sql = "SELECT id, target, grp, name FROM relay_lane WHERE id = $1 /*LOCK*/";
    [(sql, vec![lane.into()]), (STATE, vec![lane.into()])]
}

fn state_of(found: &[Vec<Row>]) -> Result<Option<State>, StoreError> {
    match found {
        [lanes, states] => lanes.first().map(|lane| state(lane, states)).transpose(),
        _ => Err(StoreError::Failed("a question has no answer".to_owned())),
    }
}

/// The lane of these names, locked; created where there is none.
async fn locked_or_new(tx: &mut Tx, target: &str, group: &str, name: &str) -> Result<State, StoreError> {
    let names = || vec![target.into(), group.into(), name.into()];
    for _ in 0..2 {
        if let Some(row) = tx.run(BY_NAME, names()).await?.first() {
            return read(tx, row).await;
        }
        let sql = "INSERT INTO relay_lane (target, grp, name) VALUES ($1, $2, $3) ON CONFLICT (target, grp, name) DO NOTHING
            RETURNING id, target, grp, name";
        // Whoever is first has committed when this returns without a row.
        if let Some(row) = tx.run(sql, names()).await?.first() {
            let sql = "INSERT INTO relay_state (lane, version, last_seq, watermark, fence, ended, owner, lease_until, attempts,
                    state)
                VALUES ($1, 1, 0, 0, 0, 0, '', 0, 0, 'open')";
            tx.run(sql, vec![row.int(0)?.into()]).await?;
            return read(tx, row).await;
        }
    }
    Err(StoreError::Failed("the lane is gone".to_owned()))
}

/// The one lane of this name in whatever group, locked; created where there is none. Its group becomes the one that is said.
async fn locked_by_name(
    tx: &mut Tx,
    target: &str,
    group: Option<&str>,
    name: &str,
) -> Result<State, StoreError> {
    let said = group.unwrap_or_default();
    for is_alone in [false, true] {
        // Mostly its group is the one that is said, by which it is found in the index.
        if let Some(row) = tx.run(BY_NAME, vec![target.into(), said.into(), name.into()]).await?.first() {
            return read(tx, row).await;
        }
        let sql = "SELECT id, target, grp, name FROM relay_lane WHERE target = $1 AND name = $2 ORDER BY id LIMIT 1 /*LOCK*/";
        if let Some(row) = tx.run(sql, vec![target.into(), name.into()]).await?.first() {
            let mut state = read(tx, row).await?;
            if let Some(group) = group.filter(|group| *group != state.group) {
                let sql = "UPDATE relay_lane SET grp = $2 WHERE id = $1";
                tx.run(sql, vec![state.lane.into(), group.into()]).await?;
                group.clone_into(&mut state.group);
            }
            return Ok(state);
        }
        if !is_alone {
            // No row can be locked that is not there yet: whoever creates a lane of this name is alone with the name, and
            // whoever waited for that looks again.
            let key = format!("{}:{target}:{name}", target.len());
            tx.run("SELECT 1 WHERE /*ALONE*/ $1 <> ''", vec![key.into()]).await?;
        }
    }
    locked_or_new(tx, target, said, name).await
}

async fn read(tx: &mut Tx, lane: &Row) -> Result<State, StoreError> {
    let rows = tx.run(STATE, vec![lane.int(0)?.into()]).await?;
    state(lane, &rows)
}

fn state(lane: &Row, states: &[Row]) -> Result<State, StoreError> {
    let row = states.first().ok_or_else(|| StoreError::Failed("the lane has no state".to_owned()))?;
    Ok(State {
        lane: lane.int(0)?,
        target: lane.text(1)?,
        group: lane.text(2)?,
        name: lane.text(3)?,
        version: row.int(0)?,
        label: row.maybe_text(1)?,
        watermark: row.int(2)?,
        applied: row.maybe_int(3)?,
        applied_ms: row.maybe_int(4)?,
        fence: row.int(5)?,
        ended: row.int(6)?,
        owner: row.text(7)?,
        lease_until: row.int(8)?,
        attempts: row.int(9)?,
        state: super::parsed(&row.text(10)?)?,
        waits_for: row.maybe_text(11)?,
        last_error: row.maybe_text(12)?,
        since: row.maybe_int(13)?,
        due: row.maybe_int(14)?,
        last_seq: row.maybe_int(16)?.unwrap_or(row.int(15)?),
    })
}

/// The lane of this hold, locked; `None` when the hold is no longer the lane's.
pub(crate) async fn held(tx: &mut Tx, hold: &Hold) -> Result<Option<State>, StoreError> {
    Ok(locked(tx, hold.lane).await?.filter(|state| is_of(state, hold)))
}

/// The same, and the store's time before it was locked.
pub(crate) async fn held_now(tx: &mut Tx, hold: &Hold) -> Result<(Option<State>, i64), StoreError> {
    let (found, now) = locked_now(tx, hold.lane).await?;
    Ok((found.filter(|state| is_of(state, hold)), now))
}

fn is_of(state: &State, hold: &Hold) -> bool {
    (!state.owner.is_empty() && state.fence == hold.fence) || planted::is(Bug::RelayNoFence)
}
