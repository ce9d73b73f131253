//! A storm's table and its JSON. Owns the words; judges nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::verdict::Row;

const COLUMNS: [&str; 10] =
    ["", "requests", "sent", "effects", "duplicates", "overlapping", "replays", "conflicts", "p50", "p99"];

/// The table, with what happened on the way beneath it.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut cells: Vec<Vec<String>> = vec![COLUMNS.iter().map(ToString::to_string).collect()];
    cells.extend(rows.iter().map(cells_of));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for row in &cells {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    for row in rows {
        text.push_str(&on_the_way(row));
    }
    text
}

fn cells_of(row: &Row) -> Vec<String> {
    let tally = &row.tally;
    let count = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    vec![
        row.name.clone(),
        tally.requests.to_string(),
        tally.sent.to_string(),
        count(row.effects),
        count(row.duplicates()),
        tally.overlapping.to_string(),
        tally.replays.to_string(),
        tally.conflicts.to_string(),
        time(tally.percentile(50)),
        time(tally.percentile(99)),
    ]
}

fn on_the_way(row: &Row) -> String {
    let tally = &row.tally;
    let mut words = vec![
        format!("{} clients timed out", tally.timeouts),
        format!("{} hung up", tally.disconnects),
        format!("{} different answers to {} requests", tally.distinct_answers, tally.requests),
    ];
    for (count, what) in [(tally.broken, "connections broke"), (tally.errors, "answers were 5xx")] {
        if count > 0 {
            words.push(format!("{count} {what}"));
        }
    }
    if row.effects.is_none() {
        words.push("effects were not counted (--effects-url)".to_owned());
    }
    format!("{}: {}\n", row.name, words.join(", "))
}

fn time(duration: Option<Duration>) -> String {
    match duration {
        None => "-".to_owned(),
        Some(time) if time < Duration::from_millis(10) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        Some(time) => format!("{} ms", time.as_millis()),
    }
}

/// The whole storm as one JSON object.
pub(crate) fn json(rows: &[Row], seed: u64, copies: u32, faults: &[String]) -> Value {
    let millis = |time: Option<Duration>| time.map(|time| time.as_micros() as f64 / 1000.0);
    let row = |row: &Row| {
        let tally = &row.tally;
        json!({
            "name": row.name,
            "url": row.url,
            "requests": tally.requests,
            "sent": tally.sent,
            "effects": row.effects,
            "duplicates": row.duplicates(),
            "overlapping_duplicates": tally.overlapping,
            "replays": tally.replays,
            "conflicts": tally.conflicts,
            "timeouts": tally.timeouts,
            "disconnects": tally.disconnects,
            "broken": tally.broken,
            "errors": tally.errors,
            "refused": tally.refused,
            "unanswered": tally.unanswered,
            "contradicted": tally.contradicted,
            "distinct_answers": tally.distinct_answers,
            "p50_ms": millis(tally.percentile(50)),
            "p99_ms": millis(tally.percentile(99)),
        })
    };
    json!({
        "seed": seed,
        "copies": copies,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "ok": faults.is_empty(),
        "faults": faults,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn columns_stand_under_each_other_and_what_is_not_known_is_a_question_mark() {
        let row = |name: &str, effects| {
            let mut tally = Tally::default();
            (tally.requests, tally.sent) = (3, 12);
            Row { name: name.to_owned(), url: String::new(), tally, effects }
        };
        let text = table(&[row("bare", Some(9)), row("through semel", None)]);
        let lines: Vec<&str> = text.lines().collect();
        let at = lines[0].find("effects").unwrap() + "effects".len() - 1;
        assert_eq!(&lines[1][at..=at], "9");
        assert_eq!(&lines[2][at..=at], "?");
        assert!(text.contains("through semel: 0 clients timed out"), "{text}");
    }
}
