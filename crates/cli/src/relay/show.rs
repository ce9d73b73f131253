//! How lanes look in a terminal.

use std::fmt::Write as _;
use std::io::Write as _;

use semel_delivery::limits::shorten;
use serde_json::Value;

use crate::exit::{Exit, Stop};
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

/// Characters of one cell: a table fits a wide terminal, whatever others wrote.
const CELL_CHARS_MAX: usize = 60;

/// Lanes as a table.
pub(crate) fn table(found: &Value) -> String {
    const COLUMNS: [(&str, &str); 7] = [
        ("ID", "id"),
        ("TARGET", "target"),
        ("GROUP", "group"),
        ("LANE", "lane"),
        ("STATE", "state"),
        ("APPLIED", "applied"),
        ("LAST ERROR", "last_error"),
    ];
    let mut rows = vec![COLUMNS.map(|(title, _)| title.to_owned())];
    for lane in found["lanes"].as_array().into_iter().flatten() {
        rows.push(COLUMNS.map(|(_, field)| shorten(&plain(&lane[field]), CELL_CHARS_MAX)));
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// One lane with all that is known.
pub(crate) fn lane(found: &Value) -> String {
    let mut text = String::new();
    for field in
        ["id", "target", "group", "lane", "label", "state", "applied", "attempts", "last_error", "due_ms"]
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
            "first_ms",
            "last_ms",
        ] {
            let _ = writeln!(text, "  {field:<10} {}", plain(&found["intent"][field]));
        }
        for seen in found["intent"]["evidence"].as_array().into_iter().flatten() {
            let _ = writeln!(
                text,
                "  seen at {}: {}, value {}",
                seen["at_ms"],
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
        assert!(text.lines().all(|line| line.chars().count() < 200), "{}", text.len());
        assert!(text.contains("xxx") && text.contains('…'));
    }
}
