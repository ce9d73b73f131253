//! How a message is read from its row.

use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row as Columns};
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

use crate::envelope::{Draft, parts_of_id, scoped_id};
use crate::message::{Answer, HeldFor, Progress, Request, Row, Status};
use crate::store::Find;

/// The columns of a message, its body left out.
pub(super) const COLUMNS: &str = "o.id, o.client_message_id, o.client_tx_id, o.request_fingerprint, o.principal, o.lane,
    o.logical_key, o.profile, o.method, o.url, o.headers, o.payload_bytes, o.client_generated_at, o.enqueued_at, o.epoch,
    o.attempts, o.failures, o.burst_failures, o.burst_started_at, o.same_answer, o.same_answer_count, o.next_attempt_at,
    o.first_attempt_at, o.status, o.held_for, o.fence_number, o.fence_nonce, o.last_error, o.ambiguous, o.deduplicated,
    o.delivered_at, o.response_status, o.response_headers, o.broker_message_id, o.history_id, o.ids, o.aborted_at,
    o.aborted_by, o.superseded_by, o.supersedes,
    (SELECT s.client_message_id FROM outbox s WHERE s.id = o.superseded_by) AS superseded_by_id,
    (SELECT s.client_message_id FROM outbox s WHERE s.id = o.supersedes) AS supersedes_id,
    CASE WHEN o.supersedes IS NOT NULL THEN (WITH RECURSIVE chain (before, name) AS (
        SELECT s.supersedes, s.client_message_id FROM outbox s WHERE s.id = o.supersedes
        UNION ALL SELECT s.supersedes, s.client_message_id FROM chain c JOIN outbox s ON s.id = c.before)
        SELECT name FROM chain WHERE before IS NULL) END AS first_id";

/// Reads a message: columns by their places in [`COLUMNS`], because names would be compared one by one. `response_body`
/// comes after them, and may be left out of the query.
pub(super) fn read(columns: &Columns<'_>) -> rusqlite::Result<Row> {
    let time = |at: usize| -> rusqlite::Result<Option<Timestamp>> {
        Ok(columns.get::<_, Option<i64>>(at)?.map(Timestamp::from_millis))
    };
    let when = |at: usize| -> rusqlite::Result<Timestamp> { Ok(Timestamp::from_millis(columns.get(at)?)) };
    let fence = match (columns.get::<_, Option<i64>>(25)?, columns.get::<_, Option<i64>>(26)?) {
        (Some(number), Some(nonce)) => {
            Some(Fence { number: number.cast_unsigned(), nonce: nonce.cast_unsigned() })
        }
        _ => None,
    };
    let answer = match columns.get::<_, Option<u16>>(31)? {
        None => None,
        Some(status) => Some(Answer {
            status,
            headers: lines(columns.get::<_, Option<String>>(32)?),
            body: columns.get::<_, Option<Vec<u8>>>(43).unwrap_or_default().unwrap_or_default(),
        }),
    };
    let (client_message_id, operation) = parts_of_id(columns.get(1)?);
    let id_of_other = |at: usize| -> rusqlite::Result<Option<String>> {
        Ok(columns.get::<_, Option<String>>(at)?.map(|stored| parts_of_id(stored).0))
    };
    Ok(Row {
        id: columns.get(0)?,
        client_message_id,
        client_tx_id: columns.get(2)?,
        fingerprint: columns.get(3)?,
        principal: columns.get(4)?,
        lane: columns.get(5)?,
        logical_key: columns.get(6)?,
        operation,
        profile: columns.get(7)?,
        method: columns.get(8)?,
        url: columns.get(9)?,
        headers: lines(columns.get::<_, Option<String>>(10)?),
        payload_bytes: columns.get(11)?,
        client_generated_at: when(12)?,
        enqueued_at: when(13)?,
        epoch: columns.get(14)?,
        attempts: columns.get(15)?,
        progress: Progress {
            failures: columns.get(16)?,
            burst_failures: columns.get(17)?,
            burst_started_at: columns.get(18)?,
            same_answer: columns.get(19)?,
            same_answer_count: columns.get(20)?,
        },
        next_attempt_at: when(21)?,
        first_attempt_at: time(22)?,
        status: status(&columns.get::<_, String>(23)?),
        held_for: columns.get::<_, Option<String>>(24)?.as_deref().and_then(HeldFor::parse),
        fence,
        last_error: columns.get(27)?,
        ambiguous: columns.get(28)?,
        deduplicated: columns.get(29)?,
        delivered_at: time(30)?,
        answer,
        broker_message_id: columns.get(33)?,
        history_id: columns.get(34)?,
        ids: lines(columns.get::<_, Option<String>>(35)?),
        aborted_at: time(36)?,
        aborted_by: columns.get(37)?,
        superseded_by: columns.get(38)?,
        superseded_by_id: id_of_other(40)?,
        supersedes: columns.get(39)?,
        supersedes_id: id_of_other(41)?,
        first_id: id_of_other(42)?,
    })
}

/// A message as it is once this draft is inserted.
pub(super) fn inserted(id: i64, draft: &Draft, now: Timestamp, epoch: i64) -> Row {
    let request = &draft.request;
    Row {
        id,
        client_message_id: draft.client_message_id.clone(),
        client_tx_id: draft.client_tx_id.clone(),
        fingerprint: draft.fingerprint,
        principal: draft.principal.clone(),
        lane: draft.lane.clone(),
        logical_key: draft.logical_key.clone(),
        operation: draft.operation.clone(),
        profile: draft.profile.clone(),
        method: request.method.clone(),
        url: request.url.clone(),
        headers: request.headers.clone(),
        payload_bytes: request.body.len() as u64,
        client_generated_at: draft.client_generated_at,
        enqueued_at: now,
        epoch,
        attempts: 0,
        progress: Progress::default(),
        next_attempt_at: now,
        first_attempt_at: None,
        status: Status::Pending,
        held_for: None,
        fence: None,
        last_error: None,
        ambiguous: false,
        deduplicated: false,
        delivered_at: None,
        answer: None,
        broker_message_id: None,
        history_id: None,
        ids: Vec::new(),
        aborted_at: None,
        aborted_by: None,
        superseded_by: None,
        superseded_by_id: None,
        supersedes: None,
        supersedes_id: None,
        first_id: None,
    }
}

/// The schema allows no other names.
pub(super) fn status(name: &str) -> Status {
    Status::parse(name).expect("the schema allows the known states only")
}

fn lines(text: Option<String>) -> Vec<(String, String)> {
    // What was written here is such a list; a hand that changed it gets an empty one.
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Pairs as they are kept.
pub(super) fn text(pairs: &[(String, String)]) -> String {
    serde_json::to_string(pairs).expect("pairs of texts are JSON")
}

/// Finds a message, with its answer.
pub(super) fn find(connection: &Connection, find: &Find) -> rusqlite::Result<Option<Row>> {
    match find {
        Find::Row(id) => by_number(connection, *id),
        Find::Id(id) => match by_name(connection, id)? {
            Some(row) => Ok(Some(row)),
            None => by_key(connection, id),
        },
        Find::Scoped { id, principal, operation } => {
            by_name(connection, &scoped_id(id, principal, operation))
        }
    }
}

/// The message of this id of the store, or of another name of it.
fn by_name(connection: &Connection, id: &str) -> rusqlite::Result<Option<Row>> {
    match by_id(connection, id)? {
        Some(row) => Ok(Some(row)),
        None => match alias(connection, id)? {
            Some((row_id, _)) => by_number(connection, row_id),
            None => Ok(None),
        },
    }
}

/// The message with this key, where ids are somebody's for one kind of action.
///
/// # Errors
/// There are several: the key alone names none of them.
fn by_key(connection: &Connection, key: &str) -> rusqlite::Result<Option<Row>> {
    let sql = "SELECT id FROM outbox WHERE client_message_id > ?1 || char(31) AND client_message_id < ?1 || char(32)
        UNION SELECT row_id FROM outbox_aliases
            WHERE client_message_id > ?1 || char(31) AND client_message_id < ?1 || char(32) LIMIT 2";
    let found: Vec<i64> = connection
        .prepare_cached(sql)?
        .query_map([key], |columns| columns.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    match found.as_slice() {
        [] => Ok(None),
        [one] => by_number(connection, *one),
        _ => Err(Error::QueryReturnedMoreThanOneRow),
    }
}

pub(super) fn by_number(connection: &Connection, id: i64) -> rusqlite::Result<Option<Row>> {
    let sql = format!("SELECT {COLUMNS}, o.response_body FROM outbox o WHERE o.id = ?1");
    connection.prepare_cached(&sql)?.query_row([id], read).optional()
}

pub(super) fn by_id(connection: &Connection, id: &str) -> rusqlite::Result<Option<Row>> {
    let sql = format!("SELECT {COLUMNS}, o.response_body FROM outbox o WHERE o.client_message_id = ?1");
    connection.prepare_cached(&sql)?.query_row([id], read).optional()
}

/// The row that an id is another name of, and what the id was used for.
pub(super) fn alias(connection: &Connection, id: &str) -> rusqlite::Result<Option<(i64, [u8; 32])>> {
    let sql = "SELECT row_id, request_fingerprint FROM outbox_aliases WHERE client_message_id = ?1";
    connection.prepare_cached(sql)?.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// What a message sends; `None` once its body was purged.
pub(super) fn request(connection: &Connection, id: i64) -> rusqlite::Result<Option<Request>> {
    let sql = "SELECT method, url, headers, payload FROM outbox WHERE id = ?1 AND payload IS NOT NULL";
    let read = |row: &Columns<'_>| {
        // Shown without its headers a message is still shown; sent without them it would be another one.
        let headers = serde_json::from_str(&row.get::<_, String>(2)?);
        let headers =
            headers.map_err(|error| Error::FromSqlConversionFailure(2, Type::Text, Box::new(error)))?;
        Ok(Request { method: row.get(0)?, url: row.get(1)?, headers, body: row.get(3)? })
    };
    connection.prepare_cached(sql)?.query_row([id], read).optional()
}
