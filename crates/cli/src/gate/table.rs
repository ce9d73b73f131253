//! Rows as aligned text. What a client chose is shown without control characters: a key must not move a terminal's cursor.

use std::collections::BTreeMap;

use serde_json::Value;

use super::confirm::counted;
use crate::style;

/// The widest column; longer texts are cut, and `--json` has them whole.
const WIDTH_MAX: usize = 48;

/// The longest sentence: no text of others breaks a table.
const SENTENCE_MAX: usize = 600;

/// The narrowest that a column is made so that a table fits.
const WIDTH_MIN: usize = 8;

/// Aligned rows below their heads; only the heads where there are none. Fits the terminal, where there is one.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    table_within(heads, rows, style::columns(), WIDTH_MAX)
}

/// The same, and the last column is a sentence, which is cut by the terminal alone.
pub(crate) fn table_of_sentences(heads: &[&str], rows: &[Vec<String>]) -> String {
    table_within(heads, rows, style::columns(), SENTENCE_MAX)
}

/// How many rows were shown, and how many in which state.
pub(crate) fn summary(rows: &[Value], state: &str, noun: &str) -> String {
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *states.entry(row[state].as_str().unwrap_or_default()).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    format!("{}: {}\n", counted(rows.len() as u64, noun), states.join(", "))
}

fn table_within(heads: &[&str], rows: &[Vec<String>], columns: Option<usize>, last_max: usize) -> String {
    let shown: Vec<Vec<String>> = std::iter::once(heads.iter().map(|head| (*head).to_owned()).collect())
        .chain(rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()))
        .collect();
    let width = |at: usize| {
        let most = if at + 1 == heads.len() { last_max } else { WIDTH_MAX };
        shown.iter().map(|row| row[at].chars().count()).max().unwrap_or(0).min(most)
    };
    let widths = fitted((0..heads.len()).map(width).collect(), columns);
    let cell = |(cell, width): (&String, &usize)| {
        let padded = format!("{:<width$}", cut(cell, *width));
        style::word(cell, padded)
    };
    let line = |row: &Vec<String>| {
        format!("{}\n", row.iter().zip(&widths).map(cell).collect::<Vec<_>>().join("  ").trim_end())
    };
    shown.iter().map(line).collect()
}

/// Takes from the widest columns what is too much.
fn fitted(mut widths: Vec<usize>, columns: Option<usize>) -> Vec<usize> {
    let Some(columns) = columns else { return widths };
    let gaps = 2 * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > columns {
        match widths.iter_mut().max() {
            Some(widest) if *widest > WIDTH_MIN => *widest -= 1,
            Some(_) | None => break,
        }
    }
    widths
}

/// A text without what a terminal would act upon.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_terminals_are_left_alone() {
        let rows = [vec!["1".to_owned(), "\u{1b}[2J".to_owned()], vec!["22".to_owned(), "x".repeat(99)]];
        let shown = table_within(&["ID", "KEY"], &rows, None, WIDTH_MAX);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines[0], lines[1]), ("ID  KEY", "1   \u{fffd}[2J"));
        assert_eq!(lines[2].chars().count(), 4 + WIDTH_MAX);
        let narrow = table_within(&["ID", "KEY"], &rows, Some(30), WIDTH_MAX);
        assert!(narrow.lines().all(|line| line.chars().count() <= 30), "{narrow}");
        let sentences = table_within(&["ID", "KEY"], &rows, None, SENTENCE_MAX);
        assert!(sentences.contains(&"x".repeat(99)), "a sentence is not cut: {sentences}");
    }
}
