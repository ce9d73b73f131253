//! Who works on a lane: claims under a lease with a fence, pauses, and which credential was refused.

use std::collections::BTreeMap;

use super::sql::StoreError;
use super::{
    Entry, Hold, Intent, Lane, RelayStore, Written, give_back, holds, intent, lane_locked, make_due, waiting,
};

/// What a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
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
    /// Lanes that are due, the longest first.
    pub async fn due(&self, now: i64, most: i64) -> Result<Vec<i64>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "SELECT lane FROM relay_ready WHERE due_ms <= $1 ORDER BY due_ms LIMIT $2";
        tx.run(sql, vec![now.into(), most.into()]).await?.iter().map(|row| row.int(0)).collect()
    }

    /// When the next lane is due, if one waits.
    pub async fn next_due(&self) -> Result<Option<i64>, StoreError> {
        let mut tx = self.db.begin().await?;
        let rows = tx.run("SELECT min(due_ms) FROM relay_ready", vec![]).await?;
        rows.first().map_or(Ok(None), |row| row.maybe_int(0))
    }

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
    ) -> Result<Claimed, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        let Some(found) = lane_locked(&mut tx, lane).await? else { return Ok(Claimed::Idle) };
        if found.state != super::LaneState::Open {
            return Ok(Claimed::Idle);
        }
        let sql = "SELECT fence, owner, lease_until FROM relay_lane WHERE id = $1";
        let rows = tx.run(sql, vec![lane.into()]).await?;
        let row = rows.first().ok_or_else(|| StoreError::Failed("the lane is gone".to_owned()))?;
        let (fence, is_owned, leased_until) = (row.int(0)? + 1, !row.text(1)?.is_empty(), row.int(2)?);
        if is_owned && leased_until > now {
            return Ok(Claimed::Busy { until: leased_until });
        }
        let intent = intent(&mut tx, lane).await?;
        let entries = waiting(&mut tx, lane, most).await?;
        if intent.is_none() && entries.is_empty() {
            tx.run("DELETE FROM relay_ready WHERE lane = $1", vec![lane.into()]).await?;
            tx.commit().await?;
            return Ok(Claimed::Idle);
        }
        let until = now + lease_ms;
        let sql = "UPDATE relay_lane SET fence = $2, owner = $3, lease_until = $4 WHERE id = $1";
        tx.run(sql, vec![lane.into(), fence.into(), owner.into(), until.into()]).await?;
        // Whoever comes while it is written begins to wait now; if nothing else happens, the lane is due when the lease ends.
        make_due(&mut tx, lane, now, until).await?;
        tx.commit().await?;
        Ok(Claimed::Held(Box::new(Work { hold: Hold { lane, fence, until }, lane: found, intent, entries })))
    }

    /// Gives a lane back unchanged, to be due then.
    pub async fn let_go(&self, hold: &Hold, error: Option<&str>, due: i64) -> Result<Written, StoreError> {
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        if !holds(&mut tx, hold).await? {
            return Ok(Written::Stale);
        }
        give_back(&mut tx, hold.lane, error, Some(due), now).await?;
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Pauses a scope. A later end counts.
    pub async fn pause(&self, scope: &str, until: i64, why: &str) -> Result<(), StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "INSERT INTO relay_pause (scope, until_ms, why) VALUES ($1, $2, $3)
            ON CONFLICT (scope) DO UPDATE SET until_ms = excluded.until_ms, why = excluded.why
            WHERE relay_pause.until_ms < excluded.until_ms";
        tx.run(sql, vec![scope.into(), until.into(), why.into()]).await?;
        tx.commit().await
    }

    /// Until when these scopes are paused. Those that are not are left out.
    pub async fn paused(&self, scopes: &[String], now: i64) -> Result<BTreeMap<String, i64>, StoreError> {
        let mut tx = self.db.begin().await?;
        let mut found = BTreeMap::new();
        for scope in scopes {
            let sql = "SELECT until_ms FROM relay_pause WHERE scope = $1 AND until_ms > $2";
            if let Some(row) = tx.run(sql, vec![scope.into(), now.into()]).await?.first() {
                found.insert(scope.clone(), row.int(0)?);
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
        let mut tx = self.db.begin().await?;
        let mut found = BTreeMap::new();
        for principal in principals {
            let sql = "SELECT refused FROM relay_credential WHERE target = $1 AND principal = $2 AND refused IS NOT NULL";
            if let Some(row) = tx.run(sql, vec![target.into(), principal.into()]).await?.first() {
                found.insert(principal.clone(), row.text(0)?);
            }
        }
        Ok(found)
    }

    /// Every credential that is refused: target, principal, digest.
    pub async fn all_refused(&self) -> Result<Vec<(String, String, String)>, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "SELECT target, principal, refused FROM relay_credential WHERE refused IS NOT NULL
            ORDER BY target, principal LIMIT 10000";
        let rows = tx.run(sql, vec![]).await?;
        rows.iter().map(|row| Ok((row.text(0)?, row.text(1)?, row.text(2)?))).collect()
    }
}

impl RelayStore {
    /// Whether a lane is due.
    pub async fn is_due(&self, lane: i64, now: i64) -> Result<bool, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "SELECT lane FROM relay_ready WHERE lane = $1 AND due_ms <= $2";
        Ok(!tx.run(sql, vec![lane.into(), now.into()]).await?.is_empty())
    }
}

impl RelayStore {
    /// Whether none of these lanes is worked on, or will be by then.
    pub async fn none_due(&self, lanes: &[i64], by: i64) -> Result<bool, StoreError> {
        let mut tx = self.db.begin().await?;
        for lane in lanes {
            let sql = "SELECT l.id FROM relay_lane l LEFT JOIN relay_ready r ON r.lane = l.id
                WHERE l.id = $1 AND (l.owner <> '' OR r.due_ms <= $2)";
            if !tx.run(sql, vec![(*lane).into(), by.into()]).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
