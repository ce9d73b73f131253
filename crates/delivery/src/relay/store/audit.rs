//! The audit trail: what is said of every original, and of a lane as a whole. Rows are added, never changed.

use super::sql::{StoreError, Value};
use super::{Entry, Lane, Tx};

/// One row of the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number; 0 before it is written.
    pub id: i64,
    /// When.
    pub at: i64,
    /// What happened: `applied`, `parked`, `dead`, `released`, `requeued`, `purged`, `in-doubt`, `resolved`,
    /// `credential-given`, `credential-taken-back`, `clock-confirmed`.
    pub event: String,
    /// The target.
    pub target: String,
    /// The lane's group.
    pub group: String,
    /// The lane.
    pub lane: String,
    /// The entry's number.
    pub seq: Option<i64>,
    /// The request.
    pub request: Option<i64>,
    /// The place in it.
    pub pos: Option<i64>,
    /// Whose entry it is, or who did it.
    pub principal: String,
    /// By whose credential it was written.
    pub sender: Option<String>,
    /// The entry's value.
    pub value: Option<i64>,
    /// The upstream's value before this entry.
    pub before: Option<i64>,
    /// The upstream's value after it.
    pub after: Option<i64>,
    /// The batch it was written with, by its key.
    pub batch: Option<String>,
    /// Why somebody did it by hand, in their words.
    pub reason: Option<String>,
    /// More, in words or JSON.
    pub detail: String,
}

/// Writes rows in their order.
pub(crate) async fn audit_all(tx: &mut Tx, rows: &[AuditRow]) -> Result<(), StoreError> {
    let sql = "INSERT INTO relay_audit (at_ms, event, target, grp, lane, seq, request, pos, principal, sender, value, before,
            after, batch, detail, reason)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
    let args = |row: &AuditRow| -> Vec<Value> {
        vec![
            row.at.into(),
            row.event.as_str().into(),
            row.target.as_str().into(),
            row.group.as_str().into(),
            row.lane.as_str().into(),
            row.seq.into(),
            row.request.into(),
            row.pos.into(),
            row.principal.as_str().into(),
            row.sender.as_deref().into(),
            row.value.into(),
            row.before.into(),
            row.after.into(),
            row.batch.as_deref().into(),
            row.detail.as_str().into(),
            row.reason.as_deref().into(),
        ]
    };
    tx.run_each(sql, rows.iter().map(args).collect()).await.map(drop)
}

/// Writes one row.
pub(crate) async fn audit(tx: &mut Tx, row: &AuditRow) -> Result<(), StoreError> {
    audit_all(tx, std::slice::from_ref(row)).await
}

/// A row about an entry of a lane, to be completed.
pub(crate) fn about(lane: &Lane, entry: &Entry, event: &str, at: i64) -> AuditRow {
    AuditRow {
        id: 0,
        at,
        event: event.to_owned(),
        target: lane.target.clone(),
        group: lane.group.clone(),
        lane: lane.name.clone(),
        seq: Some(entry.seq),
        request: Some(entry.request),
        pos: Some(entry.pos),
        principal: entry.principal.clone(),
        sender: None,
        value: Some(entry.value),
        before: None,
        after: None,
        batch: None,
        reason: None,
        detail: String::new(),
    }
}
