//! An older queue's table, made into messages: a row for each action, its key inside its payload or nowhere. Reads the other
//! file and never writes it. Each row has one id for ever, so that reading it again makes nothing twice.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use semel_contract::key::is_uuid;
use semel_contract::profile::Generator;
use semel_contract::time::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::errors::CoreError;
use crate::types::{Header, Message};

/// Where actions of a kind go.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Record)]
pub struct Route {
    /// The kind of action, as the table names it.
    pub action_type: String,
    /// The method.
    pub method: String,
    /// The address. `{name}` stands for that member of the payload.
    pub url: String,
}

/// Reads the rows of a table with the columns `id`, `walker_id`, `action_type`, `payload` and `enqueued_at`, in order.
///
/// # Errors
/// The file or table cannot be read, or a row's kind has no route: nothing is imported rather than some of it.
pub(crate) fn read(file: &Path, table: &str, routes: &[Route]) -> Result<Vec<Message>, CoreError> {
    let unavailable = |error: rusqlite::Error| CoreError::Unavailable {
        reason: format!("the older queue cannot be read: {error}"),
    };
    if table.is_empty() || !table.chars().all(|char| char.is_ascii_alphanumeric() || char == '_') {
        return Err(CoreError::Unavailable { reason: format!("{table:?} is not the name of a table") });
    }
    let connection =
        Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(unavailable)?;
    let sql = format!(
        "SELECT id, walker_id, action_type, payload, enqueued_at FROM {table} ORDER BY enqueued_at, id"
    );
    let mut statement = connection.prepare(&sql).map_err(unavailable)?;
    let rows = statement
        .query_map([], |row| {
            Ok(OldRow {
                id: row.get(0)?,
                walker: row.get(1)?,
                action_type: row.get(2)?,
                payload: row.get(3)?,
                enqueued_at: row.get(4)?,
            })
        })
        .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
        .map_err(unavailable)?;
    let mut used = std::collections::BTreeSet::new();
    rows.into_iter().map(|row| message(row, table, routes, &mut used)).collect()
}

struct OldRow {
    id: i64,
    walker: String,
    action_type: String,
    payload: String,
    enqueued_at: i64,
}

fn message(
    row: OldRow,
    table: &str,
    routes: &[Route],
    used: &mut std::collections::BTreeSet<(String, String, String)>,
) -> Result<Message, CoreError> {
    let route = routes.iter().find(|route| route.action_type == row.action_type).ok_or_else(|| {
        CoreError::Unavailable { reason: format!("actions of kind {:?} have no route", row.action_type) }
    })?;
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or(Value::Null);
    let inside = payload["idempotencyKey"].as_str().filter(|key| is_uuid(key)).map(str::to_lowercase);
    // A second row with the key of a first one is another action: it has a key of its own.
    let inside = inside.filter(|key| used.insert((row.walker.clone(), row.action_type.clone(), key.clone())));
    Ok(Message {
        method: route.method.clone(),
        url: filled(&route.url, &payload),
        headers: vec![Header { name: "content-type".to_owned(), value: "application/json".to_owned() }],
        id: Some(inside.unwrap_or_else(|| own_key(table, &row))),
        lane: None,
        principal: Some(row.walker),
        logical_key: None,
        operation: Some(row.action_type),
        generated_at_millis: Some(row.enqueued_at),
        body: row.payload.into_bytes(),
    })
}

/// A random-looking UUID of the row itself: the same one each time it is read.
fn own_key(table: &str, row: &OldRow) -> String {
    let mut hash = Sha256::new();
    for part in [
        table,
        &row.id.to_string(),
        &row.walker,
        &row.action_type,
        &row.enqueued_at.to_string(),
        &row.payload,
    ] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let bits = digest.first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes));
    Generator::Uuid4.mint(bits, Timestamp::from_millis(0)).as_str().to_owned()
}

fn filled(url: &str, payload: &Value) -> String {
    let mut out = String::new();
    let mut rest = url;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((member, tail)) = after.split_once('}') else { break };
        out.push_str(before);
        match &payload[member] {
            Value::String(text) => out.push_str(&semel_delivery::url::encoded(text)),
            other => out.push_str(&other.to_string()),
        }
        rest = tail;
    }
    out + rest
}
