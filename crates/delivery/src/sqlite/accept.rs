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
    let id = &*draft.stored_id();
    if is_taken(connection, id)? {
        let row = row::by_id(connection, id)?;
        let row = row.ok_or_else(|| Fault::Sqlite(format!("the id {id:?} leads nowhere")))?;
        let fingerprint = row.fingerprint;
        return Ok(Arrived::Known { row, fingerprint, is_alias: false });
    }
    let alias = if turn.has_aliases { row::alias(connection, id)? } else { None };
    if let Some((row_id, fingerprint)) = alias {
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
            turn.has_aliases = true;
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
    Ok(Arrived::New(row::inserted(number, draft, now, epoch)))
}

/// Whether a message has this id. Reads the index alone, which the insertion needs anyway.
fn is_taken(connection: &Connection, id: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM outbox WHERE client_message_id = ?1")?.exists([id])
}

/// The message that waits and stands for the same action.
pub(super) fn same_action(connection: &Connection, draft: &Draft) -> rusqlite::Result<Option<Row>> {
    let Some(logical_key) = &draft.logical_key else { return Ok(None) };
    let sql = concat!("SELECT id FROM outbox WHERE principal = ?1 AND logical_key = ?2 AND ", live!());
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
        draft.stored_id(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Request;
    use crate::sqlite::schema;

    #[test]
    fn what_is_told_of_a_new_message_is_what_is_read_of_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::SCHEMA.migrate(&mut connection).unwrap();
        let mut turn = Turn::start(&connection).unwrap();
        let draft = Draft {
            client_message_id: "m1".to_owned(),
            is_callers: true,
            client_tx_id: "tx1".to_owned(),
            fingerprint: [7; 32],
            principal: "alice".to_owned(),
            lane: "notes".to_owned(),
            logical_key: Some("tap".to_owned()),
            operation: Some("save".to_owned()),
            profile: "walker".to_owned(),
            client_generated_at: Timestamp::from_millis(3),
            request: Request::json("PUT", "/notes/1", "{}"),
        };
        let room = Room { rows: 10, bytes: 100 };
        let arrived = accept(&connection, &mut turn, &draft, Timestamp::from_millis(5), 9, room).unwrap();
        let Arrived::New(told) = arrived else { panic!("it is new") };
        let read = row::by_number(&connection, told.id).unwrap().unwrap();
        assert_eq!(format!("{told:?}"), format!("{read:?}"));
        assert_eq!((turn.rows, turn.bytes, turn.last_event), (1, 2, 1));
    }
}
