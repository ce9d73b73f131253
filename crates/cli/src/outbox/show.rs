//! What commands print: for people, or JSON.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use semel_contract::time::format_duration;
use serde_json::Value;

use crate::exit::{Exit, Stop};
use crate::gate::table::{summary, table_of_sentences};
use crate::output_failed;

/// Prints an answer.
pub(crate) fn print(
    as_json: bool,
    told: &Value,
    for_people: impl Fn(&Value) -> String,
) -> Result<Exit, Stop> {
    let text = if as_json { format!("{told:#}\n") } else { for_people(told) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // Texts of others must not move a terminal's cursor.
        Value::String(text) => crate::gate::table::plain(text),
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
    let mut lines = String::new();
    if let Some(jump) = told["clock_jump_ms"].as_u64() {
        let ahead = format_duration(Duration::from_secs(jump / 1000));
        let _ = writeln!(
            lines,
            "the clock jumped ahead by {ahead}, and nothing expires until that is confirmed: semel outbox clock"
        );
    }
    if rows.is_empty() {
        return lines + "no messages\n";
    }
    let row = |row: &Value| {
        let why = if row["waits_for"].is_null() { &row["last_error"] } else { &row["waits_for"] };
        [&row["id"], &row["status"], &row["attempts"], &row["lane"], &row["client_message_id"], why]
            .map(text)
            .to_vec()
    };
    let heads = ["ROW", "STATE", "ATTEMPTS", "LANE", "KEY", "WAITS FOR, OR LAST ERROR"];
    lines += &table_of_sentences(&heads, &rows.iter().map(row).collect::<Vec<_>>());
    for (name, flag) in [("next_after", "--after"), ("next_before", "--before")] {
        if let Some(number) = told[name].as_i64() {
            let _ = writeln!(lines, "more: the same with {flag} {number}");
        }
    }
    lines + &summary(&rows, "state", "message")
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
        "waits_for",
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

fn state_of(lane: &Value) -> &'static str {
    match (lane["paused"] == true, lane["blocked_by"].is_null(), lane["head_status"] == "held") {
        (true, _, _) => "paused",
        (false, false, _) => "blocked",
        (false, true, true) => "held",
        (false, true, false) => "open",
    }
}

/// A lane.
pub(super) fn lane(told: &Value) -> String {
    let depth = match told["depth"].as_u64() {
        Some(1) => "1 message waits".to_owned(),
        _ => format!("{} messages wait", text(&told["depth"])),
    };
    let why =
        told["waits_for"].as_str().map(|why| format!("; the first waits for {why}")).unwrap_or_default();
    format!("{} is {}, {depth}{why}\n", text(&told["lane"]), state_of(told))
}

/// All lanes.
pub(super) fn lanes(told: &Value) -> String {
    let lanes = told["lanes"].as_array().cloned().unwrap_or_default();
    if lanes.is_empty() {
        return "nothing waits, and no lane is paused or blocked\n".to_owned();
    }
    let mut lines = format!("{:<24} {:<8} {:>7}  {}\n", "lane", "state", "waiting", "the first waits for");
    for lane in &lanes {
        let _ = writeln!(
            lines,
            "{:<24} {:<8} {:>7}  {}",
            text(&lane["lane"]),
            state_of(lane),
            text(&lane["depth"]),
            text(&lane["waits_for"]),
        );
    }
    lines
}

/// Holds, and for whom credentials were given.
pub(super) fn credentials(told: &Value) -> String {
    let mut lines = String::new();
    for hold in told["holds"].as_array().into_iter().flatten() {
        let _ = writeln!(
            lines,
            "{} refuses the credential of {}, messages held: {}",
            text(&hold["origin"]),
            text(&hold["principal"]),
            text(&hold["held"]),
        );
    }
    for given in told["given"].as_array().into_iter().flatten() {
        let _ =
            writeln!(lines, "{} has a credential for {}", text(&given["principal"]), text(&given["origin"]));
    }
    match lines.is_empty() {
        true => "no credential is refused, and none was given by a call\n".to_owned(),
        false => lines,
    }
}

/// A release.
pub(super) fn released(told: &Value) -> String {
    let lanes: Vec<&str> = told["lanes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    format!("messages of {} are tried again, lanes: {}\n", text(&told["principal"]), lanes.join(", "))
}
