//! The life of a batch: frozen before the socket is touched, tried, settled or dissolved, or left to a person.

use std::collections::BTreeMap;

use super::sql::StoreError;
use super::{
    AuditRow, Entry, Hold, Intent, Lane, RelayStore, Tx, Written, about, audit, give_back, holds, intent,
    lane_locked, waiting,
};
use crate::relay::reduce::{Reducer, chain};

/// More entries than a batch ever has.
pub const MEMBERS_MAX: i64 = 10_000;

impl RelayStore {
    /// Freezes a batch.
    ///
    /// Before: the lane is held, and nothing of it is frozen. After: the batch and its bytes are durable, and nothing joins
    /// it. Crash: whoever claims the lane next finds it.
    pub async fn freeze(&self, hold: &Hold, batch: &Intent) -> Result<Written, StoreError> {
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        let rows = tx
            .run("SELECT watermark, next_seq FROM relay_lane WHERE id = $1", vec![hold.lane.into()])
            .await?;
        let row = rows.first().ok_or_else(|| StoreError::Failed("the lane is gone".to_owned()))?;
        if batch.lo != row.int(0)? || batch.hi >= row.int(1)? {
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
        tx.run(sql, args).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Notes that the batch is about to be sent again, at the latest then.
    pub async fn resending(&self, hold: &Hold, last: i64) -> Result<Written, StoreError> {
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        let sql = "UPDATE relay_intent SET fence = $2, tries = tries + 1, last_ms = $3 WHERE lane = $1";
        tx.run(sql, vec![hold.lane.into(), hold.fence.into(), last.into()]).await?;
        tx.commit().await?;
        Ok(Written::Done)
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
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        let Some(batch) = intent(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        settle(&mut tx, hold.lane, &batch, reducer, how, now).await?;
        rest(&mut tx, hold.lane, None, now, quiet_ms).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Settles entries up to `hi` that change nothing, without a call.
    pub async fn settled_without_call(
        &self,
        hold: &Hold,
        batch: &Intent,
        reducer: Reducer,
        quiet_ms: i64,
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? || intent(&mut tx, hold.lane).await?.is_some() {
            return Ok(Written::Stale);
        }
        settle(&mut tx, hold.lane, batch, reducer, "the entries cancel out: nothing was written", now)
            .await?;
        rest(&mut tx, hold.lane, None, now, quiet_ms).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Dissolves a batch that was not applied: its entries wait again, to be written then.
    pub async fn dissolve(
        &self,
        hold: &Hold,
        error: &str,
        is_counted: bool,
        due: i64,
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        tx.run("DELETE FROM relay_intent WHERE lane = $1", vec![hold.lane.into()]).await?;
        let sql = "UPDATE relay_lane SET attempts = attempts + $2 WHERE id = $1";
        tx.run(sql, vec![hold.lane.into(), i64::from(is_counted).into()]).await?;
        give_back(&mut tx, hold.lane, Some(error), Some(due), now).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Keeps a batch frozen that may have been applied, to be looked at then. `last` is when it went out at the latest.
    pub async fn keep(&self, hold: &Hold, seen: &Seen<'_>, due: i64) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        note(&mut tx, hold.lane, seen).await?;
        let sql = "UPDATE relay_lane SET attempts = attempts + $2 WHERE id = $1";
        tx.run(sql, vec![hold.lane.into(), i64::from(seen.is_counted).into()]).await?;
        give_back(&mut tx, hold.lane, Some(seen.error), Some(due), now).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Leaves a batch to a person, with the evidence. The lane is no longer among the waiting work.
    pub async fn in_doubt(&self, hold: &Hold, seen: &Seen<'_>) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        note(&mut tx, hold.lane, seen).await?;
        let Some(lane) = lane_locked(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        let sql = "UPDATE relay_lane SET state = 'in-doubt' WHERE id = $1";
        tx.run(sql, vec![hold.lane.into()]).await?;
        audit(&mut tx, &of_lane(&lane, "in-doubt", "relay", seen.error, now)).await?;
        give_back(&mut tx, hold.lane, Some(seen.error), None, now).await?;
        tx.commit().await?;
        Ok(Written::Done)
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

async fn note(tx: &mut Tx, lane: i64, seen: &Seen<'_>) -> Result<(), StoreError> {
    let sql = "UPDATE relay_intent SET evidence = $2, last_ms = coalesce($3, last_ms) WHERE lane = $1";
    tx.run(sql, vec![lane.into(), seen.evidence.into(), seen.last.into()]).await.map(drop)
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
        detail: detail.to_owned(),
    }
}

/// Moves the watermark past a batch, with all that belongs to it.
pub(crate) async fn settle(
    tx: &mut Tx,
    lane: i64,
    batch: &Intent,
    reducer: Reducer,
    how: &str,
    now: i64,
) -> Result<(), StoreError> {
    let found =
        lane_locked(tx, lane).await?.ok_or_else(|| StoreError::Failed("the lane is gone".to_owned()))?;
    let mut members = waiting(tx, lane, MEMBERS_MAX).await?;
    members.retain(|entry| entry.seq <= batch.hi);
    let values: Vec<i64> = members.iter().map(|entry| entry.value).collect();
    // In between, the running value may leave the range that a receiver reads; then only the ends are told.
    let links = chain(reducer, batch.before, &values)
        .unwrap_or_else(|_| vec![crate::relay::reduce::Link { before: None, after: None }; values.len()]);
    for (entry, link) in members.iter().zip(&links) {
        let row = AuditRow {
            sender: Some(batch.principal.clone()),
            before: link.before,
            after: link.after,
            batch: Some(batch.key.clone()),
            detail: how.to_owned(),
            ..about(&found, entry, "applied", now)
        };
        audit(tx, &row).await?;
    }
    finished(tx, &members, "open = open - $2", now).await?;
    // Without a reading, the sum of what was written since the last known value is the best that is known.
    let sql =
        "UPDATE relay_lane SET watermark = $2, applied = $3, applied_ms = $4, attempts = 0 WHERE id = $1";
    tx.run(sql, vec![lane.into(), batch.hi.into(), batch.after.into(), now.into()]).await?;
    tx.run("DELETE FROM relay_intent WHERE lane = $1", vec![lane.into()]).await.map(drop)
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

/// Gives a lane back after a batch: due when what came meanwhile wants, or not among the waiting work.
pub(crate) async fn rest(
    tx: &mut Tx,
    lane: i64,
    error: Option<&str>,
    now: i64,
    quiet_ms: i64,
) -> Result<(), StoreError> {
    let due = match waiting(tx, lane, 1).await?.is_empty() {
        true => None,
        false => {
            let rows = tx.run("SELECT due_ms FROM relay_ready WHERE lane = $1", vec![lane.into()]).await?;
            let set = rows.first().map_or(Ok(now), |row| row.int(0))?;
            Some(set.min(now + quiet_ms))
        }
    };
    give_back(tx, lane, error, due, now).await
}
