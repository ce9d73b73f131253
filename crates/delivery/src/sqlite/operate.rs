//! What operators do, and what time does: abort, requeue, pause, release, purge.

use rusqlite::Connection;
use semel_contract::time::Timestamp;

use super::turn::{Fault, Turn};
use super::{accept, events, row};
use crate::limits::EVENTS_KEPT_MAX;
use crate::message::{Row, Status};
use crate::store::{Judged, Replaced, Successor};

/// Bodies that one purge forgets at most.
const PURGE_ROWS_MAX: u32 = 5000;

/// Takes a row back.
pub(super) fn abort(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    by: &str,
    why: &str,
    now: Timestamp,
) -> Result<Option<Row>, Fault> {
    let Some(row) = row::by_number(connection, id)? else { return Ok(None) };
    match row.status {
        Status::Pending | Status::Held | Status::Dead => {}
        Status::Inflight | Status::Done | Status::Aborted => return Ok(None),
    }
    set_aborted(connection, turn, &row, by, Some(why), now)?;
    events::about(connection, turn, "aborted", events::of(&row), Some(why), now)?;
    Ok(row::by_number(connection, id)?)
}

fn set_aborted(
    connection: &Connection,
    turn: &mut Turn,
    row: &Row,
    by: &str,
    why: Option<&str>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "UPDATE outbox SET status = 'aborted', aborted_at = ?2, aborted_by = ?3, held_for = NULL,
        fence_number = NULL, fence_nonce = NULL, lease_until = NULL, last_error = coalesce(last_error, ?4) WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((row.id, now.millis(), by, why))?;
    if row.status.is_live() {
        turn.leave(row.payload_bytes);
    }
    connection
        .prepare_cached("UPDATE outbox_lanes SET blocked_by = NULL WHERE blocked_by = ?1")?
        .execute([row.id])?;
    Ok(())
}

/// Puts a new row in the place of an old one.
pub(super) fn replace(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    successor: &Successor,
    now: Timestamp,
    epoch: i64,
) -> Result<Replaced, Fault> {
    let Some(old) = row::by_number(connection, id)? else { return Ok(Replaced::Stale) };
    let may_be_replaced = match old.status {
        Status::Held | Status::Dead => successor.fence.is_none(),
        Status::Inflight => old.fence == successor.fence && successor.fence.is_some(),
        Status::Pending => old.attempts == 0 && successor.fence.is_none(),
        Status::Done | Status::Aborted => false,
    };
    if !may_be_replaced || Judged::of(&old) != successor.judged {
        return Ok(Replaced::Stale);
    }
    let new_id = &successor.draft.client_message_id;
    if row::by_id(connection, new_id)?.is_some() || row::alias(connection, new_id)?.is_some() {
        return Ok(Replaced::IdTaken);
    }
    set_aborted(connection, turn, &old, successor.by, Some("requeued"), now)?;
    let number = accept::insert(connection, turn, &successor.draft, now, epoch, Some(id))?;
    let sql = "UPDATE outbox SET superseded_by = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((id, number))?;
    // Both say it: the old one may have arrived, and with it what the new one sends.
    let sql = "UPDATE outbox SET ambiguous = ?3 WHERE id IN (?1, ?2)";
    connection.prepare_cached(sql)?.execute((id, number, successor.possibly_delivered))?;
    events::about(connection, turn, "requeued", events::of(&old), Some(new_id), now)?;
    let read = |id| -> Result<Box<Row>, Fault> {
        let row = row::by_number(connection, id)?;
        row.map(Box::new).ok_or_else(|| Fault::Sqlite(format!("row {id} is gone")))
    };
    Ok(Replaced::Done(read(id)?, read(number)?))
}

/// Pauses a lane, or lets it go on.
pub(super) fn set_paused(
    connection: &Connection,
    turn: &mut Turn,
    lane: &str,
    is_paused: bool,
    now: Timestamp,
) -> Result<(), Fault> {
    if is_paused {
        let sql = "INSERT INTO outbox_lanes (lane, paused) VALUES (?1, 1) ON CONFLICT (lane) DO UPDATE SET paused = 1";
        connection.prepare_cached(sql)?.execute([lane])?;
    } else {
        connection.prepare_cached("DELETE FROM outbox_lanes WHERE lane = ?1")?.execute([lane])?;
        let sql = "UPDATE outbox SET status = 'pending', held_for = NULL, next_attempt_at = ?2
            WHERE lane = ?1 AND status = 'held' AND held_for = 'rebuild'";
        connection.prepare_cached(sql)?.execute((lane, now.millis()))?;
    }
    let kind = if is_paused { "paused" } else { "resumed" };
    events::general(connection, turn, kind, Some(lane), None, now)?;
    Ok(())
}

/// A fresh credential of a principal.
pub(super) fn release(
    connection: &Connection,
    turn: &mut Turn,
    principal: &str,
    now: Timestamp,
) -> Result<Vec<String>, Fault> {
    let held =
        connection.prepare_cached("DELETE FROM outbox_holds WHERE principal = ?1")?.execute([principal])?;
    let sql = "UPDATE outbox SET status = 'pending', held_for = NULL, next_attempt_at = ?2
        WHERE status = 'held' AND held_for = 'auth' AND principal = ?1";
    connection.prepare_cached(sql)?.execute((principal, now.millis()))?;
    if held > 0 {
        events::general(connection, turn, "released", None, Some(principal), now)?;
    }
    let sql =
        concat!("SELECT DISTINCT lane FROM outbox INDEXED BY outbox_live WHERE principal = ?1 AND ", live!());
    let mut statement = connection.prepare_cached(sql)?;
    let lanes =
        statement.query_map([principal], |columns| columns.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(lanes)
}

/// What a server's answer taught.
pub(super) fn learn(
    connection: &Connection,
    epoch: i64,
    ahead: Option<i64>,
    retention: Option<&(String, u64)>,
    now: Timestamp,
) -> Result<(), Fault> {
    if let Some(ahead) = ahead {
        connection
            .prepare_cached("UPDATE outbox_epochs SET ahead = ?2 WHERE epoch = ?1")?
            .execute((epoch, ahead))?;
    }
    if let Some((origin, seconds)) = retention {
        let sql = "INSERT INTO outbox_origins (origin, retention, seen_at) VALUES (?1, ?2, ?3)
            ON CONFLICT (origin) DO UPDATE SET retention = excluded.retention, seen_at = excluded.seen_at";
        connection.prepare_cached(sql)?.execute((origin, seconds.cast_signed(), now.millis()))?;
    }
    Ok(())
}

/// Forgets what is no longer needed. Ids and fingerprints stay.
pub(super) fn purge(connection: &Connection, turn: &Turn, before: Timestamp) -> Result<u64, Fault> {
    let sql = "UPDATE outbox SET payload = NULL, response_body = NULL WHERE id IN (
        SELECT id FROM outbox INDEXED BY outbox_purge WHERE payload IS NOT NULL AND status IN ('done', 'aborted')
            AND coalesce(delivered_at, aborted_at) < ?1 ORDER BY coalesce(delivered_at, aborted_at) LIMIT ?2)
        RETURNING id";
    let mut statement = connection.prepare_cached(sql)?;
    let gone: Vec<i64> = statement
        .query_map((before.millis(), PURGE_ROWS_MAX), |columns| columns.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut forget = connection.prepare_cached("DELETE FROM outbox_attempts WHERE row_id = ?1")?;
    for id in &gone {
        forget.execute([id])?;
    }
    connection
        .prepare_cached("DELETE FROM outbox_events WHERE number <= ?1")?
        .execute([turn.last_event - EVENTS_KEPT_MAX])?;
    Ok(gone.len() as u64)
}
