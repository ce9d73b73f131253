//! What operators do, and what time does: abort, requeue, pause, release, purge.

use rusqlite::Connection;
use semel_contract::time::Timestamp;

use super::turn::{Fault, Turn};
use super::{accept, events, row};
use crate::envelope::Draft;
use crate::limits::EVENTS_KEPT_MAX;
use crate::message::{HeldFor, Row, Status};
use crate::store::{Judged, LanePlan, LaneRebuilt, Replaced, Successor};

/// Bodies that one purge forgets at most.
const PURGE_ROWS_MAX: u32 = 5000;
/// Why a rebuild takes a message back.
const DROPPED_BY_REBUILD: &str = "dropped by a rebuild";

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
    let new_id = &*successor.draft.stored_id();
    if row::by_id(connection, new_id)?.is_some() || row::alias(connection, new_id)?.is_some() {
        return Ok(Replaced::IdTaken);
    }
    let Successor { draft, possibly_delivered, by, .. } = successor;
    let number = supersede(connection, turn, &old, (draft, *possibly_delivered, by), now, epoch)?;
    let read = |id| -> Result<Box<Row>, Fault> {
        let row = row::by_number(connection, id)?;
        row.map(Box::new).ok_or_else(|| Fault::Sqlite(format!("row {id} is gone")))
    };
    Ok(Replaced::Done(read(id)?, read(number)?))
}

/// Puts a new row behind an old one, which is aborted.
fn supersede(
    connection: &Connection,
    turn: &mut Turn,
    old: &Row,
    (draft, possibly_delivered, by): (&Draft, bool, &str),
    now: Timestamp,
    epoch: i64,
) -> Result<i64, Fault> {
    set_aborted(connection, turn, old, by, Some("requeued"), now)?;
    let number = accept::insert(connection, turn, draft, now, epoch, Some(old.id))?;
    let sql = "UPDATE outbox SET superseded_by = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((old.id, number))?;
    // Both say it: the old one may have arrived, and with it what the new one sends. Or one before it may have, of whose key
    // nothing was found out by this.
    let sql = "UPDATE outbox SET ambiguous = max(?3,
            coalesce((SELECT s.ambiguous FROM outbox o JOIN outbox s ON s.id = o.supersedes WHERE o.id = ?1), 0))
        WHERE id IN (?1, ?2)";
    connection.prepare_cached(sql)?.execute((old.id, number, possibly_delivered))?;
    events::about(connection, turn, "requeued", events::of(old), Some(&draft.client_message_id), now)?;
    Ok(number)
}

/// Carries out what an application makes of a lane.
pub(super) fn rebuild(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    plan: &LanePlan,
    now: Timestamp,
    epoch: i64,
) -> Result<LaneRebuilt, Fault> {
    let held = row::by_number(connection, id)?
        .filter(|row| row.held_for == Some(HeldFor::Rebuild) && Judged::of(row) == plan.judged);
    let Some(held) = held else { return Ok(LaneRebuilt::Stale) };
    for (at, draft) in plan.with.iter().enumerate() {
        let new_id = &*draft.stored_id();
        let is_twice = plan.with[..at].iter().any(|other| other.stored_id() == new_id);
        if is_twice || row::by_id(connection, new_id)?.is_some() || row::alias(connection, new_id)?.is_some()
        {
            return Ok(LaneRebuilt::IdTaken(draft.client_message_id.clone()));
        }
    }
    let (mut gone, mut lanes) = (vec![id], vec![held.lane.clone()]);
    for dropped in &plan.drop {
        let waits = |row: &Row| row.lane == held.lane && matches!(row.status, Status::Pending | Status::Held);
        if row::by_number(connection, *dropped)?.is_some_and(|row| row.id != id && waits(&row)) {
            abort(connection, turn, *dropped, "auto", DROPPED_BY_REBUILD, now)?;
            gone.push(*dropped);
        }
    }
    let mut with = plan.with.iter();
    match with.next() {
        None => {
            abort(connection, turn, id, "auto", DROPPED_BY_REBUILD, now)?;
        }
        Some(first) => {
            supersede(connection, turn, &held, (first, held.ambiguous, "auto"), now, epoch)?;
            lanes.push(first.lane.clone());
        }
    }
    for draft in with {
        // The same action, where it waits already, is not done twice.
        if accept::same_action(connection, draft)?.is_none() {
            accept::insert(connection, turn, draft, now, epoch, None)?;
            lanes.push(draft.lane.clone());
        }
    }
    Ok(LaneRebuilt::Done { gone, lanes })
}

/// Lets a row that waits be tried at once.
pub(super) fn hurry(connection: &Connection, id: i64, now: Timestamp) -> Result<Option<Row>, Fault> {
    let sql =
        "UPDATE outbox SET next_attempt_at = min(next_attempt_at, ?2) WHERE id = ?1 AND status = 'pending'";
    let changed = connection.prepare_cached(sql)?.execute((id, now.millis()))?;
    if changed == 0 { Ok(None) } else { Ok(row::by_number(connection, id)?) }
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

/// A principal has signed out, or has come back.
pub(super) fn set_signed_out(
    connection: &Connection,
    principal: &str,
    is_out: bool,
    now: Timestamp,
) -> Result<(), Fault> {
    if is_out {
        let sql = "INSERT INTO outbox_signed_out (principal, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        connection.prepare_cached(sql)?.execute((principal, now.millis()))?;
    } else {
        connection
            .prepare_cached("DELETE FROM outbox_signed_out WHERE principal = ?1")?
            .execute([principal])?;
    }
    Ok(())
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
