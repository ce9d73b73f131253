//! What commands print: for people, or JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::Value;

use crate::exit::{Exit, Stop};
use crate::output_failed;

/// Prints an answer.
pub(super) fn print(as_json: bool, told: &Value, for_people: fn(&Value) -> String) -> Result<Exit, Stop> {
    let text = if as_json { format!("{told:#}\n") } else { for_people(told) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// One message in one line.
pub(super) fn line(told: &Value) -> String {
    let mut line = format!("{} {}", text(&told["status"]), text(&told["client_message_id"]));
    if let Some(status) = told["response"]["status"].as_u64() {
        let _ = write!(line, " HTTP {status}");
    }
    if let Some(error) = told["last_error"].as_str() {
        let _ = write!(line, " ({error})");
    }
    line + "\n"
}

/// A list.
pub(super) fn list(told: &Value) -> String {
    let rows = told["messages"].as_array().cloned().unwrap_or_default();
    if rows.is_empty() {
        return "no messages\n".to_owned();
    }
    let mut lines = format!(
        "{:>7}  {:<9} {:>8}  {:<16} {:<36} {}\n",
        "row", "status", "attempts", "lane", "id", "last error"
    );
    for row in &rows {
        let _ = writeln!(
            lines,
            "{:>7}  {:<9} {:>8}  {:<16} {:<36} {}",
            text(&row["id"]),
            text(&row["status"]),
            text(&row["attempts"]),
            text(&row["lane"]),
            text(&row["client_message_id"]),
            text(&row["last_error"]),
        );
    }
    if let Some(after) = told["next_after"].as_i64() {
        let _ = writeln!(lines, "more: --after {after}");
    }
    lines
}

/// A message in full.
pub(super) fn message(told: &Value) -> String {
    let mut lines = String::new();
    let names = [
        "id",
        "client_message_id",
        "alias_of",
        "status",
        "held_for",
        "lane",
        "principal",
        "logical_key",
        "method",
        "url",
        "request_fingerprint",
        "enqueued_at",
        "attempts",
        "first_attempt_at",
        "next_attempt_at",
        "last_error",
        "delivered_at",
        "broker_message_id",
        "history_id",
        "aborted_at",
        "aborted_by",
        "superseded_by",
        "supersedes",
        "possibly_delivered",
        "possibly_repeated",
    ];
    for name in names.iter().filter(|name| !told[**name].is_null()) {
        let _ = writeln!(lines, "{name:<20} {}", text(&told[*name]));
    }
    if let Some(status) = told["response"]["status"].as_u64() {
        let _ = writeln!(lines, "{:<20} {status} {}", "response", text(&told["response"]["body"]));
    }
    for attempt in told["log"].as_array().into_iter().flatten() {
        let _ = writeln!(
            lines,
            "attempt {:<12} {} {} {} {}",
            text(&attempt["number"]),
            text(&attempt["started_at"]),
            text(&attempt["outcome"]),
            text(&attempt["status"]),
            text(&attempt["error"]),
        );
    }
    let chain = told["chain"].as_array().cloned().unwrap_or_default();
    if chain.len() > 1 {
        let _ = writeln!(lines, "chain");
        for link in &chain {
            let doubt = if link["possibly_delivered"] == true { " possibly delivered" } else { "" };
            let _ = writeln!(
                lines,
                "  {:>7}  {} {}{doubt}",
                text(&link["id"]),
                text(&link["client_message_id"]),
                text(&link["status"])
            );
        }
    }
    lines
}

/// A requeue.
pub(super) fn requeued(told: &Value) -> String {
    let (old, new) = (&told["old"], &told["new"]);
    let about = match (told["sealed"].as_bool(), told["possibly_delivered"].as_bool()) {
        (Some(true), _) => "; the old id is sealed at the server",
        (_, Some(true)) => "; the old message was possibly delivered",
        _ => "",
    };
    format!(
        "{} is aborted, {} (row {}) takes its place{about}\n",
        text(&old["client_message_id"]),
        text(&new["client_message_id"]),
        text(&new["id"])
    )
}

/// A lane.
pub(super) fn lane(told: &Value) -> String {
    let state = if told["paused"] == true { "paused" } else { "open" };
    format!("{} is {state}, {} messages wait\n", text(&told["lane"]), text(&told["depth"]))
}
