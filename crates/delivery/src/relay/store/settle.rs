//! The life of a batch: frozen before the socket is touched, tried, settled or dissolved, or left to a person.

use std::collections::BTreeMap;

use semel_contract::planted::{self, Bug};

use super::sql::{StoreError, Value};
use super::{
    AuditRow, Entry, FencedWrite, Hold, INTENT, Intent, Lane, LaneState, RelayStore, State, Tx, about, audit,
    audit_all, end_intent, ending, held, held_now, intent, waiting,
};
use crate::relay::reduce::{Reducer, chain};

/// More entries than a batch ever has.
pub const MEMBERS_MAX: i64 = 10_000;

/// What became of a settlement, and whether the lane has more that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Whether it did anything.
    pub written: FencedWrite,
    /// Whether the lane can be worked on again at once.
    pub is_due: bool,
}

impl Settled {
    const STALE: Self = Self { written: FencedWrite::Stale, is_due: false };
}

impl RelayStore {
    /// Freezes a batch.
    ///
    /// Before: the lane is held, and nothing of it is frozen. After: the batch and its bytes are durable, and nothing joins
    /// it. Crash: whoever claims the lane next finds it.
    pub async fn freeze(&self, hold: &Hold, batch: &Intent) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let Some(state) = held(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        if batch.lo != state.watermark || batch.hi > state.last_seq || hold.fence <= state.ended {
            return Err(StoreError::Failed(
                "a batch begins at the watermark and ends among known entries".to_owned(),
            ));
        }
        let sql = "INSERT INTO relay_intent (lane, fence, principal, lo, hi, before, after, version, key, request, tries,
                first_ms, last_ms, evidence)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
        let args = vec![
            hold.lane.into(),
            hold.fence.into(),
            (&batch.principal).into(),
            batch.lo.into(),
            batch.hi.into(),
            batch.before.into(),
            batch.after.into(),
            batch.version.as_deref().into(),
            (&batch.key).into(),
            (&batch.request).into(),
            batch.tries.into(),
            batch.first.into(),
            batch.last.into(),
            (&batch.evidence).into(),
        ];
        let found =
            tx.run_all(vec![(INTENT, vec![hold.lane.into(), state.ended.into()]), (sql, args)]).await?;
        if found.first().is_none_or(|frozen| !frozen.is_empty()) {
            return Err(StoreError::Failed("a batch of this lane is frozen".to_owned()));
        }
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Notes that the batch is about to be sent again, at the latest then.
    pub async fn resending(&self, hold: &Hold, last: i64) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let Some(state) = held(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        let sql = "UPDATE relay_intent SET fence = $2, tries = tries + 1, last_ms = $3
            WHERE lane = $1 AND fence > $4";
        let args = vec![hold.lane.into(), hold.fence.into(), last.into(), state.ended.into()];
        tx.run(sql, args).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Settles the batch as applied.
    ///
    /// After: the watermark is past it, every original has its row in the audit trail with chained values, and requests
    /// know. All in one transaction. Crash: all of it or nothing.
    pub async fn applied(
        &self,
        hold: &Hold,
        reducer: Reducer,
        quiet_ms: i64,
        how: &str,
    ) -> Result<Settled, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(Settled::STALE) };
        let Some(batch) = intent(&mut tx, hold.lane, state.ended).await? else { return Ok(Settled::STALE) };
        settle(&mut tx, &mut state, &batch, reducer, how, now).await?;
        rest(&mut tx, &mut state, None, now, quiet_ms).await?;
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(Settled { written: FencedWrite::Done, is_due: state.due.is_some_and(|due| due <= now) })
    }

    /// Settles entries up to `hi` that change nothing, without a call.
    pub async fn settled_without_call(
        &self,
        hold: &Hold,
        batch: &Intent,
        reducer: Reducer,
        quiet_ms: i64,
    ) -> Result<Settled, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(Settled::STALE) };
        if intent(&mut tx, hold.lane, state.ended).await?.is_some() {
            return Ok(Settled::STALE);
        }
        settle(&mut tx, &mut state, batch, reducer, "the entries cancel out: nothing was written", now)
            .await?;
        rest(&mut tx, &mut state, None, now, quiet_ms).await?;
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(Settled { written: FencedWrite::Done, is_due: state.due.is_some_and(|due| due <= now) })
    }

    /// Dissolves a batch that was not applied: its entries wait again, to be written then.
    pub async fn dissolve(
        &self,
        hold: &Hold,
        error: &str,
        is_counted: bool,
        due: i64,
    ) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        end_intent(&mut tx, &mut state).await?;
        state.attempts += i64::from(is_counted);
        state.give_back(Some(error), Some(due), now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Keeps a batch frozen that may have been applied, to be looked at then. `last` is when it went out at the latest.
    pub async fn keep(&self, hold: &Hold, seen: &Seen<'_>, due: i64) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        note(&mut tx, &state, seen).await?;
        state.attempts += i64::from(seen.is_counted);
        state.give_back(Some(seen.error), Some(due), now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Leaves a batch to a person, with the evidence. The lane is no longer among the waiting work.
    pub async fn in_doubt(&self, hold: &Hold, seen: &Seen<'_>) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        note(&mut tx, &state, seen).await?;
        state.state = LaneState::InDoubt;
        audit(&mut tx, &of_lane(&state.lane(), "in-doubt", "relay", seen.error, now)).await?;
        state.give_back(Some(seen.error), None, now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }
}

/// What was seen of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// In words.
    pub error: &'a str,
    /// All evidence so far, as a JSON array.
    pub evidence: &'a str,
    /// When the last attempt went out, where that is known now.
    pub last: Option<i64>,
    /// Whether it counts as an attempt.
    pub is_counted: bool,
}

async fn note(tx: &mut Tx, state: &State, seen: &Seen<'_>) -> Result<(), StoreError> {
    // Under the fence of this turn, so that the newest version is found first.
    let sql = "UPDATE relay_intent SET fence = $2, evidence = $3, last_ms = coalesce($4, last_ms)
        WHERE lane = $1 AND fence > $5";
    let args = vec![
        state.lane.into(),
        state.fence.into(),
        seen.evidence.into(),
        seen.last.into(),
        state.ended.into(),
    ];
    tx.run(sql, args).await.map(drop)
}

/// A row about a lane as a whole.
pub(crate) fn of_lane(lane: &Lane, event: &str, who: &str, detail: &str, at: i64) -> AuditRow {
    AuditRow {
        id: 0,
        at,
        event: event.to_owned(),
        target: lane.target.clone(),
        group: lane.group.clone(),
        lane: lane.name.clone(),
        seq: None,
        request: None,
        pos: None,
        principal: who.to_owned(),
        sender: None,
        value: None,
        before: None,
        after: None,
        batch: None,
        reason: None,
        detail: detail.to_owned(),
    }
}

/// Moves the watermark past a batch, with all that belongs to it. The state is to be saved afterwards.
pub(crate) async fn settle(
    tx: &mut Tx,
    state: &mut State,
    batch: &Intent,
    reducer: Reducer,
    how: &str,
    now: i64,
) -> Result<(), StoreError> {
    let lane = state.lane();
    let members = waiting(tx, lane.id, state.watermark, batch.hi, MEMBERS_MAX).await?;
    let values: Vec<i64> = members.iter().map(|entry| entry.value).collect();
    // In between, the running value may leave the range that a receiver reads; then only the ends are told.
    let links = chain(reducer, batch.before, &values)
        .unwrap_or_else(|_| vec![crate::relay::reduce::Link { before: None, after: None }; values.len()]);
    let row = |(entry, link): (&Entry, &crate::relay::reduce::Link)| AuditRow {
        sender: Some(batch.principal.clone()),
        before: link.before,
        after: link.after,
        batch: Some(batch.key.clone()),
        detail: how.to_owned(),
        ..about(&lane, entry, "applied", now)
    };
    audit_all(tx, &members.iter().zip(&links).map(row).collect::<Vec<_>>()).await?;
    let mut ends = vec![ending(state)];
    if members.iter().any(|entry| entry.is_alone) {
        ends.push(done(lane.id, state.watermark, batch.hi, now));
    }
    if members.iter().any(|entry| !entry.is_alone) {
        ends.extend(applied_of(lane.id, state.watermark, batch.hi, now));
    }
    tx.run_all(ends).await?;
    state.ended = state.fence;
    state.watermark = batch.hi + i64::from(planted::is(Bug::RelayEntriesBelowWatermark));
    // Without a reading, the sum of what was written since the last known value is the best that is known.
    state.applied = batch.after;
    state.applied_ms = Some(now);
    state.attempts = 0;
    Ok(())
}

/// Notes that this range of a lane was applied: the requests of entries that came alone are done by that.
fn done(lane: i64, lo: i64, hi: i64, now: i64) -> (&'static str, Vec<Value>) {
    let sql = "INSERT INTO relay_done (lane, lo, hi, at_ms) VALUES ($1, $2, $3, $4)";
    (sql, vec![lane.into(), lo.into(), hi.into(), now.into()])
}

/// Tells requests that their entries in this range of a lane are applied, all at once: locks those that may have entries in
/// several lanes, in one order for everybody, so that no two lanes of one request wait for each other; then tells all. Those
/// of entries that came alone need not be told.
fn applied_of(lane: i64, lo: i64, hi: i64, now: i64) -> [(&'static str, Vec<Value>); 2] {
    const LOCK: &str =
        "SELECT id FROM relay_request WHERE items > 1 AND id IN (SELECT i.request FROM relay_item i
            WHERE i.lane = $1 AND i.seq > $2 AND i.seq <= $3 AND i.alone IS NULL
              AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq))
        ORDER BY id /*LOCK*/";
    const TELL: &str = "UPDATE relay_request SET open = open - done.many,
            done_ms = CASE WHEN open = done.many AND dead = 0 THEN CAST($4 AS bigint) END
        FROM (SELECT i.request AS request, count(*) AS many FROM relay_item i
            WHERE i.lane = $1 AND i.seq > $2 AND i.seq <= $3 AND i.alone IS NULL
              AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)
            GROUP BY i.request) AS done
        WHERE relay_request.id = done.request";
    let range = || vec![lane.into(), lo.into(), hi.into()];
    [(LOCK, range()), (TELL, [range(), vec![now.into()]].concat())]
}

/// Tells requests that entries of theirs are done with.
pub(crate) async fn finished(
    tx: &mut Tx,
    entries: &[Entry],
    change: &str,
    now: i64,
) -> Result<(), StoreError> {
    let mut by_request: BTreeMap<i64, i64> = BTreeMap::new();
    for entry in entries {
        *by_request.entry(entry.request).or_default() += 1;
    }
    for (request, count) in by_request {
        let sql = format!("UPDATE relay_request SET {change} WHERE id = $1");
        tx.run(&sql, vec![request.into(), count.into()]).await?;
        let sql =
            "UPDATE relay_request SET done_ms = CASE WHEN open = 0 AND dead = 0 THEN CAST($2 AS bigint) END
            WHERE id = $1";
        tx.run(sql, vec![request.into(), now.into()]).await?;
    }
    Ok(())
}

/// Gives a lane back after a batch: due when what came meanwhile wants, or not among the waiting work. The watermark moves
/// past what is held. The state is to be saved afterwards.
pub(crate) async fn rest(
    tx: &mut Tx,
    state: &mut State,
    error: Option<&str>,
    now: i64,
    quiet_ms: i64,
) -> Result<(), StoreError> {
    let first = match state.watermark == state.last_seq {
        true => Vec::new(),
        false => waiting(tx, state.lane, state.watermark, state.last_seq, 1).await?,
    };
    state.watermark = first.first().map_or(state.last_seq, |entry| entry.seq - 1);
    // Since the claim the lane's time is that of what came meanwhile. What waited before it was due then, and is now.
    let waited_before = |entry: &Entry| state.since.is_some_and(|claimed| entry.created <= claimed);
    let due = first.first().map(|entry| match waited_before(entry) {
        true => now,
        false => state.due.unwrap_or(now).min(now + quiet_ms),
    });
    state.give_back(error, due, now);
    Ok(())
}
