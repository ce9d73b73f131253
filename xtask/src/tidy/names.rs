//! Names that say nothing are not names: a file, folder or module called so becomes the place where everything
//! falls. Judges whole names only, never parts of them.

use super::files::Tree;
use super::{Finding, Seen};

const SAY_NOTHING: [&str; 6] = ["util", "utils", "helper", "helpers", "common", "misc"];

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let mut findings: Vec<Finding> = tree.files().iter().filter_map(|file| judge_path(file)).collect();
    for (file, text) in tree.texts(".rs") {
        findings.extend(judge_modules(file, &text));
    }
    Ok(Seen { extent: format!("{} files", tree.files().len()), findings })
}

fn judge_path(file: &str) -> Option<Finding> {
    let stems = file.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let name = stems.into_iter().find(|stem| says_nothing(stem))?;
    Some(Finding::new(file, 1, format!("`{name}` is not a name: call it by what it owns")))
}

fn judge_modules(file: &str, text: &str) -> Vec<Finding> {
    let modules = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, module_name(line)?)));
    modules
        .filter(|(_, name)| says_nothing(name))
        .map(|(line, name)| {
            Finding::new(file, line, format!("`{name}` is not a name for a module: call it by what it owns"))
        })
        .collect()
}

/// The module that a line declares, as in `pub(crate) mod name;`.
fn module_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let declared = match line.strip_prefix("pub") {
        Some(public) => match public.strip_prefix('(') {
            Some(limited) => limited.split_once(')')?.1,
            None => public,
        },
        None => line,
    };
    let name = declared.trim_start().strip_prefix("mod ")?.trim_start();
    name.split([';', '{', ' ']).next()
}

fn says_nothing(name: &str) -> bool {
    SAY_NOTHING.contains(&name.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_that_say_nothing_are_found() {
        for file in
            ["src/util.rs", "tests/common/mod.rs", "docs/Misc.md", "helpers.py", "crates/utils/src/lib.rs"]
        {
            assert!(judge_path(file).is_some(), "{file}");
        }
    }

    #[test]
    fn a_name_that_contains_such_a_word_is_a_name() {
        for file in ["src/commonmark.rs", "src/utility_bill.rs", "src/key.rs"] {
            assert_eq!(judge_path(file), None, "{file}");
        }
    }

    #[test]
    fn modules_that_say_nothing_are_found_where_they_are_declared() {
        let text = [
            "//! Owns.",
            "pub(crate) mod utils {",
            "    mod common;",
            "pub(in crate::x) mod misc;",
            "mod key;",
        ];
        let lines: Vec<usize> =
            judge_modules("src/lib.rs", &text.join("\n")).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3, 4]);
    }
}
