//! Every requirement has its row, every row names tests that exist, and the page is what the rows say.

use super::files::{Tree, line_where};
use super::{Finding, Seen};
use crate::coverage::{PAGE, Row, SOURCE, faults, holds, page, read};

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let text = tree.text(SOURCE).ok_or(format!("{SOURCE} is gone"))?;
    let rows = read(&text)?;
    let line_of = |id: &str| line_where(&text, |line| line.trim() == format!("id = \"{id}\""));
    let mut findings: Vec<Finding> = faults(&rows)
        .into_iter()
        .map(|(id, what)| Finding::new(SOURCE, line_of(&id), format!("{id}: {what}")))
        .collect();
    let mut tests = 0;
    for row in &rows {
        if !is_named(row, &|path| tree.text(path)) {
            let what = format!("{}: a test of an acceptance names its row; none of its files does", row.id);
            findings.push(Finding::new(SOURCE, line_of(&row.id), what));
        }
        for test in &row.tests {
            tests += 1;
            let found = test
                .split_once("::")
                .is_some_and(|(path, name)| tree.text(path).is_some_and(|text| holds(path, name, &text)));
            if !found {
                let what =
                    format!("{}: there is no test `{test}`; write PATH::NAME of one that exists", row.id);
                findings.push(Finding::new(SOURCE, line_of(&row.id), what));
            }
        }
    }
    if tree.text(PAGE).as_deref() != Some(page(&rows).as_str()) {
        findings.push(Finding::new(PAGE, 1, "it is not what the rows say: run `cargo xtask coverage`"));
    }
    Ok(Seen { extent: format!("{} rows, {tests} names of tests", rows.len()), findings })
}

/// The rows by which a design is accepted: how they begin, the first number and the last.
const ACCEPTANCE: [(&str, u32, u32); 5] =
    [("S0-", 112, 115), ("S0-", 141, 148), ("S2-", 97, 114), ("S3-", 60, 63), ("S4-", 91, 98)];

/// Whether a file with one of its tests names this row, as `S4-91` or, in the name of a test, `s4_91`. Only of the rows of an acceptance.
fn is_named(row: &Row, read: &impl Fn(&str) -> Option<String>) -> bool {
    let is_in = |(start, first, last): (&str, u32, u32)| {
        let number = row.id.strip_prefix(start).and_then(|number| number.parse().ok());
        number.is_some_and(|number: u32| (first..=last).contains(&number))
    };
    let name = row.id.to_lowercase().replace('-', "_");
    let names = |test: &String| {
        let text = test.split_once("::").and_then(|(path, _)| read(path)).unwrap_or_default();
        text.contains(&row.id) || text.contains(&name)
    };
    !ACCEPTANCE.into_iter().any(is_in) || row.tests.iter().any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_an_acceptance_names_its_row() {
        let text = |id: &str| {
            let row = |table: &str, id: &str| {
                format!("[[{table}]]\nid = \"{id}\"\nasks = \"x\"\ntests = [\"a.rs::it\"]\n")
            };
            read(&[row("row", id), row("conflict", "C1"), row("gap", "G0-1")].concat()).unwrap().remove(0)
        };
        let named = |id: &str, file: &str| is_named(&text(id), &|_| Some(file.to_owned()));
        assert!(named("S4-91", "fn s4_91_a_restart() {}") && named("S2-108", "// S2-07, S2-108"));
        assert!(!named("S2-108", "// S2-07") && !named("S0-115", ""));
        assert!(named("S0-116", "") && named("S2-96", ""), "these are no acceptance");
    }
}
