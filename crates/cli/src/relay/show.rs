//! How lanes look in a terminal.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use semel_contract::time::format_duration;
use serde_json::Value;

use crate::exit::{Exit, Stop};
use crate::gate::table::{summary, table_of_sentences};
use crate::output_failed;

/// Prints a text.
pub(crate) fn print(text: &str) -> Result<Exit, Stop> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

/// JSON for people.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A value without quotes; nothing where there is none. Control characters of others' texts do nothing here.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        other => other.to_string(),
    }
}

/// Lanes as a table.
pub(crate) fn table(found: &Value) -> String {
    const COLUMNS: [(&str, &str); 7] = [
        ("ID", "id"),
        ("TARGET", "target"),
        ("GROUP", "group"),
        ("LANE", "lane"),
        ("STATE", "standing"),
        ("APPLIED", "applied"),
        ("LAST ERROR", "last_error"),
    ];
    let lanes = found["lanes"].as_array().cloned().unwrap_or_default();
    let mut text = String::new();
    if let Some(jump) = found["clock_jump_ms"].as_u64() {
        let ahead = format_duration(Duration::from_secs(jump / 1000));
        let _ = writeln!(
            text,
            "the clock jumped ahead by {ahead}, and nothing is swept until that is confirmed: semel relay clock"
        );
    }
    if lanes.is_empty() {
        return text + "no lanes\n";
    }
    let row = |lane: &Value| COLUMNS.map(|(_, field)| plain(&lane[field])).to_vec();
    let rows: Vec<Vec<String>> = lanes.iter().map(row).collect();
    text += &table_of_sentences(&COLUMNS.map(|(title, _)| title), &rows);
    for (name, flag) in [("next_after", "--after"), ("next_before", "--before")] {
        if let Some(number) = found[name].as_i64() {
            let _ = writeln!(text, "more: the same with {flag} {number}");
        }
    }
    text + &summary(&lanes, "standing", "lane")
}

/// One lane with all that is known.
pub(crate) fn lane(found: &Value) -> String {
    let mut text = String::new();
    for field in
        ["id", "target", "group", "lane", "label", "state", "applied", "attempts", "last_error", "due_at"]
    {
        let _ = writeln!(text, "{field:<11} {}", plain(&found[field]));
    }
    if !found["intent"].is_null() {
        let _ = writeln!(
            text,
            "\nfrozen batch, which may have been applied (in-doubt is the relay's word for unknown):"
        );
        for field in [
            "sender",
            "after_seq",
            "up_to_seq",
            "before",
            "after",
            "version",
            "key",
            "tries",
            "first_at",
            "last_at",
        ] {
            let _ = writeln!(text, "  {field:<10} {}", plain(&found["intent"][field]));
        }
        for seen in found["intent"]["evidence"].as_array().into_iter().flatten() {
            let _ = writeln!(
                text,
                "  seen at {}: {}, value {}",
                plain(&seen["at"]),
                plain(&seen["what"]),
                plain(&seen["value"])
            );
        }
    }
    for (title, field) in [("waiting", "entries"), ("held", "held")] {
        let rows = found[field].as_array().cloned().unwrap_or_default();
        if !rows.is_empty() {
            let _ = writeln!(text, "\n{title}:");
        }
        for row in rows {
            let state = row
                .get("state")
                .map_or_else(String::new, |state| format!(" {} ({})", plain(state), plain(&row["why"])));
            let _ = writeln!(text, "  {} {} {}{state}", row["seq"], plain(&row["principal"]), row["value"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A width beyond 65,535 is more than the standard library formats.
    #[test]
    fn a_text_without_end_does_not_break_the_table() {
        let lanes = json!({"lanes": [{"id": 7, "lane": "a", "last_error": "x".repeat(70_000)}]});
        let text = table(&lanes);
        assert!(text.lines().all(|line| line.chars().count() < 700), "{}", text.len());
        assert!(text.contains("xxx") && text.contains('…'));
    }
}
