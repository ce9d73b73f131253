//! What operators and new credentials do: release, requeue, resolve.

use super::settle::{finished, of_lane, rest, settle};
use super::sql::{Row, StoreError};
use super::{AuditRow, Entry, Lane, LaneState, RelayStore, Tx, about, audit, intent, lane_locked, make_due};
use crate::relay::reduce::Reducer;

/// Entries that come back in one transaction.
const AT_ONCE: i64 = 500;

/// What a person says of a batch in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was applied.
    Applied,
    /// It was not, and never will be.
    NotApplied,
}

/// What became of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It holds.
    Done,
    /// There is no such lane, or it is not in doubt.
    NotInDoubt,
    /// The write may still be applied late: ask again then.
    TooEarly {
        /// When.
        until: i64,
    },
}

/// Which held entries come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// Parked ones of a principal.
    Parked {
        /// The target.
        target: &'a str,
        /// The principal.
        principal: &'a str,
    },
    /// Dead ones of a lane.
    Dead {
        /// The lane.
        lane: i64,
    },
}

impl RelayStore {
    /// A new credential, or an operator, releases what a principal has parked. `spread` says by how much each lane waits.
    /// Returns how many entries came back.
    ///
    /// After: each entry is at the end of its lane, once, and the credential counts as untried. Crash: what is not back yet
    /// is still parked, and the credential still refused, so that the next call goes on.
    pub async fn release(
        &self,
        target: &str,
        principal: &str,
        who: &str,
        spread: &(dyn Fn() -> i64 + Send + Sync),
    ) -> Result<i64, StoreError> {
        let mut count = 0;
        loop {
            let back = self.come_back(Which::Parked { target, principal }, "released", who, spread).await?;
            let Some(back) = back else { break };
            count += back;
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let sql = "SELECT id FROM relay_lane WHERE target = $1 AND state = 'blocked' AND waits_for = $2 ORDER BY id /*LOCK*/";
        for row in tx.run(sql, vec![target.into(), principal.into()]).await? {
            let lane = row.int(0)?;
            let sql = "UPDATE relay_lane SET state = 'open', waits_for = NULL WHERE id = $1";
            tx.run(sql, vec![lane.into()]).await?;
            make_due(&mut tx, lane, now, now + spread()).await?;
        }
        let sql = "UPDATE relay_credential SET refused = NULL, epoch = epoch + 1, since_ms = $3
            WHERE target = $1 AND principal = $2 AND refused IS NOT NULL";
        tx.run(sql, vec![target.into(), principal.into(), now.into()]).await?;
        tx.commit().await?;
        Ok(count)
    }

    /// An operator has the dead letters of a lane tried again, or opens a lane that waits for one. Returns how many entries
    /// came back.
    pub async fn requeue(&self, lane: i64, who: &str) -> Result<i64, StoreError> {
        let mut count = 0;
        loop {
            let Some(back) = self.come_back(Which::Dead { lane }, "requeued", who, &|| 0).await? else {
                break;
            };
            count += back;
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let Some(found) = lane_locked(&mut tx, lane).await? else { return Ok(count) };
        if found.state == LaneState::Blocked {
            // Whatever stopped it, the upstream's value is read anew and taken as it is.
            let sql = "UPDATE relay_lane SET state = 'open', waits_for = NULL, attempts = 0, applied = NULL WHERE id = $1";
            tx.run(sql, vec![lane.into()]).await?;
            make_due(&mut tx, lane, now, now).await?;
            audit(&mut tx, &of_lane(&found, "requeued", who, "the lane was opened", now)).await?;
            tx.commit().await?;
        }
        Ok(count)
    }

    /// Brings the entries of one lane back, and says how many; `None` when there is none left.
    async fn come_back(
        &self,
        which: Which<'_>,
        event: &str,
        who: &str,
        spread: &(dyn Fn() -> i64 + Send + Sync),
    ) -> Result<Option<i64>, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let columns = "seq, request, pos, principal, value, session, since_ms, lane";
        let rows = match which {
            Which::Parked { target, principal } => {
                let sql = format!(
                    "SELECT {columns} FROM relay_held WHERE target = $1 AND principal = $2 AND state = 'parked'
                     ORDER BY lane, seq LIMIT $3"
                );
                tx.run(&sql, vec![target.into(), principal.into(), AT_ONCE.into()]).await?
            }
            Which::Dead { lane } => {
                let sql = format!(
                    "SELECT {columns} FROM relay_held WHERE lane = $1 AND state = 'dead' ORDER BY lane, seq LIMIT $2"
                );
                tx.run(&sql, vec![lane.into(), AT_ONCE.into()]).await?
            }
        };
        let Some(first) = rows.first() else { return Ok(None) };
        let lane = first.int(7)?;
        let Some(found) = lane_locked(&mut tx, lane).await? else { return Ok(None) };
        let mut back = Vec::new();
        for row in &rows {
            if row.int(7)? != lane {
                break;
            }
            let entry = held(row)?;
            // Whoever else releases at this moment waited for the lane, and finds nothing to do here.
            let sql = "UPDATE relay_held SET state = 'released' WHERE lane = $1 AND seq = $2 AND state IN ('parked', 'dead')
                RETURNING seq";
            if tx.run(sql, vec![lane.into(), entry.seq.into()]).await?.is_empty() {
                continue;
            }
            append(&mut tx, lane, &entry, now).await?;
            let detail = format!("by {who}");
            audit(&mut tx, &AuditRow { detail, ..about(&found, &entry, event, now) }).await?;
            back.push(entry);
        }
        if let Which::Dead { .. } = which {
            finished(&mut tx, &back, "open = open + $2, dead = dead - $2", now).await?;
        }
        if found.state == LaneState::Open {
            let rows = tx.run("SELECT due_ms FROM relay_ready WHERE lane = $1", vec![lane.into()]).await?;
            if rows.is_empty() {
                make_due(&mut tx, lane, now, now + spread()).await?;
            }
        }
        tx.commit().await?;
        Ok(Some(back.len() as i64))
    }

    /// A person says what became of a batch in doubt.
    ///
    /// After `Done`: the batch is settled as applied, or dissolved. `NotApplied` is refused until the late window is over.
    pub async fn resolve(
        &self,
        lane: i64,
        resolution: Resolution,
        reducer: Reducer,
        late_window_ms: i64,
        who: &str,
    ) -> Result<Resolved, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let Some(found) = lane_locked(&mut tx, lane).await? else { return Ok(Resolved::NotInDoubt) };
        let batch = intent(&mut tx, lane).await?;
        let (LaneState::InDoubt, Some(batch)) = (found.state, batch) else { return Ok(Resolved::NotInDoubt) };
        let until = batch.last + late_window_ms;
        if resolution == Resolution::NotApplied && now < until {
            return Ok(Resolved::TooEarly { until });
        }
        let sql = "UPDATE relay_lane SET state = 'open', fence = fence + 1, attempts = 0 WHERE id = $1";
        tx.run(sql, vec![lane.into()]).await?;
        let said = match resolution {
            Resolution::Applied => "applied",
            Resolution::NotApplied => "not applied",
        };
        let row = of_lane(&found, "resolved", who, &format!("said to be {said}: {}", batch.evidence), now);
        audit(&mut tx, &AuditRow { batch: Some(batch.key.clone()), ..row }).await?;
        match resolution {
            Resolution::Applied => {
                settle(&mut tx, lane, &batch, reducer, &format!("resolved by {who}"), now).await?
            }
            Resolution::NotApplied => {
                tx.run("DELETE FROM relay_intent WHERE lane = $1", vec![lane.into()]).await?;
            }
        }
        rest(&mut tx, lane, None, now, 0).await?;
        tx.commit().await?;
        Ok(Resolved::Done)
    }
}

fn held(row: &Row) -> Result<Entry, StoreError> {
    Ok(Entry {
        seq: row.int(0)?,
        request: row.int(1)?,
        pos: row.int(2)?,
        principal: row.text(3)?,
        value: row.int(4)?,
        session: row.maybe_text(5)?,
        created: row.int(6)?,
    })
}

/// Puts an entry at the end of its lane, under a new number.
async fn append(tx: &mut Tx, lane: i64, entry: &Entry, now: i64) -> Result<(), StoreError> {
    let sql = "UPDATE relay_lane SET next_seq = next_seq + 1 WHERE id = $1 RETURNING next_seq";
    let rows = tx.run(sql, vec![lane.into()]).await?;
    let row = rows.first().ok_or_else(|| StoreError::Failed("the lane is gone".to_owned()))?;
    let sql = "INSERT INTO relay_item (lane, seq, request, pos, principal, value, session, created_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let args = vec![
        lane.into(),
        (row.int(0)? - 1).into(),
        entry.request.into(),
        entry.pos.into(),
        (&entry.principal).into(),
        entry.value.into(),
        entry.session.as_deref().into(),
        now.into(),
    ];
    tx.run(sql, args).await.map(drop)
}

impl RelayStore {
    /// The lane of these names, if there is one.
    pub async fn find_lane(&self, target: &str, group: &str, name: &str) -> Result<Option<Lane>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql =
            format!("SELECT {} FROM relay_lane WHERE target = $1 AND grp = $2 AND name = $3", super::LANE);
        let rows = tx.run(&sql, vec![target.into(), group.into(), name.into()]).await?;
        rows.first().map(Lane::of).transpose()
    }
}
