//! `cargo xtask lines`: lines of product code, so that a rebuilt house can be held against the one before. Owns what a line of
//! code is: one with a word on it that is neither comment nor test.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;

use crate::source::modules::Modules;
use crate::source::{without_tests, words};

/// Count the lines of product code, here or at revisions.
///
/// Counts the lines of code below crates/*/src at each revision, by crate: without tests, blank lines and comments. Without a
/// revision, those of the files as they lie here.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "REVISION")]
    revisions: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.revisions.as_slice() {
        [] => {
            let root = process::repository();
            let names = git(&["ls-files", "crates"])?;
            println!("{}", table("here", &names, &|file| std::fs::read_to_string(root.join(file)).ok()));
        }
        revisions => {
            for revision in revisions {
                let names = git(&["ls-tree", "-r", "--name-only", revision, "crates"])?;
                println!(
                    "{}",
                    table(revision, &names, &|file| git(&["show", &format!("{revision}:{file}")]).ok())
                );
            }
        }
    }
    Ok(())
}

fn git(args: &[&str]) -> Result<String, String> {
    process::read(Command::new("git").args(args).current_dir(process::repository()))
}

fn table(title: &str, names: &str, read: &impl Fn(&str) -> Option<String>) -> String {
    let names: BTreeSet<&str> = names.lines().collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let read = |file: &str| names.contains(file).then(|| read(file)).flatten();
    let is_root = |file: &&&str| file.ends_with("/src/lib.rs") || file.ends_with("/src/main.rs");
    for root in names.iter().filter(is_root) {
        let room = root.split('/').nth(1).unwrap_or(root);
        let files = Modules::of(root, &read);
        let lines = files.files().iter().filter_map(|file| read(file)).map(|text| lines(&text));
        *counts.entry(room).or_default() += lines.sum::<usize>();
    }
    let total = ("total", counts.values().sum());
    let rows = counts.into_iter().chain([total]).map(|(room, lines)| format!("\n{room:12}{lines:>8}"));
    std::iter::once(format!("{title}: lines of product code")).chain(rows).collect()
}

/// The lines of a file that have code on them. A text over several lines counts where it begins.
fn lines(text: &str) -> usize {
    without_tests(&words(text)).iter().map(|word| word.line).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_are_not_counted() {
        assert_eq!(
            lines(
                "//! Owns.\n\nuse a; // why\n/* b\n */\nfn f() {\n}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n"
            ),
            3
        );
    }

    #[test]
    fn files_that_are_for_tests_only_are_not_counted() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod c;\n"),
            ("crates/a/src/b.rs", "fn f() {}\n"),
            ("crates/a/src/c.rs", "fn f() {}\n"),
            ("crates/a/tests/d.rs", "fn f() {}\n"),
        ];
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        let read =
            |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        let table = table("here", &names.join("\n"), &read);
        assert!(table.ends_with("total              2"), "{table}");
    }
}
