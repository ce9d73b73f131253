//! The examination's lines and its JSON. Owns the words; judges nothing.

use serde_json::{Value, json};

use super::clause::{Clause, DRAFT, Outcome};
use crate::style;

/// One line for each clause, and a sum.
pub(crate) fn text(url: &str, outcomes: &[(Clause, Outcome)]) -> String {
    let mut text = format!("{url} by {DRAFT}\n\n");
    for (clause, outcome) in outcomes {
        let mark = match outcome {
            Outcome::Pass(_) => "pass",
            Outcome::Fail(_) => "FAIL",
            Outcome::Skipped(_) => "skip",
        };
        text.push_str(&format!(
            "{}  {:<12}  section {:<3}  {:<6}  {}: {}\n",
            style::word(mark, mark.to_owned()),
            clause.name(),
            clause.section(),
            clause.level(),
            clause.words(),
            outcome.why(),
        ));
    }
    let [passed, failed, skipped] = sums(outcomes);
    text.push_str(&format!("\n{passed} passed, {failed} failed, {skipped} skipped\n"));
    text
}

/// The same as one JSON object.
pub(crate) fn json(url: &str, outcomes: &[(Clause, Outcome)]) -> Value {
    let clause = |(clause, outcome): &(Clause, Outcome)| {
        json!({
            "clause": clause.name(),
            "section": clause.section(),
            "level": clause.level(),
            "words": clause.words(),
            "result": outcome.name(),
            "why": outcome.why(),
        })
    };
    let [passed, failed, skipped] = sums(outcomes);
    json!({
        "draft": DRAFT,
        "url": url,
        "clauses": outcomes.iter().map(clause).collect::<Vec<_>>(),
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "ok": failed == 0,
    })
}

fn sums(outcomes: &[(Clause, Outcome)]) -> [usize; 3] {
    ["pass", "fail", "skipped"]
        .map(|name| outcomes.iter().filter(|(_, outcome)| outcome.name() == name).count())
}
