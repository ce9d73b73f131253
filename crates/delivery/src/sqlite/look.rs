//! Reads for those who look.

use rusqlite::{Connection, OptionalExtension};
use semel_contract::time::Timestamp;

use super::events;
use super::row::{self, COLUMNS};
use crate::limits::LIST_ROWS_MAX;
use crate::message::{Attempt, Event, Row, Status};
use crate::store::{Depth, Filter, LaneState, Order};

const LIVE: &str = live!();

pub(super) fn attempts(connection: &Connection, id: i64) -> rusqlite::Result<Vec<Attempt>> {
    let sql = "SELECT number, started_at, ended_at, outcome, status, error FROM outbox_attempts WHERE row_id = ?1 ORDER BY number";
    let read = |columns: &rusqlite::Row<'_>| {
        Ok(Attempt {
            number: columns.get(0)?,
            started_at: Timestamp::from_millis(columns.get(1)?),
            ended_at: columns.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
            outcome: columns.get(3)?,
            status: columns.get(4)?,
            error: columns.get(5)?,
        })
    };
    connection.prepare_cached(sql)?.query_map([id], read)?.collect()
}

pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Row>> {
    let order = match filter.order {
        Order::OldestFirst => "ASC",
        Order::NewestFirst => "DESC",
    };
    // Looked for only where it is asked for: every other list walks over the rows in their order.
    let of_key = match filter.key {
        None => "?6 IS NULL",
        Some(_) => {
            "o.id IN (SELECT id FROM outbox WHERE client_message_id = ?6
                    OR client_message_id > ?6 || char(31) AND client_message_id < ?6 || char(32)
                UNION SELECT row_id FROM outbox_aliases WHERE client_message_id = ?6
                    OR client_message_id > ?6 || char(31) AND client_message_id < ?6 || char(32))"
        }
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox o WHERE o.id > ?1 AND o.id < ?5 AND {of_key}
            AND (?2 IS NULL OR o.status = ?2) AND (?3 IS NULL OR o.lane = ?3)
         ORDER BY o.id {order} LIMIT ?4"
    );
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let before = filter.before.unwrap_or(i64::MAX);
    let wanted = (filter.after, filter.status.map(Status::name), &filter.lane, limit, before, &filter.key);
    connection.prepare_cached(&sql)?.query_map(wanted, row::read)?.collect()
}

pub(super) fn live_lanes(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    // From one lane to the next, past all that waits in it.
    let sql = format!(
        "WITH RECURSIVE next (lane) AS (
             SELECT min(lane) FROM outbox INDEXED BY outbox_live WHERE {LIVE}
             UNION ALL
             SELECT (SELECT min(lane) FROM outbox INDEXED BY outbox_live WHERE {LIVE} AND lane > next.lane) FROM next
                 WHERE lane IS NOT NULL)
         SELECT lane FROM next WHERE lane IS NOT NULL"
    );
    connection.prepare(&sql)?.query_map([], |columns| columns.get(0))?.collect()
}

pub(super) fn lanes(connection: &Connection) -> rusqlite::Result<Vec<LaneState>> {
    let sql = format!(
        "SELECT lane, coalesce(max(paused), 0), max(blocked_by), sum(depth), max(head) FROM (
             SELECT lane, 0 AS paused, NULL AS blocked_by, count(*) AS depth, min(id) AS head
                 FROM outbox INDEXED BY outbox_live WHERE {LIVE} GROUP BY lane
             UNION ALL SELECT lane, paused, blocked_by, 0, NULL FROM outbox_lanes) GROUP BY lane ORDER BY lane"
    );
    let read = |columns: &rusqlite::Row<'_>| {
        Ok(LaneState {
            lane: columns.get(0)?,
            is_paused: columns.get(1)?,
            blocked_by: columns.get(2)?,
            depth: columns.get(3)?,
            head: columns.get(4)?,
        })
    };
    connection.prepare(&sql)?.query_map([], read)?.collect()
}

pub(super) fn lane(connection: &Connection, lane: String) -> rusqlite::Result<LaneState> {
    let sql =
        format!("SELECT count(*), min(id) FROM outbox INDEXED BY outbox_live WHERE lane = ?1 AND {LIVE}");
    let read = |columns: &rusqlite::Row<'_>| Ok((columns.get(0)?, columns.get(1)?));
    let (depth, head) = connection.prepare_cached(&sql)?.query_row([&lane], read)?;
    let sql = "SELECT paused, blocked_by FROM outbox_lanes WHERE lane = ?1";
    let read = |columns: &rusqlite::Row<'_>| Ok((columns.get(0)?, columns.get(1)?));
    let (is_paused, blocked_by) =
        connection.prepare_cached(sql)?.query_row([&lane], read).optional()?.unwrap_or_default();
    Ok(LaneState { lane, is_paused, blocked_by, depth, head })
}

pub(super) fn events_after(
    connection: &Connection,
    after: i64,
    limit: u32,
) -> rusqlite::Result<(Vec<Event>, i64)> {
    let sql = "SELECT number, at, kind, row_id, client_message_id, lane, detail FROM outbox_events
        WHERE number > ?1 ORDER BY number LIMIT ?2";
    let found = connection
        .prepare_cached(sql)?
        .query_map((after, limit), events::read)?
        .collect::<rusqlite::Result<_>>()?;
    let first =
        connection
            .query_row("SELECT coalesce(min(number), 1) FROM outbox_events", [], |columns| columns.get(0))?;
    Ok((found, first))
}

pub(super) fn depth(connection: &Connection) -> rusqlite::Result<Depth> {
    let by_status = connection
        .prepare_cached("SELECT status, count(*) FROM outbox INDEXED BY outbox_due GROUP BY status")?
        .query_map([], |columns| Ok((row::status(&columns.get::<_, String>(0)?), columns.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let sql = format!(
        "SELECT enqueued_at FROM outbox WHERE id = (SELECT min(id) FROM outbox INDEXED BY outbox_live WHERE {LIVE})"
    );
    let oldest: Option<i64> = connection.query_row(&sql, [], |columns| columns.get(0)).optional()?;
    let refused = connection.query_row("SELECT count(*) FROM outbox_holds", [], |columns| columns.get(0))?;
    Ok(Depth { by_status, oldest: oldest.map(Timestamp::from_millis), refused })
}
