//! How a message is read from its row.

use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row as Columns};
use semel_contract::record::Fence;
use semel_contract::time::Timestamp;

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
    (SELECT s.client_message_id FROM outbox s WHERE s.id = o.supersedes) AS supersedes_id";

/// Reads a message. `response_body` may be left out of the query.
pub(super) fn read(columns: &Columns<'_>) -> rusqlite::Result<Row> {
    let time = |name: &str| -> rusqlite::Result<Option<Timestamp>> {
        Ok(columns.get::<_, Option<i64>>(name)?.map(Timestamp::from_millis))
    };
    let when = |name: &str| -> rusqlite::Result<Timestamp> { Ok(Timestamp::from_millis(columns.get(name)?)) };
    let fence =
        match (columns.get::<_, Option<i64>>("fence_number")?, columns.get::<_, Option<i64>>("fence_nonce")?)
        {
            (Some(number), Some(nonce)) => {
                Some(Fence { number: number.cast_unsigned(), nonce: nonce.cast_unsigned() })
            }
            _ => None,
        };
    let answer = match columns.get::<_, Option<u16>>("response_status")? {
        None => None,
        Some(status) => Some(Answer {
            status,
            headers: lines(columns.get::<_, Option<String>>("response_headers")?),
            body: columns.get::<_, Option<Vec<u8>>>("response_body").unwrap_or_default().unwrap_or_default(),
        }),
    };
    Ok(Row {
        id: columns.get("id")?,
        client_message_id: columns.get("client_message_id")?,
        client_tx_id: columns.get("client_tx_id")?,
        fingerprint: columns.get("request_fingerprint")?,
        principal: columns.get("principal")?,
        lane: columns.get("lane")?,
        logical_key: columns.get("logical_key")?,
        profile: columns.get("profile")?,
        method: columns.get("method")?,
        url: columns.get("url")?,
        headers: lines(columns.get::<_, Option<String>>("headers")?),
        payload_bytes: columns.get("payload_bytes")?,
        client_generated_at: when("client_generated_at")?,
        enqueued_at: when("enqueued_at")?,
        epoch: columns.get("epoch")?,
        attempts: columns.get("attempts")?,
        progress: Progress {
            failures: columns.get("failures")?,
            burst_failures: columns.get("burst_failures")?,
            burst_started_at: columns.get("burst_started_at")?,
            same_answer: columns.get("same_answer")?,
            same_answer_count: columns.get("same_answer_count")?,
        },
        next_attempt_at: when("next_attempt_at")?,
        first_attempt_at: time("first_attempt_at")?,
        status: status(&columns.get::<_, String>("status")?),
        held_for: columns.get::<_, Option<String>>("held_for")?.as_deref().and_then(HeldFor::parse),
        fence,
        last_error: columns.get("last_error")?,
        ambiguous: columns.get("ambiguous")?,
        deduplicated: columns.get("deduplicated")?,
        delivered_at: time("delivered_at")?,
        answer,
        broker_message_id: columns.get("broker_message_id")?,
        history_id: columns.get("history_id")?,
        ids: lines(columns.get::<_, Option<String>>("ids")?),
        aborted_at: time("aborted_at")?,
        aborted_by: columns.get("aborted_by")?,
        superseded_by: columns.get("superseded_by")?,
        superseded_by_id: columns.get("superseded_by_id")?,
        supersedes: columns.get("supersedes")?,
        supersedes_id: columns.get("supersedes_id")?,
    })
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
        Find::Id(id) => match by_id(connection, id)? {
            Some(row) => Ok(Some(row)),
            None => match alias(connection, id)? {
                Some((row_id, _)) => by_number(connection, row_id),
                None => Ok(None),
            },
        },
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
