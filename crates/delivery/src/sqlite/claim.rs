//! Takes the head of a lane, or says why not; and takes over from the run before.

use std::borrow::Cow;

use rusqlite::{Connection, OptionalExtension};
use semel_contract::planted::{self, Bug};
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

use super::turn::{Fault, Turn};
use super::{events, row};
use crate::envelope::parts_of_id;
use crate::expiry::EXPIRY;
use crate::message::Status;
use crate::store::{Head, Recovered, Terms};

/// Rows that were too old and that no notice tells of since. A notice without any, which the upgrade of a file that knew none has
/// written, speaks of all before it.
const EXPIRED_UNTOLD: &str = "
    WITH notice AS (
        SELECT number, CASE WHEN json_valid(detail) THEN detail END AS detail FROM outbox_events WHERE kind = ?1
    ), told AS (
        SELECT json_extract(message.value, '$[0]') AS row_id, max(notice.number) AS number
        FROM notice, json_each(notice.detail) AS message GROUP BY 1
    )
    SELECT DISTINCT event.row_id FROM outbox_events AS event LEFT JOIN told ON told.row_id = event.row_id
    WHERE event.kind = 'expired' AND event.number > coalesce(told.number, 0)
        AND event.number > coalesce((SELECT max(number) FROM notice WHERE detail = '[]'), 0)
    ORDER BY event.row_id";

/// Takes the head of a lane.
pub(super) fn claim(
    connection: &Connection,
    turn: &mut Turn,
    lane: &str,
    terms: Terms,
) -> Result<Head, Fault> {
    let sql = concat!(
        "SELECT id, status, next_attempt_at FROM outbox INDEXED BY outbox_live WHERE lane = ?1 AND ",
        live!(),
        " ORDER BY id LIMIT 1"
    );
    let read = |columns: &rusqlite::Row<'_>| {
        Ok((
            columns.get::<_, i64>(0)?,
            row::status(&columns.get::<_, String>(1)?),
            Timestamp::from_millis(columns.get(2)?),
        ))
    };
    let sql = match planted::is(Bug::OutboxOrderBroken) {
        true => Cow::Owned(sql.replace("ORDER BY id", "ORDER BY next_attempt_at, id")),
        false => Cow::Borrowed(sql),
    };
    let head = connection.prepare_cached(&sql)?.query_row([lane], read).optional()?;
    let Some((id, status, next_attempt_at)) = head else { return Ok(Head::Empty) };
    if status != Status::Pending || is_stopped(connection, lane)? {
        return Ok(Head::Stuck);
    }
    if next_attempt_at > terms.now {
        return Ok(Head::Wait(next_attempt_at));
    }
    take(connection, turn, id, terms)?;
    // The time of the first attempt is on disk before its first byte.
    let sql = "UPDATE outbox SET attempts = attempts + 1, first_attempt_at = coalesce(first_attempt_at, ?2) WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((id, terms.now.millis()))?;
    let sql = "INSERT INTO outbox_attempts (row_id, number, started_at) SELECT id, attempts, ?2 FROM outbox WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((id, terms.now.millis()))?;
    let missing = || Fault::Sqlite(format!("row {id} or its payload is not there"));
    let row = row::by_number(connection, id)?.ok_or_else(missing)?;
    let request = row::request(connection, id)?.ok_or_else(missing)?;
    Ok(Head::Claimed(Box::new(row), request))
}

fn take(connection: &Connection, turn: &mut Turn, id: i64, terms: Terms) -> rusqlite::Result<Fence> {
    let number = turn.next_fence(connection)?;
    let sql = "UPDATE outbox SET status = 'inflight', fence_number = ?2, fence_nonce = ?3, lease_until = ?4 WHERE id = ?1";
    let nonce = terms.nonce.cast_signed();
    connection.prepare_cached(sql)?.execute((id, number, nonce, terms.lease_until.millis()))?;
    Ok(Fence { number: number.cast_unsigned(), nonce: terms.nonce })
}

fn is_stopped(connection: &Connection, lane: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM outbox_lanes WHERE lane = ?1 AND (paused = 1 OR blocked_by IS NOT NULL)";
    connection.prepare_cached(sql)?.exists([lane])
}

/// Takes a row that waits out of the engine's hands.
pub(super) fn set_aside(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    terms: Terms,
) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM outbox WHERE id = ?1 AND status = 'pending'";
    if !connection.prepare_cached(sql)?.exists([id])? {
        return Ok(false);
    }
    take(connection, turn, id, terms)?;
    Ok(true)
}

/// Gives such a row back.
pub(super) fn put_back(connection: &Connection, id: i64, fence: Fence) -> Result<bool, Fault> {
    let sql =
        "UPDATE outbox SET status = 'pending', fence_number = NULL, fence_nonce = NULL, lease_until = NULL
        WHERE id = ?1 AND status = 'inflight' AND fence_number = ?2 AND fence_nonce = ?3";
    let changed = connection.prepare_cached(sql)?.execute((
        id,
        fence.number.cast_signed(),
        fence.nonce.cast_signed(),
    ))?;
    Ok(changed == 1)
}

/// Ends claims whose lease is over.
pub(super) fn end_leases(connection: &Connection, now: Timestamp) -> Result<Vec<String>, Fault> {
    let sql = "UPDATE outbox SET status = 'pending', ambiguous = 1, fence_number = NULL, fence_nonce = NULL,
        lease_until = NULL WHERE status = 'inflight' AND lease_until < ?1 RETURNING lane";
    let mut statement = connection.prepare_cached(sql)?;
    let lanes =
        statement.query_map([now.millis()], |columns| columns.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(lanes)
}

/// Takes over from the run before.
pub(super) fn recover(connection: &Connection, turn: &mut Turn, now: Timestamp) -> Result<Recovered, Fault> {
    let sql = "SELECT id, client_message_id, lane FROM outbox WHERE status = 'inflight'";
    let interrupted: Vec<(i64, String, String)> = connection
        .prepare(sql)?
        .query_map([], |columns| Ok((columns.get(0)?, columns.get(1)?, columns.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, client_message_id, lane) in &interrupted {
        let detail = Some("the process ended during an attempt; the same key is sent again");
        let (key, _) = parts_of_id(client_message_id.clone());
        events::about(connection, turn, "interrupted", (*id, &key, lane), detail, now)?;
    }
    // An attempt that was begun may have arrived. One try with the credentials of this run shows whether they are good.
    let interrupted_is_known = planted::is(Bug::OutboxInterruptionForgotten);
    connection.execute(
        "UPDATE outbox SET status = 'pending', ambiguous = max(ambiguous, NOT ?1 AND EXISTS (SELECT 1 FROM outbox_attempts a
             WHERE a.row_id = outbox.id AND a.number = outbox.attempts AND a.ended_at IS NULL)),
             fence_number = NULL, fence_nonce = NULL, lease_until = NULL WHERE status = 'inflight'",
        [interrupted_is_known],
    )?;
    connection.execute(
        "UPDATE outbox SET status = 'pending', held_for = NULL WHERE status = 'held' AND held_for = 'auth'",
        [],
    )?;
    connection.execute("DELETE FROM outbox_holds", [])?;
    connection.execute("INSERT INTO outbox_epochs (started_at) VALUES (?1)", [now.millis()])?;
    let epoch = connection.last_insert_rowid();
    let epochs = connection
        .prepare("SELECT epoch, ahead FROM outbox_epochs")?
        .query_map([], |columns| Ok((columns.get(0)?, columns.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let retentions = connection
        .prepare("SELECT origin, retention FROM outbox_origins")?
        .query_map([], |columns| Ok((columns.get(0)?, columns.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let signed_out = connection
        .prepare("SELECT principal FROM outbox_signed_out")?
        .query_map([], |columns| columns.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let expired_untold = connection
        .prepare(EXPIRED_UNTOLD)?
        .query_map([EXPIRY], |columns| columns.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let interrupted = interrupted.len() as u64;
    Ok(Recovered { epoch, interrupted, epochs, retentions, signed_out, expired_untold })
}
