//! The queue of webhooks: claims with a lease and a fence, what is sent next, and what became of it. What changes a delivery
//! presents the fence of its claim: with a stale one it changes nothing and says so.

use semel_delivery::relay::store::sql::StoreError;

use super::history::{Stored, bodies_of};
use super::manage::next_secrets;
use super::{Line, Store, Tx, first_int, line_of, time};

/// The right to send for a webhook.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) webhook: i64,
    pub(crate) fence: i64,
    pub(crate) url: String,
    pub(crate) secrets: Vec<String>,
    pub(crate) is_ordered: bool,
    pub(crate) line: Line,
}

/// A message that waits for a webhook.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) number: i64,
    pub(crate) attempts: i64,
    pub(crate) due_at: i64,
    pub(crate) created_at: i64,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Delivered,
    /// Try again then.
    Later {
        at: i64,
        why: String,
    },
    Dead {
        why: String,
    },
}

/// Whether a call with a fence did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// Somebody else holds the webhook: nothing was changed.
    Stale,
}

impl Store {
    /// Webhooks after this one that have something to send now and that nobody holds. Of a webhook in order the first message that
    /// waits must be due: what is behind it is not sent before.
    pub(crate) async fn due_webhooks(&self, after: i64, limit: usize) -> Result<Vec<i64>, StoreError> {
        let now = self.now().await?;
        let sql = "SELECT w.webhook FROM webhook w WHERE w.webhook > $2 AND w.lease_until <= $1 AND w.deleted_at IS NULL \
            AND CASE WHEN w.ordered = 1 THEN (SELECT d.due_at FROM delivery_waiting d WHERE d.webhook = w.webhook \
             AND d.line = w.line ORDER BY d.number LIMIT 1) <= $1 \
            ELSE EXISTS (SELECT 1 FROM delivery_waiting d WHERE d.webhook = w.webhook AND d.line = w.line AND d.due_at <= $1) \
            END ORDER BY w.webhook LIMIT $3";
        let rows = self.read(sql, vec![now.into(), after.into(), (limit as i64).into()]).await?;
        rows.iter().map(|row| row.int(0)).collect()
    }

    /// Claims a webhook, unless somebody holds it.
    ///
    /// After: nobody else claims it before the lease ends, and writes with an older fence change nothing. Crash: the lease
    /// ends by itself, and what was being sent is sent again.
    pub(crate) async fn claim_webhook(&self, webhook: i64, lease: i64) -> Result<Option<Claim>, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "UPDATE webhook SET fence = fence + 1, lease_until = $2 WHERE webhook = $1 AND lease_until <= $3 \
            AND deleted_at IS NULL RETURNING fence, url, secrets, ordered, line";
        let rows = tx.run(sql, vec![webhook.into(), (now + lease).into(), now.into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let sql = "SELECT line, kind, ref, next_number FROM line WHERE line = $1";
        let lines = tx.run(sql, vec![row.int(4)?.into()]).await?;
        let line = line_of(lines.first().ok_or_else(|| StoreError::Failed("a line is gone".to_owned()))?)?;
        let claim = Claim {
            webhook,
            fence: row.int(0)?,
            url: row.text(1)?,
            secrets: next_secrets(&row.text(2)?),
            is_ordered: row.int(3)? != 0,
            line,
        };
        tx.commit().await?;
        Ok(Some(claim))
    }

    /// Holds a webhook longer, or gives it back (`lease` 0).
    pub(crate) async fn renew_webhook(&self, claim: &Claim, lease: i64) -> Result<Written, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let until = if lease == 0 { 0 } else { now + lease };
        let sql = "UPDATE webhook SET lease_until = $3 WHERE webhook = $1 AND fence = $2 RETURNING fence";
        let found = tx.run(sql, vec![claim.webhook.into(), claim.fence.into(), until.into()]).await?;
        tx.commit().await?;
        Ok(if found.is_empty() { Written::Stale } else { Written::Done })
    }

    /// What a webhook is sent next. In order, that is the first that waits, even if it is not due yet. Nothing, once the webhook
    /// was changed, removed, or claimed by somebody else.
    pub(crate) async fn next_due(&self, claim: &Claim) -> Result<Option<Due>, StoreError> {
        let order = if claim.is_ordered { "d.line, d.number" } else { "d.due_at, d.line, d.number" };
        let sql = format!(
            "SELECT d.number, q.attempts, d.due_at, q.created_at FROM delivery_waiting d JOIN delivery_queue q \
             ON q.line = d.line AND q.number = d.number AND q.webhook = d.webhook \
             JOIN webhook w ON w.webhook = d.webhook AND w.fence = $3 AND w.deleted_at IS NULL \
             WHERE d.webhook = $1 AND d.line = $2 ORDER BY {order} LIMIT 1"
        );
        let rows =
            self.read(&sql, vec![claim.webhook.into(), claim.line.line.into(), claim.fence.into()]).await?;
        let due = |row: &semel_delivery::relay::store::sql::Row| {
            let (number, attempts) = (row.int(0)?, row.int(1)?);
            Ok(Due { number, attempts, due_at: row.int(2)?, created_at: row.int(3)? })
        };
        rows.first().map(due).transpose()
    }

    /// The message to send.
    pub(crate) async fn due_message(&self, claim: &Claim, number: i64) -> Result<Option<Stored>, StoreError> {
        let found = self.page(&claim.line, number - 1, 1).await?;
        Ok(found.into_iter().find(|stored| stored.number == number))
    }

    /// Writes down what became of an attempt.
    ///
    /// After `Done`: a delivered or dead message is not sent again. Crash before: it is sent again, with the same id.
    pub(crate) async fn settle(
        &self,
        claim: &Claim,
        number: i64,
        outcome: &Outcome,
    ) -> Result<Written, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "SELECT fence FROM webhook WHERE webhook = $1 /*LOCK*/";
        if first_int(&tx.run(sql, vec![claim.webhook.into()]).await?)? != claim.fence {
            return Ok(Written::Stale);
        }
        let (status, why) = match outcome {
            Outcome::Delivered => ("delivered", None),
            Outcome::Later { why, .. } => ("pending", Some(why)),
            Outcome::Dead { why } => ("dead", Some(why)),
        };
        let sql = "UPDATE delivery_queue SET status = $4, attempts = attempts + 1, delivered_at = $5, last_error = $6 \
            WHERE line = $1 AND number = $2 AND webhook = $3";
        let delivered = (*outcome == Outcome::Delivered).then_some(now);
        let args = vec![
            claim.line.line.into(),
            number.into(),
            claim.webhook.into(),
            status.into(),
            delivered.into(),
            why.into(),
        ];
        tx.run(sql, args).await?;
        let place = vec![claim.webhook.into(), claim.line.line.into(), number.into()];
        match outcome {
            Outcome::Later { at, .. } => {
                let sql = "UPDATE delivery_waiting SET due_at = $4 WHERE webhook = $1 AND line = $2 AND number = $3";
                tx.run(sql, [place, vec![(*at).into()]].concat()).await?;
            }
            Outcome::Delivered | Outcome::Dead { .. } => {
                let sql = "DELETE FROM delivery_waiting WHERE webhook = $1 AND line = $2 AND number = $3";
                tx.run(sql, place).await?;
            }
        }
        tx.commit().await?;
        Ok(Written::Done)
    }

    /// Sends what was given up once more. Says how many there are.
    pub(crate) async fn requeue_dead(&self, mesh: &str, name: &str) -> Result<Option<i64>, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "SELECT webhook, line FROM webhook WHERE mesh_id = $1 AND name = $2 AND deleted_at IS NULL /*LOCK*/";
        let rows = tx.run(sql, vec![mesh.into(), name.into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let webhook = row.int(0)?;
        let count = requeue(&mut tx, webhook, row.int(1)?, now).await?;
        self.note(&mut tx, ("requeue-webhook", mesh, name, &format!("deliveries {count}"))).await?;
        tx.commit().await?;
        Ok(Some(count))
    }

    /// Deliveries that wait, and since when the oldest does.
    pub(crate) async fn waiting(&self) -> Result<(i64, Option<i64>), StoreError> {
        let count = first_int(&self.read("SELECT count(*) FROM delivery_waiting", vec![]).await?)?;
        let sql = "SELECT q.created_at FROM delivery_waiting d JOIN delivery_queue q ON q.line = d.line \
            AND q.number = d.number AND q.webhook = d.webhook ORDER BY q.created_at LIMIT 1";
        let oldest = self.read(sql, vec![]).await?;
        Ok((count, oldest.first().map(|row| row.int(0)).transpose()?))
    }
}

/// Of the topic that the webhook has now; its age counts anew, so that it is tried as often as at first.
async fn requeue(tx: &mut Tx, webhook: i64, line: i64, now: i64) -> Result<i64, StoreError> {
    let sql = format!(
        "INSERT INTO delivery_waiting (webhook, line, number, due_at) SELECT q.webhook, q.line, q.number, CAST($2 AS bigint) \
         FROM delivery_queue q WHERE q.webhook = $1 AND q.line = $3 AND q.status = 'dead' AND \
         (EXISTS (SELECT 1 FROM {} m WHERE m.id = q.broker_message_id)) \
         ON CONFLICT (webhook, line, number) DO NOTHING RETURNING number",
        bodies_of("topic")
    );
    let count = tx.run(&sql, vec![webhook.into(), now.into(), line.into()]).await?.len();
    let sql = "UPDATE delivery_queue SET status = 'pending', attempts = 0, created_at = $2 WHERE webhook = $1 AND status = 'dead' \
        AND EXISTS (SELECT 1 FROM delivery_waiting d WHERE d.webhook = delivery_queue.webhook \
        AND d.line = delivery_queue.line AND d.number = delivery_queue.number)";
    tx.run(sql, vec![webhook.into(), now.into()]).await?;
    Ok(count as i64)
}
