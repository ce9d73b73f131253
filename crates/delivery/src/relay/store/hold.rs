//! Entries that leave their lane: parked until there is a credential, or given up. Where order matters the lane waits
//! instead.

use super::settle::{finished, of_lane, rest};
use super::sql::StoreError;
use super::{
    Entry, Hold, Lane, RelayStore, Tx, Written, about, audit, give_back, holds, lane_locked, waiting,
};
use crate::relay::reduce::{Reducer, commutes};
use crate::relay::store::settle::MEMBERS_MAX;

impl RelayStore {
    /// Parks what a principal has in this lane, because this credential was refused. The batch, which was not applied,
    /// dissolves; what others have in the lane goes on.
    ///
    /// After: the entries are held, or the lane waits for the principal where entries do not commute. Crash: both or
    /// neither.
    pub async fn park(
        &self,
        hold: &Hold,
        principal: &str,
        digest: &str,
        reducer: Reducer,
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        tx.run("DELETE FROM relay_intent WHERE lane = $1", vec![hold.lane.into()]).await?;
        let Some(lane) = lane_locked(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        let sql = "INSERT INTO relay_credential (target, principal, epoch, refused, since_ms) VALUES ($1, $2, 1, $3, $4)
            ON CONFLICT (target, principal) DO UPDATE SET refused = excluded.refused, since_ms = excluded.since_ms";
        tx.run(sql, vec![(&lane.target).into(), principal.into(), digest.into(), now.into()]).await?;
        let why = "the credential was refused";
        if commutes(reducer) {
            let entries = waiting(&mut tx, lane.id, MEMBERS_MAX).await?;
            let theirs: Vec<Entry> =
                entries.into_iter().filter(|entry| entry.principal == principal).collect();
            take_out(&mut tx, &lane, &theirs, "parked", why, now).await?;
            rest(&mut tx, lane.id, Some(why), now, 0).await?;
        } else {
            let sql = "UPDATE relay_lane SET state = 'blocked', waits_for = $2 WHERE id = $1";
            tx.run(sql, vec![lane.id.into(), principal.into()]).await?;
            audit(&mut tx, &of_lane(&lane, "blocked", principal, why, now)).await?;
            give_back(&mut tx, lane.id, Some(why), None, now).await?;
        }
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Notes that a credential was refused, and keeps the lane as it is, to be tried then: its batch may have been applied.
    pub async fn refuse(
        &self,
        hold: &Hold,
        principal: &str,
        digest: &str,
        due: i64,
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        let Some(lane) = lane_locked(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        let sql = "INSERT INTO relay_credential (target, principal, epoch, refused, since_ms) VALUES ($1, $2, 1, $3, $4)
            ON CONFLICT (target, principal) DO UPDATE SET refused = excluded.refused, since_ms = excluded.since_ms";
        tx.run(sql, vec![(&lane.target).into(), principal.into(), digest.into(), now.into()]).await?;
        give_back(&mut tx, lane.id, Some("the credential was refused"), Some(due), now).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Stops a lane until an operator opens it.
    pub async fn block(&self, hold: &Hold, why: &str) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        let Some(lane) = lane_locked(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        let sql = "UPDATE relay_lane SET state = 'blocked', waits_for = NULL WHERE id = $1";
        tx.run(sql, vec![lane.id.into()]).await?;
        audit(&mut tx, &of_lane(&lane, "blocked", "relay", why, now)).await?;
        give_back(&mut tx, lane.id, Some(why), None, now).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Gives up entries up to `hi`, which were refused for good. The batch dissolves.
    ///
    /// After: they are dead letters, which an operator may requeue; or the lane waits for an operator where entries do not
    /// commute.
    pub async fn bury(
        &self,
        hold: &Hold,
        hi: i64,
        why: &str,
        reducer: Reducer,
    ) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        tx.run("DELETE FROM relay_intent WHERE lane = $1", vec![hold.lane.into()]).await?;
        let Some(lane) = lane_locked(&mut tx, hold.lane).await? else { return Ok(Written::Stale) };
        if commutes(reducer) {
            let mut entries = waiting(&mut tx, lane.id, MEMBERS_MAX).await?;
            entries.retain(|entry| entry.seq <= hi);
            take_out(&mut tx, &lane, &entries, "dead", why, now).await?;
            finished(&mut tx, &entries, "open = open - $2, dead = dead + $2", now).await?;
            tx.run("UPDATE relay_lane SET attempts = 0 WHERE id = $1", vec![lane.id.into()]).await?;
            rest(&mut tx, lane.id, Some(why), now, 0).await?;
        } else {
            let sql = "UPDATE relay_lane SET state = 'blocked', waits_for = NULL WHERE id = $1";
            tx.run(sql, vec![lane.id.into()]).await?;
            audit(&mut tx, &of_lane(&lane, "blocked", "relay", why, now)).await?;
            give_back(&mut tx, lane.id, Some(why), None, now).await?;
        }
        tx.commit().await?;
        Ok(Written::Done)
    }
}

async fn take_out(
    tx: &mut Tx,
    lane: &Lane,
    entries: &[Entry],
    state: &str,
    why: &str,
    now: i64,
) -> Result<(), StoreError> {
    for entry in entries {
        let sql = "INSERT INTO relay_held (lane, seq, request, pos, target, principal, value, session, state, error, since_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let args = vec![
            lane.id.into(),
            entry.seq.into(),
            entry.request.into(),
            entry.pos.into(),
            (&lane.target).into(),
            (&entry.principal).into(),
            entry.value.into(),
            entry.session.as_deref().into(),
            state.into(),
            why.into(),
            now.into(),
        ];
        tx.run(sql, args).await?;
        let row = super::AuditRow { detail: why.to_owned(), ..about(lane, entry, state, now) };
        audit(tx, &row).await?;
    }
    Ok(())
}
