//! Writes what became of an attempt.

use rusqlite::Connection;
use semel_contract::planted::{self, Bug};
use semel_contract::profile::GiveUp;
use semel_contract::record::Fence;

use super::turn::{Fault, Turn};
use super::{events, row};
use crate::judge::{To, Verdict};
use crate::limits::ATTEMPTS_KEPT_MAX;
use crate::message::{HeldFor, Row, Status};
use crate::settings::HeadPolicy;
use crate::store::FencedWrite;

/// The columns that a verdict sets, from what it says.
struct Change {
    status: Status,
    kind: &'static str,
    held_for: Option<HeldFor>,
    /// Whether the body is kept, so that an operator may requeue it.
    keeps_body: bool,
}

fn change(to: &To) -> Change {
    let plain = |status, kind| Change { status, kind, held_for: None, keeps_body: true };
    let held = |reason, kind| Change { held_for: Some(reason), ..plain(Status::Held, kind) };
    let dropped = |kind| Change { keeps_body: false, ..plain(Status::Dead, kind) };
    match to {
        To::Done(_) => plain(Status::Done, "done"),
        To::Retry(_) => plain(Status::Pending, "retry"),
        To::Held(HeldFor::Auth) => held(HeldFor::Auth, "held"),
        To::Held(HeldFor::Rebuild) => held(HeldFor::Rebuild, "rebuild"),
        To::Dead => plain(Status::Dead, "dead"),
        To::Dropped => dropped("dropped"),
        To::Expired(GiveUp::Dead) => plain(Status::Dead, "expired"),
        To::Expired(GiveUp::Drop) => dropped("expired"),
    }
}

/// Settles an attempt.
pub(super) fn settle(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    fence: Fence,
    verdict: &Verdict,
) -> Result<FencedWrite, Fault> {
    let before = row::by_number(connection, id)?;
    let Some(before) = before.filter(|row| {
        row.status == Status::Inflight && (row.fence == Some(fence) || planted::is(Bug::OutboxNoFence))
    }) else {
        return Ok(FencedWrite::Stale);
    };
    log(connection, &before, verdict)?;
    apply(connection, turn, &before, verdict)
}

/// Gives up a row that is held.
pub(super) fn give_up(
    connection: &Connection,
    turn: &mut Turn,
    id: i64,
    verdict: &Verdict,
) -> Result<FencedWrite, Fault> {
    match row::by_number(connection, id)?.filter(|row| row.status == Status::Held) {
        Some(before) => apply(connection, turn, &before, verdict),
        None => Ok(FencedWrite::Stale),
    }
}

fn apply(
    connection: &Connection,
    turn: &mut Turn,
    before: &Row,
    verdict: &Verdict,
) -> Result<FencedWrite, Fault> {
    let change = change(&verdict.to);
    write(connection, before, &change, verdict)?;
    if !change.status.is_live() {
        turn.leave(before.payload_bytes);
    }
    if let To::Held(HeldFor::Auth) = verdict.to {
        let sql =
            "INSERT INTO outbox_holds (principal, since) VALUES (?1, ?2) ON CONFLICT (principal) DO NOTHING";
        connection.prepare_cached(sql)?.execute((&before.principal, verdict.at.millis()))?;
    }
    // What was dropped is nobody's to repair: it never stops its lane.
    if change.status == Status::Dead && change.keeps_body && verdict.head == HeadPolicy::Block {
        let sql = "INSERT INTO outbox_lanes (lane, blocked_by) VALUES (?1, ?2)
            ON CONFLICT (lane) DO UPDATE SET blocked_by = excluded.blocked_by";
        connection.prepare_cached(sql)?.execute((&before.lane, before.id))?;
    }
    events::about(connection, turn, change.kind, events::of(before), verdict.error.as_deref(), verdict.at)?;
    let after = row::by_number(connection, before.id)?;
    let after = after.ok_or_else(|| Fault::Sqlite(format!("row {} is gone", before.id)))?;
    Ok(FencedWrite::Done(Box::new(after)))
}

fn write(connection: &Connection, before: &Row, change: &Change, verdict: &Verdict) -> rusqlite::Result<()> {
    let at = verdict.at.millis();
    let ids: &[(String, String)] = match &verdict.to {
        To::Done(ids) => ids,
        To::Retry(_) | To::Held(_) | To::Dead | To::Dropped | To::Expired(_) => &[],
    };
    let named = |name: &str| ids.iter().find(|(given, _)| given == name).map(|(_, value)| plain(value));
    let next_attempt_at = match verdict.to {
        To::Retry(at) => at.millis(),
        To::Done(_) | To::Held(_) | To::Dead | To::Dropped | To::Expired(_) => at,
    };
    let progress = &verdict.progress;
    let answer = verdict.answer.as_ref();
    // No answer to this message speaks for the one whose place it took, under another key: what is done may then be there twice,
    // also where the server knows this key again.
    let sql = "UPDATE outbox SET status = ?2, held_for = ?3, fence_number = NULL, fence_nonce = NULL, lease_until = NULL,
            next_attempt_at = ?4, last_error = ?5, ambiguous = max(?6, supersedes IS NOT NULL
                AND EXISTS (SELECT 1 FROM outbox s WHERE s.id = outbox.supersedes AND s.ambiguous)),
            deduplicated = ?7 AND NOT (supersedes IS NOT NULL
                AND EXISTS (SELECT 1 FROM outbox s WHERE s.id = outbox.supersedes AND s.ambiguous)), failures = ?8,
            burst_failures = ?9, burst_started_at = ?10, same_answer = ?11, same_answer_count = ?12,
            delivered_at = ?13, response_status = coalesce(?14, response_status),
            response_headers = coalesce(?15, response_headers), response_body = coalesce(?16, response_body),
            broker_message_id = coalesce(?17, broker_message_id), history_id = coalesce(?18, history_id), ids = ?19,
            payload = CASE WHEN ?20 THEN payload END WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(rusqlite::params![
        before.id,
        change.status.name(),
        change.held_for.map(HeldFor::name),
        next_attempt_at,
        verdict.error,
        verdict.ambiguous,
        verdict.deduplicated,
        progress.failures,
        progress.burst_failures,
        progress.burst_started_at,
        progress.same_answer,
        progress.same_answer_count,
        (change.status == Status::Done).then_some(at),
        answer.map(|answer| answer.status),
        answer.map(|answer| row::text(&answer.headers)),
        answer.map(|answer| answer.body.as_slice()),
        named("broker_message_id"),
        named("history_id"),
        (!ids.is_empty()).then(|| row::text(ids)),
        change.keeps_body,
    ])?;
    Ok(())
}

/// An id without the quotes that it has as JSON.
fn plain(value: &str) -> String {
    serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_owned())
}

fn log(connection: &Connection, before: &Row, verdict: &Verdict) -> rusqlite::Result<()> {
    let Some(ended) = &verdict.ended else {
        // Nothing was sent: the attempt that the claim counted was none.
        let sql = "DELETE FROM outbox_attempts WHERE row_id = ?1 AND number = ?2";
        connection.prepare_cached(sql)?.execute((before.id, before.attempts))?;
        let sql = "UPDATE outbox SET attempts = attempts - 1,
            first_attempt_at = CASE WHEN attempts > 1 THEN first_attempt_at END WHERE id = ?1";
        connection.prepare_cached(sql)?.execute([before.id])?;
        return Ok(());
    };
    let sql = "UPDATE outbox_attempts SET ended_at = ?3, outcome = ?4, status = ?5, error = ?6
        WHERE row_id = ?1 AND number = ?2";
    connection.prepare_cached(sql)?.execute((
        before.id,
        before.attempts,
        verdict.at.millis(),
        ended.outcome,
        ended.status,
        &verdict.error,
    ))?;
    if let Some(oldest) = before.attempts.checked_sub(ATTEMPTS_KEPT_MAX) {
        let sql = "DELETE FROM outbox_attempts WHERE row_id = ?1 AND number <= ?2";
        connection.prepare_cached(sql)?.execute((before.id, oldest))?;
    }
    Ok(())
}
