//! Removes what is older than its retention, in small batches: an id goes together with its message, in one transaction, so
//! that no moment shows one without the other. Nothing goes while the clock is not believed.

use std::collections::{BTreeMap, BTreeSet};

use semel_delivery::relay::store::sql::{Row, StoreError};

use super::{Store, Tx, first_int, time};
use crate::limits::SWEEP_BATCH;

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Ids.
    pub ids: u64,
    /// Messages.
    pub messages: u64,
    /// Subscribers who had not acknowledged what was removed.
    pub unacknowledged: u64,
}

/// One id that has expired.
struct Expired {
    mesh: String,
    id: String,
    broker_message_id: String,
    is_message: bool,
    line: i64,
    number: i64,
}

impl Store {
    /// Removes what has expired. Where the clock is ahead and nobody believes it, nothing has.
    ///
    /// Crash: a batch is gone or there, whole.
    pub(crate) async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut total = Swept::default();
        // Whether the clock is believed is heard with the time.
        if self.clock().await?.1 != 0 {
            return Ok(total);
        }
        loop {
            let (batch, looked) = self.sweep_batch().await?;
            total.ids += batch.ids;
            total.messages += batch.messages;
            total.unacknowledged += batch.unacknowledged;
            if looked < SWEEP_BATCH {
                break;
            }
        }
        while self.sweep_sealed().await? == SWEEP_BATCH {}
        Ok(total)
    }

    /// One batch of what a sweep of the release before has left, which knows nothing of the list of cancelled ids.
    async fn sweep_sealed(&self) -> Result<usize, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "SELECT x.mesh_id, x.client_message_id FROM sealed_id x WHERE x.expires_at <= $1 AND NOT EXISTS \
            (SELECT 1 FROM client_message_dedupe d WHERE d.mesh_id = x.mesh_id AND d.client_message_id = x.client_message_id \
            AND d.kind = 'sealed') ORDER BY x.expires_at, x.mesh_id, x.client_message_id LIMIT $2";
        let left = tx.run(sql, vec![now.into(), (SWEEP_BATCH as i64).into()]).await?;
        for row in &left {
            let sql =
                "DELETE FROM sealed_id WHERE mesh_id = $1 AND client_message_id = $2 AND expires_at <= $3";
            tx.run(sql, vec![row.text(0)?.into(), row.text(1)?.into(), now.into()]).await?;
        }
        if !left.is_empty() {
            tx.commit().await?;
        }
        Ok(left.len())
    }

    /// One batch, and at how many ids it looked.
    async fn sweep_batch(&self) -> Result<(Swept, usize), StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let expired = expired(&mut tx, now).await?;
        let mut swept = Swept::default();
        // Lines in their order, before anything else is touched, as publishing does.
        let lines: BTreeSet<i64> = expired.iter().filter(|one| one.is_message).map(|one| one.line).collect();
        lock_lines(&mut tx, lines.into_iter()).await?;
        let mut freed: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for one in &expired {
            match remove(&mut tx, one, now).await? {
                Removed::Nothing => {}
                Removed::Id => swept.ids += 1,
                Removed::Message { bytes } => {
                    swept.ids += 1;
                    swept.messages += 1;
                    let of_line = freed.entry(one.line).or_default();
                    *of_line = (of_line.0.max(one.number), of_line.1 + bytes);
                }
            }
        }
        for (line, (last, bytes)) in freed {
            let sql = "UPDATE line SET bytes = bytes - $2 WHERE line = $1";
            tx.run(sql, vec![line.into(), bytes.into()]).await?;
            swept.unacknowledged += unacknowledged(&mut tx, line, last).await?;
        }
        if !expired.is_empty() {
            tx.commit().await?;
        }
        Ok((swept, expired.len()))
    }
}

/// Ids whose time is over, the first of them.
async fn expired(tx: &mut Tx, now: i64) -> Result<Vec<Expired>, StoreError> {
    let sql = "SELECT mesh_id, client_message_id, broker_message_id, kind, line, number FROM client_message_dedupe \
        WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2";
    let rows = tx.run(sql, vec![now.into(), (SWEEP_BATCH as i64).into()]).await?;
    let expired = |row: &Row| {
        Ok(Expired {
            mesh: row.text(0)?,
            id: row.text(1)?,
            broker_message_id: row.text(2)?,
            is_message: row.text(3)? == "committed",
            line: row.int(4)?,
            number: row.int(5)?,
        })
    };
    rows.iter().map(expired).collect()
}

/// Locks lines in the order of their names, which is everybody's order.
async fn lock_lines(tx: &mut Tx, lines: impl Iterator<Item = i64>) -> Result<(), StoreError> {
    let mut named = Vec::new();
    for line in lines {
        let sql = "SELECT mesh_id, kind, ref FROM line WHERE line = $1";
        if let Some(row) = tx.run(sql, vec![line.into()]).await?.first() {
            named.push(((row.text(0)?, row.text(1)?, row.text(2)?), line));
        }
    }
    named.sort();
    for (_, line) in named {
        tx.run("SELECT line FROM line WHERE line = $1 /*LOCK*/", vec![line.into()]).await?;
    }
    Ok(())
}

/// What was removed with an id.
enum Removed {
    /// Another sweep was there first. The id may have a new message since.
    Nothing,
    /// A cancelled id.
    Id,
    /// A message.
    Message {
        /// Of its body.
        bytes: i64,
    },
}

/// Removes one id that has expired, and all that hangs on it. An id that was swept and used again since is another one.
async fn remove(tx: &mut Tx, one: &Expired, now: i64) -> Result<Removed, StoreError> {
    let sql = "DELETE FROM client_message_dedupe WHERE mesh_id = $1 AND client_message_id = $2 AND expires_at <= $3 \
        AND broker_message_id = $4 RETURNING line";
    let args = vec![(&one.mesh).into(), (&one.id).into(), now.into(), (&one.broker_message_id).into()];
    if tx.run(sql, args).await?.is_empty() {
        return Ok(Removed::Nothing);
    }
    if !one.is_message {
        let sql = "DELETE FROM sealed_id WHERE mesh_id = $1 AND client_message_id = $2";
        tx.run(sql, vec![(&one.mesh).into(), (&one.id).into()]).await?;
        return Ok(Removed::Id);
    }
    let mut bytes = 0;
    for table in ["topic_message", "message_queue"] {
        let sql = format!("DELETE FROM {table} WHERE id = $1 RETURNING length(body)");
        if let Some(row) = tx.run(&sql, vec![(&one.broker_message_id).into()]).await?.first() {
            bytes += row.int(0)?;
        }
    }
    for table in ["message_history", "search_word", "audit_log"] {
        let sql = format!("DELETE FROM {table} WHERE line = $1 AND number = $2");
        tx.run(&sql, vec![one.line.into(), one.number.into()]).await?;
    }
    let sql = "DELETE FROM delivery_queue WHERE line = $1 AND number = $2 RETURNING webhook";
    for row in tx.run(sql, vec![one.line.into(), one.number.into()]).await? {
        // Also of a webhook that leads to another topic by now.
        let sql = "DELETE FROM delivery_waiting WHERE webhook = $1 AND line = $2 AND number = $3";
        tx.run(sql, vec![row.int(0)?.into(), one.line.into(), one.number.into()]).await?;
    }
    tx.run("DELETE FROM mention_index WHERE broker_message_id = $1", vec![(&one.broker_message_id).into()])
        .await?;
    Ok(Removed::Message { bytes })
}

/// Subscribers of a message who have not acknowledged it.
async fn unacknowledged(tx: &mut Tx, line: i64, number: i64) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM topic_subscription s WHERE s.line = $1 AND s.since <= $2 \
        AND (s.until IS NULL OR s.until > $2) AND NOT EXISTS (SELECT 1 FROM ack_cursor c WHERE c.line = s.line \
        AND c.member = s.member AND c.acked >= $2)";
    let count = first_int(&tx.run(sql, vec![line.into(), number.into()]).await?)?;
    Ok(u64::try_from(count).unwrap_or(0))
}
