//! What others sent: kept once for each sender and id.

use rusqlite::Connection;
use semel_contract::time::Timestamp;

use super::turn::Fault;
use crate::message::Received;

/// Keeps a message.
pub(super) fn receive(connection: &Connection, message: &Received, now: Timestamp) -> Result<bool, Fault> {
    let Received { sender, message_id, supersedes, payload, .. } = message;
    let known = "SELECT 1 FROM outbox_inbox WHERE sender = ?1 AND message_id = ?2";
    if connection.prepare_cached(known)?.exists((sender, message_id))? {
        return Ok(false);
    }
    // Of a message and the one that takes its place, the first to arrive counts.
    let twin = "SELECT 1 FROM outbox_inbox WHERE sender = ?1 AND (supersedes = ?2 OR message_id = ?3)";
    let is_new = !connection.prepare_cached(twin)?.exists((sender, message_id, supersedes))?;
    let sql = "INSERT INTO outbox_inbox (sender, message_id, supersedes, received_at, acked_at, payload)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let (acked_at, payload) = if is_new { (None, Some(payload)) } else { (Some(now.millis()), None) };
    connection.prepare_cached(sql)?.execute((
        sender,
        message_id,
        supersedes,
        now.millis(),
        acked_at,
        payload,
    ))?;
    Ok(is_new)
}

/// Lists what nobody acknowledged.
pub(super) fn received(connection: &Connection, after: i64, limit: u32) -> rusqlite::Result<Vec<Received>> {
    let sql = "SELECT number, sender, message_id, supersedes, received_at, payload FROM outbox_inbox
        WHERE number > ?1 AND acked_at IS NULL ORDER BY number LIMIT ?2";
    let read = |columns: &rusqlite::Row<'_>| {
        Ok(Received {
            number: columns.get(0)?,
            sender: columns.get(1)?,
            message_id: columns.get(2)?,
            supersedes: columns.get(3)?,
            received_at: Timestamp::from_millis(columns.get(4)?),
            payload: columns.get::<_, Option<Vec<u8>>>(5)?.unwrap_or_default(),
        })
    };
    connection.prepare_cached(sql)?.query_map((after, limit), read)?.collect()
}

/// Acknowledges a message.
pub(super) fn acknowledge(
    connection: &Connection,
    sender: &str,
    message_id: &str,
    now: Timestamp,
) -> Result<bool, Fault> {
    let sql = "UPDATE outbox_inbox SET acked_at = ?3, payload = NULL
        WHERE sender = ?1 AND message_id = ?2 AND acked_at IS NULL";
    Ok(connection.prepare_cached(sql)?.execute((sender, message_id, now.millis()))? == 1)
}
