//! Results as text: for a terminal and for the documents.

use super::Bench;
use super::result::{Outcome, Row};

const HEADS: [&str; 9] =
    ["contestant", "per second", "p50 ms", "p99 ms", "stall ms", "spread", "CPU µs", "syncs", "disk bytes"];

/// The table for a terminal.
pub(crate) fn plain(bench: &Bench, outcome: &Outcome) -> String {
    let mut lines = vec![format!("\n{}: {}", bench.name, bench.about)];
    let rows: Vec<[String; 9]> =
        std::iter::once(HEADS.map(str::to_owned)).chain(outcome.rows.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        lines.push(cells.collect::<Vec<_>>().join("  "));
    }
    lines.extend(verdicts(outcome));
    lines.extend(outcome.absent.iter().map(|(name, why)| format!("absent: {name}: {}", first_line(why))));
    lines.extend(outcome.notes.iter().map(|note| format!("note: {note}")));
    if outcome.noisy {
        lines.push(NOISY.to_owned());
    }
    lines.join("\n")
}

/// The table for the documents.
pub(crate) fn markdown(outcome: &Outcome) -> String {
    let mut lines = vec![
        format!("| {} | before the answer |", HEADS.join(" | ")),
        format!("|{}", " --- |".repeat(HEADS.len() + 1)),
    ];
    for row in &outcome.rows {
        lines.push(format!("| {} | {} |", cells(row).join(" | "), row.durability));
    }
    for (name, why) in &outcome.absent {
        lines.push(format!("| {name} | absent |{} {} |", " |".repeat(HEADS.len() - 2), first_line(why)));
    }
    if !outcome.verdicts.is_empty() {
        lines.push("\n| target | found | |\n| --- | --- | --- |".to_owned());
        for verdict in &outcome.verdicts {
            let word = if verdict.holds { "holds" } else { "**behind**" };
            lines.push(format!("| {} | {} | {word} |", verdict.what, verdict.found));
        }
    }
    if !outcome.notes.is_empty() {
        lines.push(String::new());
        lines.extend(outcome.notes.iter().map(|note| format!("- {note}")));
    }
    if outcome.noisy {
        lines.push(format!("\n**{NOISY}**"));
    }
    lines.join("\n")
}

const NOISY: &str =
    "Too noisy: the plain proxy reached less than 0.7 of nginx. Repeat this on a quiet machine.";

fn verdicts(outcome: &Outcome) -> Vec<String> {
    let line = |verdict: &super::result::Verdict| {
        let word = if verdict.holds { "holds " } else { "BEHIND" };
        format!("{word}  {}: {}", verdict.what, verdict.found)
    };
    outcome.verdicts.iter().map(line).collect()
}

fn cells(row: &Row) -> [String; 9] {
    let shown =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    [
        row.name.clone(),
        thousands(row.rate()),
        shown(row.median(|sample| sample.p50_ms), 2),
        shown(row.median(|sample| sample.p99_ms), 1),
        shown(row.stall_ms(), 0),
        format!("{:.0} %", row.spread() * 100.0),
        shown(row.median(|sample| sample.cpu_us), 0),
        shown(row.median(|sample| sample.syncs), 2),
        row.median(|sample| sample.disk_bytes).map_or("-".to_owned(), thousands),
    ]
}

/// A number with commas, as in 12,345.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::result::{Sample, Verdict};
    use super::*;

    fn outcome() -> Outcome {
        let sample = Sample { rate: 12_345.0, p99_ms: Some(4.25), ..Sample::default() };
        Outcome {
            rows: vec![Row {
                name: "one".to_owned(),
                durability: "keeps nothing".to_owned(),
                samples: vec![sample],
            }],
            verdicts: vec![Verdict {
                what: "one is quick".to_owned(),
                found: "0.10".to_owned(),
                holds: false,
            }],
            absent: vec![("two".to_owned(), "not installed\nat all".to_owned())],
            ..Outcome::default()
        }
    }

    #[test]
    fn nothing_is_left_out_of_either_table() {
        let bench = &super::super::BENCHES[0];
        for text in [plain(bench, &outcome()), markdown(&outcome())] {
            for part in ["12,345", "one is quick", "0.10", "two", "not installed"] {
                assert!(text.contains(part), "{part} is not in\n{text}");
            }
            assert!(!text.contains("at all") && !text.contains("oo noisy"));
        }
        assert!(markdown(&Outcome { noisy: true, ..outcome() }).contains("Too noisy"));
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0.0, 999.0, 1000.0, 1_234_567.0].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
