//! The guides about settling and about the ways to once show code that is compiled: each of their Rust blocks is found in the
//! sources, line by line.

use std::fs;
use std::path::{Path, PathBuf};

/// A guide, and how many blocks it shows at least.
const GUIDES: [(&str, usize); 2] = [
    (include_str!("../../../docs/guides/settling.md"), 5),
    (include_str!("../../../docs/guides/once.md"), 1),
];
/// Where its code is taken from. The last is compiled by itself, with a lock file of its own.
const SOURCES: [&str; 3] = ["examples/orders/src", "examples/orders/tests", "integrations/sqlx/tests"];

fn blocks(guide: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    guide.split(fence.as_str()).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect()
}

fn sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |folder: &str| fs::read_dir(root.join(folder)).expect("a folder");
    let paths = SOURCES.iter().flat_map(|folder| files(folder)).map(|entry| entry.expect("an entry").path());
    let rust: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect();
    rust.iter().map(|path| fs::read_to_string(path).expect("a text")).collect()
}

#[test]
fn every_rust_block_of_the_guide_is_compiled_somewhere() {
    let sources = sources();
    for (guide, least) in GUIDES {
        let blocks = blocks(guide, "rust");
        assert!(blocks.len() >= least, "the guide shows code");
        for block in blocks {
            assert!(sources.iter().any(|source| source.contains(block)), "no source contains this:\n{block}");
        }
    }
}
