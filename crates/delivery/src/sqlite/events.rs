//! Events, written in the transaction of what they tell of.

use rusqlite::{Connection, Row as Columns};
use semel_contract::time::Timestamp;

use super::turn::Turn;
use crate::message::{Event, Row};

/// Writes an event about a message.
pub(super) fn about(
    connection: &Connection,
    turn: &mut Turn,
    kind: &str,
    row: (i64, &str, &str),
    detail: Option<&str>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outbox_events (at, kind, row_id, client_message_id, lane, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    connection.prepare_cached(sql)?.execute((now.millis(), kind, row.0, row.1, row.2, detail))?;
    turn.last_event = connection.last_insert_rowid();
    Ok(())
}

/// What an event says of a message.
pub(super) fn of(row: &Row) -> (i64, &str, &str) {
    (row.id, &row.client_message_id, &row.lane)
}

/// Writes an event about a lane or about nothing in particular.
pub(super) fn general(
    connection: &Connection,
    turn: &mut Turn,
    kind: &str,
    lane: Option<&str>,
    detail: Option<&str>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO outbox_events (at, kind, lane, detail) VALUES (?1, ?2, ?3, ?4)";
    connection.prepare_cached(sql)?.execute((now.millis(), kind, lane, detail))?;
    turn.last_event = connection.last_insert_rowid();
    Ok(())
}

pub(super) fn read(columns: &Columns<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        number: columns.get(0)?,
        at: Timestamp::from_millis(columns.get(1)?),
        kind: columns.get(2)?,
        row_id: columns.get(3)?,
        client_message_id: columns.get(4)?,
        lane: columns.get(5)?,
        detail: columns.get(6)?,
    })
}
