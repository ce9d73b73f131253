//! The relay's numbers, in the text form of Prometheus. Owns their names and what they mean.

use std::fmt::Write;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::response::IntoResponse;

use super::admin::{Admin, away};

/// What each number means.
const HELP: [(&str, &str); 16] = [
    ("score_outbox_pending_total", "Changes that wait: semel_relay_entries has them by state."),
    (
        "score_outbox_processed_total",
        "Changes that ended, by status: the same as semel_relay_processed_total.",
    ),
    ("score_outbox_retry_total", "Writes that were tried again: the same as semel_relay_retries_total."),
    ("semel_relay_entries", "Changes that are not done, by state."),
    ("semel_relay_lanes", "Lanes that stand still, by state."),
    ("semel_relay_processed_total", "Changes that ended, by status."),
    ("semel_relay_accepted_total", "Requests that were accepted."),
    ("semel_relay_replayed_total", "Requests that were known already."),
    ("semel_relay_retries_total", "Writes that were tried again."),
    ("semel_relay_calls_total", "Calls of targets."),
    ("semel_relay_calls_saved_total", "Calls that were not needed because changes were merged."),
    ("semel_relay_in_doubt_total", "Times that a lane came to be in doubt."),
    ("semel_relay_interference_total", "Times that somebody else had written what the relay writes."),
    ("semel_relay_unauthorized_total", "Times that a target refused a credential."),
    ("semel_relay_clock_frozen", "Whether the wall clock is ahead and not believed."),
    ("semel_relay_limited_total", "Times that a target asked to slow down."),
];

pub(super) async fn metrics(State(admin): State<Admin>) -> Response<Body> {
    let counts = match admin.engine.store.counts().await {
        Ok(counts) => counts,
        Err(error) => return away(&error),
    };
    let meters = &admin.engine.meters;
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, rows: &[(&str, i64)]| {
        let help = HELP.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let n = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let waiting = counts.pending + counts.parked;
    let processed = [
        ("{status=\"completed\"}", n(meters.completed.get())),
        ("{status=\"failed\"}", n(meters.failed.get())),
    ];
    one("score_outbox_pending_total", "gauge", &[("", waiting)]);
    one("score_outbox_processed_total", "counter", &processed);
    one("score_outbox_retry_total", "counter", &[("", n(meters.retries.get()))]);
    one(
        "semel_relay_entries",
        "gauge",
        &[
            ("{state=\"pending\"}", counts.pending),
            ("{state=\"parked\"}", counts.parked),
            ("{state=\"dead\"}", counts.dead),
        ],
    );
    one(
        "semel_relay_lanes",
        "gauge",
        &[("{state=\"in-doubt\"}", counts.in_doubt), ("{state=\"blocked\"}", counts.blocked)],
    );
    one("semel_relay_processed_total", "counter", &processed);
    for (name, value) in [
        ("semel_relay_accepted_total", &meters.accepted),
        ("semel_relay_replayed_total", &meters.replayed),
        ("semel_relay_retries_total", &meters.retries),
        ("semel_relay_calls_total", &meters.calls),
        ("semel_relay_calls_saved_total", &meters.calls_saved),
        ("semel_relay_in_doubt_total", &meters.in_doubt),
        ("semel_relay_interference_total", &meters.interference),
        ("semel_relay_unauthorized_total", &meters.unauthorized),
        ("semel_relay_limited_total", &meters.limited),
    ] {
        one(name, "counter", &[("", n(value.get()))]);
    }
    let frozen = i64::from(admin.engine.store.clock_ahead() != 0);
    one("semel_relay_clock_frozen", "gauge", &[("", frozen)]);
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}
