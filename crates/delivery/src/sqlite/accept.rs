//! Looks an id up and inserts what is new.

use rusqlite::{Connection, OptionalExtension};
use semel_contract::planted::{self, Bug};
use semel_contract::time::Timestamp;

use super::turn::{Fault, Turn};
use super::{events, row};
use crate::envelope::Draft;
use crate::message::Row;
use crate::store::{Arrived, Room, StoreError};

/// Accepts an arrival.
pub(super) fn accept(
    connection: &Connection,
    turn: &mut Turn,
    draft: &Draft,
    now: Timestamp,
    epoch: i64,
    room: Room,
) -> Result<Arrived, Fault> {
    let id = &draft.client_message_id;
    if let Some(row) = row::by_id(connection, id)? {
        let fingerprint = row.fingerprint;
        return Ok(Arrived::Known { row, fingerprint, is_alias: false });
    }
    if let Some((row_id, fingerprint)) = row::alias(connection, id)? {
        let row = row::by_number(connection, row_id)?;
        let row = row.ok_or_else(|| Fault::Sqlite(format!("the alias {id:?} leads nowhere")))?;
        return Ok(Arrived::Known { row, fingerprint, is_alias: true });
    }
    if let Some(row) = same_action(connection, draft)? {
        if draft.is_callers && !planted::is(Bug::OutboxAliasForgotten) {
            let sql =
                "INSERT INTO outbox_aliases (client_message_id, request_fingerprint, row_id, created_at)
                VALUES (?1, ?2, ?3, ?4)";
            connection.prepare_cached(sql)?.execute((id, draft.fingerprint, row.id, now.millis()))?;
        }
        return Ok(Arrived::SameAction(row));
    }
    let bytes = draft.request.body.len() as u64;
    let full = |why: String| Fault::Refused(StoreError::QueueFull(why));
    if turn.rows >= room.rows {
        return Err(full(format!("{} messages wait", turn.rows)));
    }
    if turn.bytes.saturating_add(bytes) > room.bytes {
        return Err(full(format!("{} bytes wait", turn.bytes)));
    }
    let number = insert(connection, turn, draft, now, epoch, None)?;
    let row = row::by_number(connection, number)?;
    Ok(Arrived::New(row.ok_or_else(|| Fault::Sqlite("the new row is not there".to_owned()))?))
}

fn same_action(connection: &Connection, draft: &Draft) -> rusqlite::Result<Option<Row>> {
    let Some(logical_key) = &draft.logical_key else { return Ok(None) };
    let sql = "SELECT id FROM outbox WHERE principal = ?1 AND logical_key = ?2
        AND status IN ('pending', 'inflight', 'held')";
    let found: Option<i64> = connection
        .prepare_cached(sql)?
        .query_row((&draft.principal, logical_key), |columns| columns.get(0))
        .optional()?;
    found.map_or(Ok(None), |id| row::by_number(connection, id))
}

/// Inserts a row at the end of its lane.
pub(super) fn insert(
    connection: &Connection,
    turn: &mut Turn,
    draft: &Draft,
    now: Timestamp,
    epoch: i64,
    supersedes: Option<i64>,
) -> rusqlite::Result<i64> {
    let sql = "INSERT INTO outbox (client_message_id, client_tx_id, request_fingerprint, principal, lane, logical_key,
            profile, method, url, headers, payload, payload_bytes, client_generated_at, enqueued_at, epoch,
            next_attempt_at, status, supersedes)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?14, 'pending', ?16)";
    let request = &draft.request;
    connection.prepare_cached(sql)?.execute(rusqlite::params![
        draft.client_message_id,
        draft.client_tx_id,
        draft.fingerprint,
        draft.principal,
        draft.lane,
        draft.logical_key,
        draft.profile,
        request.method,
        request.url,
        row::text(&request.headers),
        request.body,
        request.body.len(),
        draft.client_generated_at.millis(),
        now.millis(),
        epoch,
        supersedes,
    ])?;
    let number = connection.last_insert_rowid();
    turn.rows += 1;
    turn.bytes += request.body.len() as u64;
    events::about(connection, turn, "queued", (number, &draft.client_message_id, &draft.lane), None, now)?;
    Ok(number)
}
