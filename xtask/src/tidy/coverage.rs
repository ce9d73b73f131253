//! Every requirement has its row, every row names tests that exist, and the page is what the rows say.

use super::files::{Tree, line_where};
use super::{Finding, Seen};
use crate::coverage::{PAGE, SOURCE, faults, holds, page, read};

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
