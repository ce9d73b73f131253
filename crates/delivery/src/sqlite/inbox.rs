//! What others sent: kept once for each mesh, sender and id, with how far each line has come.

use rusqlite::{Connection, OptionalExtension, Row as Columns};
use semel_contract::time::Timestamp;

use super::schema::{meta, set_meta};
use super::turn::Fault;
use crate::message::{BodyKind, Came, Gap, Published, Received};
use crate::store::InboxDepth;

/// The name under which the number of this file is kept.
const OWN_NUMBER: &str = "own_number";

const COLUMNS: &str = "number, mesh, sender, message_id, supersedes, received_at, acked_at, payload, line, event_id, \
    broker_message_id, client_tx_id, content_type, created_at, body_kind";

/// Keeps a message.
pub(super) fn receive(connection: &Connection, message: &Received, now: Timestamp) -> Result<bool, Fault> {
    let Received { mesh, sender, message_id, supersedes, payload, about, .. } = message;
    let known = "SELECT 1 FROM outbox_inbox WHERE mesh = ?1 AND sender = ?2 AND message_id = ?3";
    let is_known = |id: &str| connection.prepare_cached(known)?.exists((mesh, sender, id));
    if is_known(message_id)? {
        return Ok(false);
    }
    // Of a message and those that take its place, the first to arrive counts. All of them name the first one, which may be the
    // only one that never arrives.
    let superseded = "SELECT 1 FROM outbox_inbox INDEXED BY outbox_inbox_superseded
        WHERE mesh = ?1 AND sender = ?2 AND supersedes = ?3";
    let is_superseded = |id: &str| connection.prepare_cached(superseded)?.exists((mesh, sender, id));
    let has_twin = match supersedes.as_deref() {
        None => is_superseded(message_id)?,
        Some(first) => is_superseded(message_id)? || is_known(first)? || is_superseded(first)?,
    };
    let sql = "INSERT INTO outbox_inbox (mesh, sender, message_id, supersedes, received_at, acked_at, payload, line,
            event_id, broker_message_id, client_tx_id, content_type, created_at, body_kind)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
    let (acked_at, payload) = if has_twin { (Some(now.millis()), None) } else { (None, Some(payload)) };
    let about = about.as_ref();
    connection.prepare_cached(sql)?.execute((
        mesh,
        sender,
        message_id,
        supersedes,
        now.millis(),
        acked_at,
        payload,
        about.map(|about| &about.line),
        about.map(|about| &about.event_id),
        about.map(|about| &about.broker_message_id),
        about.and_then(|about| about.client_tx_id.as_ref()),
        about.and_then(|about| about.content_type.as_ref()),
        about.and_then(|about| about.created_at.as_ref()),
        about.map(|about| about.body.name()),
    ))?;
    Ok(!has_twin)
}

/// Keeps what came on a line, and how far the line has come.
pub(super) fn receive_line(connection: &Connection, came: &Came, now: Timestamp) -> Result<u64, Fault> {
    let mut new = 0;
    for message in &came.messages {
        new += u64::from(receive(connection, message, now)?);
    }
    let sql = "INSERT INTO outbox_inbox_gaps (at, mesh, line, since, oldest, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    for Gap { mesh, line, since, oldest, reason, .. } in &came.gaps {
        connection.prepare_cached(sql)?.execute((now.millis(), mesh, line, since, oldest, reason))?;
    }
    let sql = "INSERT INTO outbox_inbox_lines (mesh, line, cursor, updated_at) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (mesh, line) DO UPDATE SET cursor = excluded.cursor, updated_at = excluded.updated_at";
    connection.prepare_cached(sql)?.execute((&came.mesh, &came.line, &came.cursor, now.millis()))?;
    Ok(new)
}

/// How far a line has come.
pub(super) fn line_cursor(
    connection: &Connection,
    mesh: &str,
    line: &str,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT cursor FROM outbox_inbox_lines WHERE mesh = ?1 AND line = ?2";
    connection.prepare_cached(sql)?.query_row((mesh, line), |columns| columns.get(0)).optional()
}

fn read(columns: &Columns<'_>) -> rusqlite::Result<Received> {
    let line: Option<String> = columns.get(8)?;
    let about = match line {
        None => None,
        Some(line) => Some(Published {
            line,
            event_id: columns.get::<_, Option<String>>(9)?.unwrap_or_default(),
            broker_message_id: columns.get::<_, Option<String>>(10)?.unwrap_or_default(),
            client_tx_id: columns.get(11)?,
            content_type: columns.get(12)?,
            created_at: columns.get(13)?,
            body: columns
                .get::<_, Option<String>>(14)?
                .and_then(|name| BodyKind::parse(&name))
                .unwrap_or_default(),
        }),
    };
    Ok(Received {
        number: columns.get(0)?,
        mesh: columns.get(1)?,
        sender: columns.get(2)?,
        message_id: columns.get(3)?,
        supersedes: columns.get(4)?,
        received_at: Timestamp::from_millis(columns.get(5)?),
        acked_at: columns.get::<_, Option<i64>>(6)?.map(Timestamp::from_millis),
        payload: columns.get::<_, Option<Vec<u8>>>(7)?.unwrap_or_default(),
        about,
    })
}

/// Lists what nobody acknowledged.
pub(super) fn received(connection: &Connection, after: i64, limit: u32) -> rusqlite::Result<Vec<Received>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox_inbox INDEXED BY outbox_inbox_waiting
            WHERE number > ?1 AND acked_at IS NULL ORDER BY number LIMIT ?2"
    );
    connection.prepare_cached(&sql)?.query_map((after, limit), read)?.collect()
}

/// The messages of a sender under one id.
pub(super) fn received_as(
    connection: &Connection,
    sender: &str,
    message_id: &str,
) -> rusqlite::Result<Vec<Received>> {
    // There are few meshes: each is looked at by the index.
    let sql = format!(
        "SELECT {COLUMNS} FROM outbox_inbox WHERE sender = ?1 AND message_id = ?2 AND mesh IN
            (SELECT mesh FROM outbox_inbox_lines UNION SELECT '') ORDER BY number"
    );
    connection.prepare_cached(&sql)?.query_map((sender, message_id), read)?.collect()
}

/// Acknowledges a message of this mesh, sender and id.
pub(super) fn acknowledge(
    connection: &Connection,
    [mesh, sender, id]: [&str; 3],
    now: Timestamp,
) -> Result<bool, Fault> {
    let sql = "UPDATE outbox_inbox SET acked_at = ?4, payload = NULL
        WHERE mesh = ?1 AND sender = ?2 AND message_id = ?3 AND acked_at IS NULL";
    Ok(connection.prepare_cached(sql)?.execute((mesh, sender, id, now.millis()))? == 1)
}

/// What lines said cannot be had.
pub(super) fn gaps(connection: &Connection, after: i64, limit: u32) -> rusqlite::Result<Vec<Gap>> {
    let sql = "SELECT number, at, mesh, line, since, oldest, reason FROM outbox_inbox_gaps
        WHERE number > ?1 ORDER BY number LIMIT ?2";
    let read = |columns: &Columns<'_>| {
        Ok(Gap {
            number: columns.get(0)?,
            at: Timestamp::from_millis(columns.get(1)?),
            mesh: columns.get(2)?,
            line: columns.get(3)?,
            since: columns.get(4)?,
            oldest: columns.get(5)?,
            reason: columns.get(6)?,
        })
    };
    connection.prepare_cached(sql)?.query_map((after, limit), read)?.collect()
}

/// How many wait to be acknowledged, since when the oldest does, and the last number.
pub(super) fn depth(connection: &Connection) -> rusqlite::Result<InboxDepth> {
    let sql = "SELECT count(*) FROM outbox_inbox INDEXED BY outbox_inbox_waiting WHERE acked_at IS NULL";
    let waiting = connection.prepare_cached(sql)?.query_row([], |columns| columns.get(0))?;
    let sql = "SELECT received_at FROM outbox_inbox INDEXED BY outbox_inbox_waiting WHERE acked_at IS NULL
        ORDER BY number LIMIT 1";
    let oldest: Option<i64> =
        connection.prepare_cached(sql)?.query_row([], |columns| columns.get(0)).optional()?;
    let sql = "SELECT coalesce(max(number), 0) FROM outbox_inbox";
    let newest = connection.prepare_cached(sql)?.query_row([], |columns| columns.get(0))?;
    Ok(InboxDepth { waiting, oldest: oldest.map(Timestamp::from_millis), newest })
}

/// The number of this file.
pub(super) fn own_number(connection: &Connection, or: i64) -> Result<i64, Fault> {
    match meta(connection, OWN_NUMBER)? {
        Some(number) => Ok(number),
        None => {
            set_meta(connection, OWN_NUMBER, or)?;
            Ok(or)
        }
    }
}
