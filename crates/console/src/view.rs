//! Records and their histories as JSON. Never shows a fence's nonce, which is the proof of holding a claim, and shows a
//! body only where it was asked for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_contract::decide::Standing;
use semel_contract::hex::hex;
use semel_contract::record::State;
use semel_contract::restore::Restore;
use semel_contract::time::Timestamp;
use semel_store::admin::{Audited, Cleanup, StaleCount};
use semel_store::tally::Tallied;
use semel_store::{Answer, Entry, Swept};
use serde_json::{Value, json};

/// Whether bodies are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    /// They are not.
    Hidden,
    /// They are, in base64.
    Shown,
}

fn time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| json!(at.to_string()))
}

/// A record.
pub(crate) fn record(entry: &Entry, now: Timestamp, bodies: Bodies) -> Value {
    let (record, about) = (&entry.record, &entry.about);
    let headers: serde_json::Map<String, Value> =
        about.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({
        "id": record.fence.number.to_string(),
        "state": record.state.name(),
        "standing": Standing::of(Some(record), now).name(),
        "guarantee": record.guarantee.name(),
        "key": entry.id.key.as_str(),
        "tenant": about.tenant,
        "principal": about.principal,
        "route": about.endpoint,
        "request_id": about.request_id,
        "request_headers": headers,
        "client_generated_at": time(about.client_generated_at),
        "created_at": record.created_at.to_string(),
        "lease_until": record.lease_until.to_string(),
        "late_until": entry.late_until.to_string(),
        "settled_at": time(entry.settled_at),
        "took_ms": entry.settled_at.map(|at| at.millis_since(record.created_at)),
        "expires_at": time(record.expires_at),
        "answer": entry.answer.as_ref().map(|kept| answer(kept, bodies)),
    })
}

fn answer(answer: &Answer, bodies: Bodies) -> Value {
    let headers: Vec<Value> =
        answer.headers.iter().map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
    let mut shown = json!({
        // An outcome that was resolved without an answer has none.
        "status": Some(answer.status).filter(|status| *status != 0),
        "headers": headers,
        "body_bytes": answer.body.len(),
        "outcome_unknown": answer.outcome_unknown,
    });
    if bodies == Bodies::Shown {
        shown["body_base64"] = json!(STANDARD.encode(&answer.body));
    }
    shown
}

/// What happened to a record and will happen to it, in order, as far as its row, the audit trail and this process tell, which
/// knows about how often it was replayed and renewed.
pub(crate) fn timeline(
    entry: &Entry,
    trail: &[Audited],
    (replayed, renewed): (Option<Tallied>, Option<Tallied>),
    now: Timestamp,
) -> Vec<Value> {
    let (record, about) = (&entry.record, &entry.about);
    let is_over = |at: Timestamp| at <= now;
    let mut lines: Vec<(Timestamp, String)> = Vec::new();
    lines.push((
        record.created_at,
        match record.state {
            State::Sealed => "sealed before it took effect".to_owned(),
            _ => format!("claimed by request {}", about.request_id),
        },
    ));
    match record.state {
        State::Claimed if is_over(record.lease_until) => {
            lines.push((record.lease_until, "the lease ran out; the outcome is unknown".to_owned()));
        }
        State::Claimed => {
            lines.push((record.lease_until, "the lease runs out unless it is renewed".to_owned()))
        }
        State::Unknown if is_over(record.lease_until) => {
            lines
                .push((record.lease_until, "the lease ran out; unknown since then at the latest".to_owned()));
        }
        State::Unknown => lines.push((record.lease_until, "the lease would have run out".to_owned())),
        State::Settled | State::Unkept | State::Released | State::Sealed => {}
    }
    if Standing::of(Some(record), now) == Standing::Unknown {
        let text = match is_over(entry.late_until) {
            true => "the request can no longer take effect; `not-applied` is accepted since then",
            false => "until then the request may still take effect; `not-applied` is accepted after it",
        };
        lines.push((entry.late_until, text.to_owned()));
    }
    if let Some(at) = entry.settled_at.filter(|_| record.state != State::Sealed) {
        lines.push((at, ending(entry)));
    }
    if let Some(at) = record.expires_at {
        lines.push((at, if is_over(at) { "expired" } else { "expires" }.to_owned()));
    }
    for (tallied, what) in [(renewed, "renewed"), (replayed, "answered again from the record")] {
        let Some(Tallied { count, ago }) = tallied else { continue };
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        lines.push((
            now.minus(ago),
            format!("{what}, about {times} since this process started; the last time then"),
        ));
    }
    for row in trail {
        let reason = if row.reason.is_empty() { String::new() } else { format!(": {}", row.reason) };
        lines.push((row.at, format!("{} by {}{reason}", row.action, row.actor)));
    }
    lines.sort_by_key(|(at, _)| *at);
    lines
        .into_iter()
        .map(|(at, what)| json!({"at": at.to_string(), "what": what, "past": is_over(at)}))
        .collect()
}

fn ending(entry: &Entry) -> String {
    let status = entry.answer.as_ref().map(|answer| answer.status).filter(|status| *status != 0);
    let with = status.map(|status| format!(" with {status}")).unwrap_or_default();
    let unsure = entry.answer.as_ref().is_some_and(|answer| answer.outcome_unknown);
    let mark = if unsure { ", marked as of unknown outcome" } else { "" };
    match entry.record.state {
        State::Settled => format!("settled{with}{mark}"),
        State::Unkept => {
            let refused = status.is_some_and(|status| status >= 400);
            let what = match (unsure, refused) {
                (true, _) => "answered",
                (false, true) => "refused by the service",
                (false, false) => "took effect",
            };
            format!("{what}{with}{mark}; the answer is not kept")
        }
        State::Released => "released: it had no effect".to_owned(),
        State::Claimed | State::Unknown | State::Sealed => entry.record.state.name().to_owned(),
    }
}

/// A row of the audit trail.
pub(crate) fn audited(row: &Audited) -> Value {
    let record = row.fence.as_deref().and_then(|fence| fence.split('-').next());
    json!({
        "number": row.number.to_string(),
        "at": row.at.to_string(),
        "actor": row.actor,
        "action": row.action,
        "record": record,
        "key_hash": row.hash.map(|hash| hex(&hash)),
        "reason": row.reason,
        "count": row.count,
    })
}

/// What a sweep did.
pub(crate) fn swept(swept: &Swept) -> Value {
    json!({"removed": swept.removed, "unknown": swept.unknown, "released": swept.released})
}

/// A run of the sweeper.
pub(crate) fn cleanup(row: &Cleanup) -> Value {
    json!({
        "number": row.number.to_string(),
        "at": row.at.to_string(),
        "table": "record",
        "took_ms": row.took.as_millis() as u64,
        "removed": row.swept.removed,
        "unknown": row.swept.unknown,
        "released": row.swept.released,
    })
}

/// A count of stale actions.
pub(crate) fn stale(row: &StaleCount) -> Value {
    json!({
        "tenant": row.tenant,
        "principal": row.principal,
        "count": row.count,
        "first_at": row.first_at.to_string(),
        "last_at": row.last_at.to_string(),
    })
}

/// A restore.
pub(crate) fn restore(restore: &Restore) -> Value {
    json!({
        "backup_time": restore.backup_at.to_string(),
        "restored_at": restore.restored_at.to_string(),
        "undated": restore.undated.name(),
    })
}
