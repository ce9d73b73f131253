//! Who works on a lane: claims under a lease with a fence, pauses, and which credential was refused.

use std::collections::BTreeMap;

use super::sql::StoreError;
use super::{
    Entry, FencedWrite, Hold, Intent, Lane, LaneState, RelayStore, held_now, intent_and_waiting, locked_now,
};

/// Scopes or principals that are asked for by one statement.
const AT_ONCE: usize = 50;

/// What a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneClaim {
    /// The lane is ours until the hold ends.
    Held(Box<Work>),
    /// Somebody else works on it until then.
    Busy {
        /// When the other's lease ends.
        until: i64,
    },
    /// There is nothing to do, or nothing that may be done now.
    Idle,
}

/// A lane with its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The right to it.
    pub hold: Hold,
    /// The lane.
    pub lane: Lane,
    /// The batch that is frozen, if there is one.
    pub intent: Option<Intent>,
    /// What waits, frozen or not, up to the asked number.
    pub entries: Vec<Entry>,
}

impl RelayStore {
    /// Claims a lane.
    ///
    /// Before: nothing is assumed. After `Held`: until the lease ends nobody else claims it, and its fence is higher than
    /// any before. Crash: the lease ends by itself, and the lane is due then.
    pub async fn claim(
        &self,
        lane: i64,
        owner: &str,
        lease_ms: i64,
        most: i64,
    ) -> Result<LaneClaim, StoreError> {
        self.claimed(lane, owner, lease_ms, most, false).await
    }

    /// The same, for a lane that is due; [`LaneClaim::Idle`] where it is not.
    pub async fn claim_due(
        &self,
        lane: i64,
        owner: &str,
        lease_ms: i64,
        most: i64,
    ) -> Result<LaneClaim, StoreError> {
        self.claimed(lane, owner, lease_ms, most, true).await
    }

    async fn claimed(
        &self,
        lane: i64,
        owner: &str,
        lease_ms: i64,
        most: i64,
        only_due: bool,
    ) -> Result<LaneClaim, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = locked_now(&mut tx, lane).await? else { return Ok(LaneClaim::Idle) };
        if state.state != LaneState::Open || (only_due && state.due.is_none_or(|due| due > now)) {
            return Ok(LaneClaim::Idle);
        }
        if !state.owner.is_empty() && state.lease_until > now {
            return Ok(LaneClaim::Busy { until: state.lease_until });
        }
        let (intent, entries) = intent_and_waiting(&mut tx, &state, most).await?;
        if intent.is_none() && entries.is_empty() {
            if state.due.is_some() {
                state.give_back(state.last_error.clone().as_deref(), None, now);
                state.save(&mut tx).await?;
                tx.commit().await?;
            }
            return Ok(LaneClaim::Idle);
        }
        let found = state.lane();
        let until = now + lease_ms;
        state.fence += 1;
        state.owner = owner.to_owned();
        state.lease_until = until;
        // Whoever comes while it is written begins to wait now; if nothing else happens, the lane is due when the lease ends.
        state.make_due(now, until);
        state.save(&mut tx).await?;
        tx.commit().await?;
        let hold = Hold { lane, fence: state.fence, until };
        Ok(LaneClaim::Held(Box::new(Work { hold, lane: found, intent, entries })))
    }

    /// Gives a lane back unchanged, to be due then.
    pub async fn let_go(
        &self,
        hold: &Hold,
        error: Option<&str>,
        due: i64,
    ) -> Result<FencedWrite, StoreError> {
        let mut tx = self.db.begin().await?;
        let (Some(mut state), now) = held_now(&mut tx, hold).await? else { return Ok(FencedWrite::Stale) };
        state.give_back(error, Some(due), now);
        state.save(&mut tx).await?;
        tx.commit().await?;
        Ok(FencedWrite::Done)
    }

    /// Pauses a scope. A later end counts.
    pub async fn pause(&self, scope: &str, until: i64, why: &str) -> Result<(), StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "INSERT INTO relay_pause (scope, until_ms, why) VALUES ($1, $2, $3)
            ON CONFLICT (scope, until_ms) DO NOTHING";
        tx.run(sql, vec![scope.into(), until.into(), why.into()]).await?;
        tx.commit().await
    }

    /// Until when these scopes are paused. Those that are not are left out.
    pub async fn paused(&self, scopes: &[String], now: i64) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut found = BTreeMap::new();
        for some in scopes.chunks(AT_ONCE) {
            let sql = format!(
                "SELECT scope, max(until_ms) FROM relay_pause WHERE until_ms > $1 AND scope IN ({}) GROUP BY scope",
                places(2, some.len())
            );
            let args = std::iter::once(now.into()).chain(some.iter().map(Into::into)).collect();
            for row in self.db.read(&sql, args).await? {
                found.insert(row.text(0)?, row.int(1)?);
            }
        }
        Ok(found)
    }

    /// The digests of refused credentials, by principal.
    pub async fn refused(
        &self,
        target: &str,
        principals: &[String],
    ) -> Result<BTreeMap<String, String>, StoreError> {
        let mut found = BTreeMap::new();
        for some in principals.chunks(AT_ONCE) {
            let sql = format!(
                "SELECT principal, refused FROM relay_credential
                 WHERE target = $1 AND refused IS NOT NULL AND principal IN ({})",
                places(2, some.len())
            );
            let args = std::iter::once(target.into()).chain(some.iter().map(Into::into)).collect();
            for row in self.db.read(&sql, args).await? {
                found.insert(row.text(0)?, row.text(1)?);
            }
        }
        Ok(found)
    }

    /// Every credential that is refused: target, principal, digest.
    pub async fn all_refused(&self) -> Result<Vec<(String, String, String)>, StoreError> {
        let sql = "SELECT target, principal, refused FROM relay_credential WHERE refused IS NOT NULL
            ORDER BY target, principal LIMIT 10000";
        let rows = self.db.read(sql, vec![]).await?;
        rows.iter().map(|row| Ok((row.text(0)?, row.text(1)?, row.text(2)?))).collect()
    }
}

/// `$2, $3, …`: so many arguments from this one on.
fn places(first: usize, many: usize) -> String {
    (first..first + many).map(|at| format!("${at}")).collect::<Vec<_>>().join(", ")
}
