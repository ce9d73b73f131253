//! Every Rust file opens by saying what it owns and what it refuses, in a `//!` on its first line. Whether the
//! sentence is a good one is for the reader.

use super::files::Tree;
use super::{Finding, Seen};

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let mut seen = Seen { extent: String::new(), findings: Vec::new() };
    let mut count = 0;
    for (file, text) in tree.texts(".rs") {
        count += 1;
        seen.findings.extend(judge(file, &text));
    }
    seen.extent = format!("{count} Rust files");
    Ok(seen)
}

fn judge(file: &str, text: &str) -> Option<Finding> {
    let first = text.lines().next().unwrap_or_default();
    let says_something = first.strip_prefix("//!").is_some_and(|rest| !rest.trim().is_empty());
    let what = "the first line must be a `//!` sentence: say what this file owns and what it refuses";
    (!says_something).then(|| Finding::new(file, 1, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_sentence_on_its_first_line_is_found() {
        for text in ["use std::fmt;\n", "\n//! Late.\n", "// Plain.\n", "//!\n", ""] {
            assert!(judge("src/x.rs", text).is_some(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_introduces_itself_is_fine() {
        assert_eq!(judge("src/x.rs", "//! Owns the keys.\n#![allow(x)]\n"), None);
    }
}
