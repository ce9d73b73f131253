//! Entries that leave their lane: parked until there is a credential, or given up. Where order matters the lane waits
//! instead.

use semel_contract::time::millis_of;

use super::settle::{finished, of_lane, rest};
use super::sql::StoreError;
use super::{
    AuditRow, Entry, FencedWrite, Hold, Lane, LaneState, RelayStore, Tx, about, audit, audit_all, end_intent,
    held_now, waiting,
};
use crate::credentials::wait_after;
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
    ) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        let lane = state.lane();
        end_intent(&mut tx, &mut state).await?;
        refused(&mut tx, &lane.target, principal, digest, now).await?;
        let why = refusal(principal, digest);
        let why = why.as_str();
        if commutes(reducer) {
            let entries = waiting(&mut tx, lane.id, state.watermark, state.last_seq, MEMBERS_MAX).await?;
            let theirs: Vec<Entry> =
                entries.into_iter().filter(|entry| entry.principal == principal).collect();
            take_out(&mut tx, &lane, &theirs, "parked", why, now).await?;
            rest(&mut tx, &mut state, Some(why), now, 0).await?;
        } else {
            state.state = LaneState::Blocked;
            state.waits_for = Some(principal.to_owned());
            audit(&mut tx, &of_lane(&lane, "blocked", principal, why, now)).await?;
            state.give_back(Some(why), None, now);
        }
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Notes that a credential was refused, and keeps the lane as it is, to be tried then: its batch may have been applied.
    pub async fn refuse(
        &self,
        hold: &Hold,
        principal: &str,
        digest: &str,
        due: i64,
    ) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        let lane = state.lane();
        refused(&mut tx, &lane.target, principal, digest, now).await?;
        state.give_back(Some(&refusal(principal, digest)), Some(due), now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Stops a lane until an operator opens it.
    pub async fn block(&self, hold: &Hold, why: &str) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        let lane = state.lane();
        state.state = LaneState::Blocked;
        state.waits_for = None;
        audit(&mut tx, &of_lane(&lane, "blocked", "relay", why, now)).await?;
        state.give_back(Some(why), None, now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
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
    ) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        let lane = state.lane();
        end_intent(&mut tx, &mut state).await?;
        if commutes(reducer) {
            let entries = waiting(&mut tx, lane.id, state.watermark, hi, MEMBERS_MAX).await?;
            take_out(&mut tx, &lane, &entries, "dead", why, now).await?;
            finished(&mut tx, &entries, "open = open - $2, dead = dead + $2", now).await?;
            state.attempts = 0;
            rest(&mut tx, &mut state, Some(why), now, 0).await?;
        } else {
            state.state = LaneState::Blocked;
            state.waits_for = None;
            audit(&mut tx, &of_lane(&lane, "blocked", "relay", why, now)).await?;
            state.give_back(Some(why), None, now);
        }
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }
}

/// The digest of no credential at all.
pub(crate) const NO_CREDENTIAL: &str = "none";

/// What is said of a refusal.
fn refusal(principal: &str, digest: &str) -> String {
    match digest {
        NO_CREDENTIAL => {
            format!("there is no credential of {principal}, and the service refuses to do without")
        }
        _ => "the credential was refused".to_owned(),
    }
}

/// Remembers which credential was refused. From the second refusal in a row on, another credential of the principal waits
/// for a while before it is tried: a provider may have another one each time.
async fn refused(
    tx: &mut Tx,
    target: &str,
    principal: &str,
    digest: &str,
    now: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO relay_credential (target, principal, epoch, refused, since_ms, failures)
        VALUES ($1, $2, 1, $3, $4, 1)
        ON CONFLICT (target, principal) DO UPDATE SET refused = excluded.refused, since_ms = excluded.since_ms,
            failures = CASE WHEN excluded.since_ms - relay_credential.since_ms > $5 THEN 1
                ELSE relay_credential.failures + 1 END
        WHERE relay_credential.refused IS DISTINCT FROM excluded.refused RETURNING failures";
    let args = vec![target.into(), principal.into(), digest.into(), now.into(), IN_A_ROW_MS.into()];
    let rows = tx.run(sql, args).await?;
    let Some(failures) = rows.first().map(|row| row.int(0)).transpose()? else { return Ok(()) };
    let wait = millis_of(wait_after(u32::try_from(failures).unwrap_or(u32::MAX)));
    if wait > 0 {
        let sql = "INSERT INTO relay_pause (scope, until_ms, why) VALUES ($1, $2, $3)
            ON CONFLICT (scope, until_ms) DO NOTHING";
        let why = format!("{failures} credentials in a row were refused");
        tx.run(sql, vec![refusal_scope(target, principal).into(), (now + wait).into(), why.into()]).await?;
    }
    Ok(())
}

/// A refusal so long after the last one, or after the last release, is the first of its row again.
const IN_A_ROW_MS: i64 = 15 * 60_000;

/// The name under which it is kept that other credentials of a principal wait.
pub(crate) fn refusal_scope(target: &str, principal: &str) -> String {
    // Lengths first, so that no two pairs are one name.
    format!("refused:{}:{target}:{principal}", target.len())
}

impl RelayStore {
    /// A person says that a principal's credential is good, or gives another: it is tried at once, however many were
    /// refused before.
    pub async fn start_over(&self, target: &str, principal: &str) -> Result<(), StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "UPDATE relay_credential SET failures = 0 WHERE target = $1 AND principal = $2";
        tx.run(sql, vec![target.into(), principal.into()]).await?;
        let sql = "DELETE FROM relay_pause WHERE scope = $1";
        tx.run(sql, vec![refusal_scope(target, principal).into()]).await?;
        tx.commit().await
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
    let sql = "INSERT INTO relay_held (lane, seq, request, pos, target, principal, value, session, state, error, since_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let row = |entry: &Entry| {
        vec![
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
        ]
    };
    tx.run_each(sql, entries.iter().map(row).collect()).await?;
    let told = |entry| AuditRow { detail: why.to_owned(), ..about(lane, entry, state, now) };
    audit_all(tx, &entries.iter().map(told).collect::<Vec<_>>()).await
}
