//! Retention: what may go, and when. Nothing that was accepted goes without a row that says so.

use std::time::Duration;

use semel_contract::time::{format_duration, millis_of};

use super::sql::{StoreError, Value};
use super::{AuditRow, RelayStore, audit};
use crate::Invalid;

/// Rows that go in one transaction.
const AT_ONCE: i64 = 500;

/// Batches whose requests go in one transaction.
const RANGES_AT_ONCE: i64 = 10;

/// How long what is finished is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long clients go on sending one request.
    pub client_max_age: Duration,
    /// Requests that are applied.
    pub completed: Duration,
    /// Dead letters.
    pub failed: Duration,
    /// Parked entries, which are dead letters then.
    pub auth_revoked: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        Self {
            client_max_age: hours(23),
            completed: hours(24),
            failed: hours(7 * 24),
            auth_revoked: hours(7 * 24),
        }
    }
}

impl Retention {
    /// Refuses a retention under which a late retry would be taken for a new request.
    ///
    /// # Errors
    /// Says which number to change.
    pub fn check(&self) -> Result<(), Invalid> {
        for (name, kept) in
            [("completed", self.completed), ("failed", self.failed), ("auth_revoked", self.auth_revoked)]
        {
            if kept <= self.client_max_age {
                let why = format!(
                    "retention.{name} {} is not above client_max_age {}: a late retry would be applied again; raise \
                     retention.{name}, or lower client_max_age",
                    format_duration(kept),
                    format_duration(self.client_max_age)
                );
                return Err(why.into());
            }
        }
        Ok(())
    }
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Requests that were removed.
    pub requests: i64,
    /// Parked entries that became dead letters.
    pub given_up: i64,
    /// Dead letters that were removed, each with a row in the audit trail.
    pub purged: i64,
}

impl RelayStore {
    /// By how many milliseconds a clock that is not believed is ahead. If it is right after all, so much more has passed.
    pub fn clock_ahead(&self) -> i64 {
        self.db.clock_ahead()
    }

    /// A person says that the clock is right, and why. `false`: it was believed, and nothing changed.
    ///
    /// Crash: it is confirmed exactly where the trail says so, or, in a file, the trail says so and it is to be confirmed again.
    pub async fn confirm_clock(&self, who: &str, reason: &str) -> Result<bool, StoreError> {
        let now = self.now().await?;
        let ahead = self.clock_ahead();
        if ahead == 0 {
            return Ok(false);
        }
        let row = AuditRow {
            at: now,
            event: "clock-confirmed".to_owned(),
            principal: who.to_owned(),
            detail: format!("ahead by {ahead} ms: {reason}"),
            reason: Some(reason.to_owned()),
            ..AuditRow::default()
        };
        let mut tx = self.db.begin().await?;
        audit(&mut tx, &row).await?;
        tx.confirm_clock().await?;
        tx.commit().await?;
        // The process after this one goes on from the mark that a commit leaves. Where this one does not, the next one does.
        if let Ok(tx) = self.db.begin().await {
            let _ = tx.commit().await;
        }
        Ok(true)
    }

    /// Removes what is past its retention, in small transactions. Nothing goes while the clock is not believed.
    pub async fn sweep(&self, retention: &Retention) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        // Whether the clock is believed is heard with the time.
        self.now().await?;
        if self.clock_ahead() != 0 {
            return Ok(swept);
        }
        loop {
            let now = self.now().await?;
            let given_up = self.give_up(now - millis_of(retention.auth_revoked), now).await?;
            let purged = self.purge(now - millis_of(retention.failed), now).await?;
            let requests = self.forget(now - millis_of(retention.completed)).await?;
            swept.given_up += given_up;
            swept.purged += purged;
            swept.requests += requests;
            if [given_up, purged, requests].iter().all(|count| *count < AT_ONCE) {
                break;
            }
        }
        let now = self.now().await?;
        let mut tx = self.db.begin().await?;
        tx.run("DELETE FROM relay_pause WHERE until_ms < $1", vec![now.into()]).await?;
        tx.commit().await?;
        Ok(swept)
    }

    async fn give_up(&self, before: i64, now: i64) -> Result<i64, StoreError> {
        self.held_before("parked", "dead", "dead", before, now, "parked for too long").await
    }

    async fn purge(&self, before: i64, now: i64) -> Result<i64, StoreError> {
        self.held_before("dead", "purged", "purged", before, now, "a dead letter past its retention").await
    }

    async fn held_before(
        &self,
        from: &str,
        to: &str,
        event: &str,
        before: i64,
        now: i64,
        why: &str,
    ) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "UPDATE relay_held SET state = $2, since_ms = $4, error = CASE WHEN CAST($2 AS text) = 'dead'
                THEN CAST($5 AS text) ELSE error END
            WHERE state = $1 AND (lane, seq) IN (
                SELECT lane, seq FROM relay_held WHERE state = $1 AND since_ms < $3 ORDER BY lane, seq LIMIT $6)
            RETURNING lane, seq, request, pos, principal, value";
        let args = vec![from.into(), to.into(), before.into(), now.into(), why.into(), AT_ONCE.into()];
        let mut rows = tx.run(sql, args).await?;
        // Requests in the order in which everybody else takes them.
        rows.sort_by_key(|row| row.int(2).unwrap_or(0));
        for row in &rows {
            let names = tx
                .run("SELECT target, grp, name FROM relay_lane WHERE id = $1", vec![row.int(0)?.into()])
                .await?;
            let name = |at: usize| names.first().map_or(Ok(String::new()), |row| row.text(at));
            let entry = AuditRow {
                id: 0,
                at: now,
                event: event.to_owned(),
                target: name(0)?,
                group: name(1)?,
                lane: name(2)?,
                seq: Some(row.int(1)?),
                request: Some(row.int(2)?),
                pos: Some(row.int(3)?),
                principal: row.text(4)?,
                sender: None,
                value: Some(row.int(5)?),
                before: None,
                after: None,
                batch: None,
                reason: None,
                detail: why.to_owned(),
            };
            audit(&mut tx, &entry).await?;
            let request = row.int(2)?;
            let change = match to {
                "dead" => "open = open - 1, dead = dead + 1",
                _ => "dead = dead - 1",
            };
            let sql = format!(
                "UPDATE relay_request SET {change}, done_ms = CASE WHEN open = 0 AND dead = 1 THEN CAST($2 AS bigint) END
                 WHERE id = $1"
            );
            let sql = if to == "dead" {
                format!("UPDATE relay_request SET {change} WHERE id = $1 AND CAST($2 AS bigint) > 0")
            } else {
                sql
            };
            tx.run(&sql, vec![request.into(), now.into()]).await?;
        }
        tx.commit().await?;
        Ok(rows.len() as i64)
    }

    /// Forgets requests that were done before then, a bounded number.
    pub(super) async fn forget(&self, before: i64) -> Result<i64, StoreError> {
        Ok(self.forget_told(before).await? + self.forget_applied(before).await?)
    }

    /// Requests that were told that they are done.
    async fn forget_told(&self, before: i64) -> Result<i64, StoreError> {
        let mut tx = self.db.begin().await?;
        let sql = "DELETE FROM relay_request WHERE id IN (
                SELECT id FROM relay_request WHERE done_ms < $1 ORDER BY done_ms LIMIT $2) RETURNING id";
        let rows = tx.run(sql, vec![before.into(), AT_ONCE.into()]).await?;
        for row in &rows {
            let request = row.int(0)?;
            tx.run("DELETE FROM relay_held WHERE request = $1", vec![request.into()]).await?;
            tx.run("DELETE FROM relay_item WHERE request = $1", vec![request.into()]).await?;
        }
        tx.commit().await?;
        Ok(rows.len() as i64)
    }

    /// Requests of entries that came alone, batch by batch. What was taken out of its lane is not among them: its request is
    /// told.
    async fn forget_applied(&self, before: i64) -> Result<i64, StoreError> {
        let of_range = "WHERE i.lane = $1 AND i.seq > $2 AND i.seq <= $3 AND i.alone IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM relay_held h WHERE h.lane = i.lane AND h.seq = i.seq)";
        let requests = format!(
            "DELETE FROM relay_request WHERE id IN (SELECT i.request FROM relay_item i {of_range}) RETURNING id"
        );
        let items = format!("DELETE FROM relay_item AS i {of_range}");
        let mut count = 0;
        while count < AT_ONCE {
            let mut tx = self.db.begin().await?;
            let sql = "DELETE FROM relay_done WHERE (lane, hi) IN (
                    SELECT lane, hi FROM relay_done WHERE at_ms < $1 ORDER BY at_ms LIMIT $2)
                RETURNING lane, lo, hi";
            let ranges = tx.run(sql, vec![before.into(), RANGES_AT_ONCE.into()]).await?;
            if ranges.is_empty() {
                break;
            }
            for row in &ranges {
                let range: Vec<Value> = vec![row.int(0)?.into(), row.int(1)?.into(), row.int(2)?.into()];
                count += tx.run(&requests, range.clone()).await?.len() as i64;
                tx.run(&items, range).await?;
            }
            tx.commit().await?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_below_the_clients_age_is_refused_with_the_number_to_change() {
        assert_eq!(Retention::default().check(), Ok(()));
        let bad = Retention { client_max_age: Duration::from_secs(86_400), ..Retention::default() };
        let why = bad.check().unwrap_err().to_string();
        assert!(why.contains("retention.completed") && why.contains("client_max_age"), "{why}");
        let bad = Retention { failed: Duration::from_secs(3600), ..Retention::default() };
        assert!(bad.check().unwrap_err().to_string().contains("retention.failed"));
    }
}
