//! What operators and new credentials do: release, requeue, resolve.

use super::settle::{finished, of_lane, rest, settle};
use super::sql::{Row, StoreError};
use super::{
    AuditRow, Entry, Lane, LaneState, RelayStore, about, audit, audit_all, end_intent, intent, locked,
};
use crate::operator::Operator;
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
        who: impl Into<Operator> + Send,
        spread: &(dyn Fn() -> i64 + Send + Sync),
    ) -> Result<i64, StoreError> {
        let who = who.into();
        let mut count = 0;
        loop {
            let back = self.come_back(Which::Parked { target, principal }, "released", &who, spread).await?;
            let Some(back) = back else { break };
            count += back;
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let sql = "SELECT s.lane FROM relay_state s JOIN relay_lane l ON l.id = s.lane
            WHERE s.state <> 'open' AND s.state = 'blocked' AND s.waits_for = $2 AND l.target = $1 ORDER BY s.lane";
        for row in tx.run(sql, vec![target.into(), principal.into()]).await? {
            let Some(mut state) = locked(&mut tx, row.int(0)?).await? else { continue };
            if state.state == LaneState::Blocked && state.waits_for.as_deref() == Some(principal) {
                state.state = LaneState::Open;
                state.waits_for = None;
                state.make_due(now, now + spread());
                state.save(&mut tx).await?;
            }
        }
        let sql = "UPDATE relay_credential SET refused = NULL, epoch = epoch + 1, since_ms = $3
            WHERE target = $1 AND principal = $2 AND refused IS NOT NULL";
        tx.run(sql, vec![target.into(), principal.into(), now.into()]).await?;
        tx.commit().await?;
        Ok(count)
    }

    /// An operator has the dead letters of a lane tried again, or opens a lane that waits for one. Returns how many entries
    /// came back.
    pub async fn requeue(&self, lane: i64, who: impl Into<Operator> + Send) -> Result<i64, StoreError> {
        let who = who.into();
        let mut count = 0;
        loop {
            let Some(back) = self.come_back(Which::Dead { lane }, "requeued", &who, &|| 0).await? else {
                break;
            };
            count += back;
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let Some(mut state) = locked(&mut tx, lane).await? else { return Ok(count) };
        if state.state == LaneState::Blocked {
            let row = of_lane(&state.lane(), "requeued", &who.name, "the lane was opened", now);
            audit(&mut tx, &AuditRow { reason: who.reason, ..row }).await?;
            // Whatever stopped it, the upstream's value is read anew and taken as it is.
            state.state = LaneState::Open;
            state.waits_for = None;
            state.attempts = 0;
            state.applied = None;
            state.make_due(now, now);
            state.save(&mut tx).await?;
            tx.commit().await?;
        }
        Ok(count)
    }

    /// Brings the entries of one lane back, and says how many; `None` when there is none left.
    async fn come_back(
        &self,
        which: Which<'_>,
        event: &str,
        who: &Operator,
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
        let Some(mut state) = locked(&mut tx, lane).await? else { return Ok(None) };
        let found = state.lane();
        let mut back = Vec::new();
        for row in &rows {
            if row.int(7)? != lane {
                break;
            }
            let entry = held(row)?;
            // Whoever else releases at this moment waited for the lane, and finds nothing to do here.
            let sql = "UPDATE relay_held SET state = 'released' WHERE lane = $1 AND seq = $2 AND state IN ('parked', 'dead')
                RETURNING seq";
            if !tx.run(sql, vec![lane.into(), entry.seq.into()]).await?.is_empty() {
                back.push(entry);
            }
        }
        let sql = "INSERT INTO relay_item (lane, seq, request, pos, principal, value, session, created_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        // Each at the end of its lane, under a new number.
        let again = |(seq, entry): (i64, &Entry)| {
            vec![
                lane.into(),
                seq.into(),
                entry.request.into(),
                entry.pos.into(),
                (&entry.principal).into(),
                entry.value.into(),
                entry.session.as_deref().into(),
                now.into(),
            ]
        };
        tx.run_each(sql, (state.last_seq + 1..).zip(&back).map(again).collect()).await?;
        state.last_seq += back.len() as i64;
        let told = |entry: &Entry| AuditRow {
            detail: format!("by {}", who.name),
            reason: who.reason.clone(),
            ..about(&found, entry, event, now)
        };
        audit_all(&mut tx, &back.iter().map(told).collect::<Vec<_>>()).await?;
        if let Which::Dead { .. } = which {
            finished(&mut tx, &back, "open = open + $2, dead = dead - $2", now).await?;
        }
        if state.state == LaneState::Open && state.due.is_none() {
            state.make_due(now, now + spread());
        }
        state.save(&mut tx).await?;
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
        who: impl Into<Operator> + Send,
    ) -> Result<Resolved, StoreError> {
        let Operator { name: who, reason } = who.into();
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let Some(mut state) = locked(&mut tx, lane).await? else { return Ok(Resolved::NotInDoubt) };
        let batch = intent(&mut tx, lane, state.ended).await?;
        let (LaneState::InDoubt, Some(batch)) = (state.state, batch) else { return Ok(Resolved::NotInDoubt) };
        let until = batch.last + late_window_ms;
        if resolution == Resolution::NotApplied && now < until {
            return Ok(Resolved::TooEarly { until });
        }
        state.state = LaneState::Open;
        state.fence += 1;
        state.attempts = 0;
        let said = match resolution {
            Resolution::Applied => "applied",
            Resolution::NotApplied => "not applied",
        };
        let row =
            of_lane(&state.lane(), "resolved", &who, &format!("said to be {said}: {}", batch.evidence), now);
        audit(&mut tx, &AuditRow { batch: Some(batch.key.clone()), reason, ..row }).await?;
        match resolution {
            Resolution::Applied => {
                settle(&mut tx, &mut state, &batch, reducer, &format!("resolved by {who}"), now).await?
            }
            Resolution::NotApplied => end_intent(&mut tx, &mut state).await?,
        }
        rest(&mut tx, &mut state, None, now, 0).await?;
        state.save(&mut tx).await?;
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
        is_alone: false,
    })
}

impl RelayStore {
    /// The lane of these names, if there is one.
    pub async fn find_lane(&self, target: &str, group: &str, name: &str) -> Result<Option<Lane>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql =
            format!("SELECT {} FROM relay_now WHERE target = $1 AND grp = $2 AND name = $3", super::LANE);
        let rows = tx.run(&sql, vec![target.into(), group.into(), name.into()]).await?;
        rows.first().map(Lane::of).transpose()
    }
}
