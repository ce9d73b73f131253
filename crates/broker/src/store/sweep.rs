//! Removes what is older than its retention, in small batches: an id goes together with its message, in one transaction, so
//! that no moment shows one without the other. Nothing goes while the clock is not believed.

use std::collections::BTreeMap;

use semel_delivery::relay::store::sql::StoreError;

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
        if self.db.clock_ahead() != 0 {
            return Ok(total);
        }
        loop {
            let batch = self.sweep_batch().await?;
            total.ids += batch.ids;
            total.messages += batch.messages;
            total.unacknowledged += batch.unacknowledged;
            if batch.ids < SWEEP_BATCH as u64 {
                return Ok(total);
            }
        }
    }

    async fn sweep_batch(&self) -> Result<Swept, StoreError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "SELECT mesh_id, client_message_id, broker_message_id, kind, line, number FROM client_message_dedupe \
            WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2";
        let mut expired = Vec::new();
        for row in tx.run(sql, vec![now.into(), (SWEEP_BATCH as i64).into()]).await? {
            expired.push(Expired {
                mesh: row.text(0)?,
                id: row.text(1)?,
                broker_message_id: row.text(2)?,
                is_message: row.text(3)? == "committed",
                line: row.int(4)?,
                number: row.int(5)?,
            });
        }
        if expired.is_empty() {
            return Ok(Swept::default());
        }
        let mut swept = Swept { ids: expired.len() as u64, ..Swept::default() };
        // Lines in their order, before anything else is touched, as publishing does.
        let mut freed: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for one in expired.iter().filter(|one| one.is_message) {
            let last = freed.entry(one.line).or_default();
            last.0 = last.0.max(one.number);
        }
        lock_lines(&mut tx, freed.keys().copied()).await?;
        for one in &expired {
            let bytes = remove(&mut tx, one).await?;
            if let Some(bytes) = bytes {
                swept.messages += 1;
                freed.entry(one.line).or_default().1 += bytes;
            }
        }
        for (line, (last, bytes)) in freed {
            let sql = "UPDATE line SET bytes = bytes - $2 WHERE line = $1";
            tx.run(sql, vec![line.into(), bytes.into()]).await?;
            swept.unacknowledged += unacknowledged(&mut tx, line, last).await?;
        }
        tx.commit().await?;
        Ok(swept)
    }
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

/// Removes one id and all that hangs on it. Says how many bytes its message had.
async fn remove(tx: &mut Tx, one: &Expired) -> Result<Option<i64>, StoreError> {
    let sql = "DELETE FROM client_message_dedupe WHERE mesh_id = $1 AND client_message_id = $2";
    tx.run(sql, vec![(&one.mesh).into(), (&one.id).into()]).await?;
    if !one.is_message {
        return Ok(None);
    }
    let mut bytes = 0;
    for table in ["topic_message", "message_queue"] {
        let sql = format!("DELETE FROM {table} WHERE id = $1 RETURNING length(body)");
        if let Some(row) = tx.run(&sql, vec![(&one.broker_message_id).into()]).await?.first() {
            bytes += row.int(0)?;
        }
    }
    for table in ["message_history", "search_word", "audit_log", "delivery_queue"] {
        let sql = format!("DELETE FROM {table} WHERE line = $1 AND number = $2");
        tx.run(&sql, vec![one.line.into(), one.number.into()]).await?;
    }
    let sql = "DELETE FROM delivery_waiting WHERE webhook IN (SELECT webhook FROM webhook WHERE line = $1) \
        AND line = $1 AND number = $2";
    tx.run(sql, vec![one.line.into(), one.number.into()]).await?;
    tx.run("DELETE FROM mention_index WHERE broker_message_id = $1", vec![(&one.broker_message_id).into()])
        .await?;
    Ok(Some(bytes))
}

/// Subscribers of a message who have not acknowledged it.
async fn unacknowledged(tx: &mut Tx, line: i64, number: i64) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM topic_subscription s WHERE s.line = $1 AND s.since <= $2 \
        AND (s.until IS NULL OR s.until > $2) AND NOT EXISTS (SELECT 1 FROM ack_cursor c WHERE c.line = s.line \
        AND c.member = s.member AND c.acked >= $2)";
    let count = first_int(&tx.run(sql, vec![line.into(), number.into()]).await?)?;
    Ok(u64::try_from(count).unwrap_or(0))
}
