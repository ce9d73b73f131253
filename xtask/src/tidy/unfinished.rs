//! What is in the tree is finished: no notes to oneself, no holes in place of code, no test that is left out.
//! Looks at Rust files only, comments included.

use super::files::Tree;
use super::{Finding, Seen};

/// What is searched for and what to do about it. Each mark is written in two halves, because this file is
/// searched too.
const MARKS: [(&str, &str, &str); 5] = [
    ("TO", "DO", "a note to oneself: do it, or write down what is true today"),
    ("FIX", "ME", "a note to oneself: do it, or write down what is true today"),
    ("todo", "!(", "a hole: write the code"),
    ("unimplemented", "!(", "a hole: write the code"),
    ("#[ign", "ore", "a test that is left out: repair it or remove it"),
];

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let mut count = 0;
    let mut findings = Vec::new();
    for (file, text) in tree.texts(".rs") {
        count += 1;
        findings.extend(judge(file, &text));
    }
    Ok(Seen { extent: format!("{count} Rust files"), findings })
}

fn judge(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (first, second, what) in MARKS {
            let mark = format!("{first}{second}");
            if stands_alone(line, &mark) {
                findings.push(Finding::new(file, index + 1, format!("`{mark}` is {what}")));
            }
        }
    }
    findings
}

/// Whether the mark occurs and is not part of a longer word.
fn stands_alone(line: &str, mark: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(mark).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + mark.len()..].chars().next();
        let starts_earlier = before.is_some_and(is_word);
        let ends_later = mark.ends_with(is_word) && after.is_some_and(is_word);
        !starts_earlier && !ends_later
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found_where_it_stands() {
        for (first, second, _) in MARKS {
            let text = format!("//! Owns.\n    // x {first}{second} y\n");
            let findings = judge("src/x.rs", &text);
            assert_eq!(findings.len(), 1, "{text}");
            assert_eq!(findings[0].line, 2);
        }
    }

    #[test]
    fn a_longer_word_is_not_a_mark() {
        assert_eq!(judge("src/x.rs", "const MASTODON: u8 = 1; // AUTODOC\n"), []);
        let longer = format!("let x = my_{}{}", "todo", "!();");
        assert_eq!(judge("src/x.rs", &longer), []);
    }
}
