//! Rows as aligned text. What a client chose is shown without control characters: a key must not move a terminal's cursor.

/// The widest column; longer texts are cut, and `--json` has them whole.
const WIDTH_MAX: usize = 48;

/// Aligned rows below their heads; only the heads where there are none.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let shown: Vec<Vec<String>> = std::iter::once(heads.iter().map(|head| (*head).to_owned()).collect())
        .chain(rows.iter().map(|row| row.iter().map(|cell| cut(&plain(cell))).collect()))
        .collect();
    let width = |at: usize| shown.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    shown.iter().map(line).collect()
}

/// A text without what a terminal would act upon.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn cut(text: &str) -> String {
    match text.chars().count() > WIDTH_MAX {
        true => text.chars().take(WIDTH_MAX - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_terminals_are_left_alone() {
        let rows = [vec!["1".to_owned(), "\u{1b}[2J".to_owned()], vec!["22".to_owned(), "x".repeat(99)]];
        let shown = table(&["ID", "KEY"], &rows);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines[0], lines[1]), ("ID  KEY", "1   \u{fffd}[2J"));
        assert_eq!(lines[2].chars().count(), 4 + WIDTH_MAX);
    }
}
