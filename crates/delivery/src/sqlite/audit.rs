//! The trail of what was done by hand, written in the transaction of what it tells of.

use rusqlite::{Connection, Row as Columns};
use semel_contract::time::Timestamp;

use crate::operator::{Audited, Operator};

/// Writes down what somebody did. What the engine does by itself has nobody, and no row.
pub(super) fn write(
    connection: &Connection,
    by: Option<&Operator>,
    (action, subject, detail): (&str, &str, &str),
    now: Timestamp,
) -> rusqlite::Result<()> {
    let Some(by) = by else { return Ok(()) };
    let sql = "INSERT INTO outbox_audit (at, actor, action, subject, detail, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let reason = by.reason.as_deref().unwrap_or_default();
    let row = (now.millis(), &by.name, action, subject, detail, reason);
    connection.prepare_cached(sql)?.execute(row).map(drop)
}

/// The latest rows, or those before a number.
pub(super) fn latest(
    connection: &Connection,
    before: Option<i64>,
    limit: u32,
) -> rusqlite::Result<Vec<Audited>> {
    let sql = "SELECT number, at, actor, action, subject, detail, reason FROM outbox_audit WHERE number < ?1
        ORDER BY number DESC LIMIT ?2";
    let read = |columns: &Columns<'_>| {
        Ok(Audited {
            number: columns.get(0)?,
            at: Timestamp::from_millis(columns.get(1)?),
            actor: columns.get(2)?,
            action: columns.get(3)?,
            subject: columns.get(4)?,
            detail: columns.get(5)?,
            reason: columns.get(6)?,
        })
    };
    connection.prepare_cached(sql)?.query_map((before.unwrap_or(i64::MAX), limit), read)?.collect()
}
