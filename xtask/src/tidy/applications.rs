//! How large the applications under `examples/` are: small enough to be read in a sitting, so that what semel leaves to an application
//! is seen to be little. Counts lines of code, neither blank nor comment alone, of each language by itself; not tests, nor stand-ins for
//! services of others.

use std::collections::BTreeMap;

use super::files::Tree;
use super::{Finding, Seen};

const APPLICATIONS: [&str; 5] = ["walker", "agents", "scores", "feed", "mesh"];
const LINES_MAX: usize = 600;

/// Languages by how their files end: what begins a comment of one line, and what brackets one of several.
const LANGUAGES: [(&str, &str, &str, [&str; 2]); 11] = [
    ("rs", "Rust", "//", ["/*", "*/"]),
    ("ts", "TypeScript", "//", ["/*", "*/"]),
    ("mjs", "JavaScript", "//", ["/*", "*/"]),
    ("js", "JavaScript", "//", ["/*", "*/"]),
    ("kt", "Kotlin", "//", ["/*", "*/"]),
    ("py", "Python", "#", ["\"\"\"", "\"\"\""]),
    ("sh", "shell", "#", ["/*", "*/"]),
    ("sql", "SQL", "--", ["/*", "*/"]),
    ("prisma", "Prisma", "//", ["/*", "*/"]),
    ("css", "CSS", "/*", ["/*", "*/"]),
    ("html", "HTML", "<!--", ["<!--", "-->"]),
];

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for file in tree.files() {
        let Some(application) = application_of(file) else { continue };
        let Some((ending, language, ..)) = language_of(file) else { continue };
        let text = tree.text(file).unwrap_or_default();
        *counts.entry((application, language)).or_default() += code_lines(ending, &text);
    }
    if let Some(gone) =
        APPLICATIONS.iter().find(|name| !counts.keys().any(|(application, _)| application == *name))
    {
        return Err(format!("there is no code of examples/{gone}"));
    }
    let largest = counts.values().max().copied().unwrap_or_default();
    let extent = format!(
        "{} languages of {} applications, {largest} lines at most of {LINES_MAX}",
        counts.len(),
        APPLICATIONS.len()
    );
    Ok(Seen { extent, findings: judge(&counts) })
}

fn judge(counts: &BTreeMap<(&str, &str), usize>) -> Vec<Finding> {
    let too_large = counts.iter().filter(|(_, lines)| **lines > LINES_MAX);
    let say = |((application, language), lines): (&(&str, &str), &usize)| {
        let what = format!(
            "{lines} lines of {language}, {LINES_MAX} are allowed: let semel do what every application would write"
        );
        Finding::new(&format!("examples/{application}"), 1, what)
    };
    too_large.map(say).collect()
}

/// Whose own code a file is.
fn application_of(file: &str) -> Option<&'static str> {
    let mut folders = file.split('/');
    (folders.next() == Some("examples")).then_some(())?;
    let name = folders.next()?;
    let is_apart = |part: &str| matches!(part, "test" | "tests" | "stand-in" | "test.sh");
    (!folders.any(is_apart)).then_some(())?;
    APPLICATIONS.into_iter().find(|application| *application == name)
}

fn language_of(file: &str) -> Option<(&'static str, &'static str, &'static str, [&'static str; 2])> {
    let (_, ending) = file.rsplit_once('.')?;
    LANGUAGES.into_iter().find(|(known, ..)| *known == ending)
}

/// The lines with code on them. A comment behind code is none, and a text over several lines is code as far as it is not blank.
fn code_lines(ending: &str, text: &str) -> usize {
    let Some((_, _, one, [open, close])) = LANGUAGES.into_iter().find(|(known, ..)| *known == ending) else {
        return 0;
    };
    let mut is_inside = false;
    let mut count = 0;
    for line in text.lines().map(str::trim) {
        if is_inside {
            is_inside = !line.ends_with(close);
        } else if let Some(rest) = line.strip_prefix(open) {
            is_inside = !rest.contains(close);
        } else if !line.is_empty() && !line.starts_with(one) {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_comments_are_no_code_in_any_language() {
        assert_eq!(code_lines("rs", "//! Owns.\n\nuse a; // why\n/* b\n c */\n#[x]\nfn f() {\n}\n"), 4);
        assert_eq!(
            code_lines("py", "#!/x\n\"\"\"One.\n\ntwo\n\"\"\"\ndef f():\n    \"\"\"Does.\"\"\"\n    g()\n"),
            2
        );
        assert_eq!(code_lines("sql", "-- why\nSELECT 1; -- what\n"), 1);
        assert_eq!(code_lines("html", "<!-- a\nb -->\n<p>\n"), 1);
        assert_eq!(code_lines("css", "/* a */\nb {}\n"), 1);
        assert_eq!(code_lines("md", "words\n"), 0);
    }

    #[test]
    fn tests_stand_ins_and_other_examples_are_nobodys_own_code() {
        assert_eq!(application_of("examples/walker/app/src/main/kotlin/walker/Queue.kt"), Some("walker"));
        for file in [
            "examples/walker/app/src/test/kotlin/A.kt",
            "examples/scores/stand-in/src/lib.rs",
            "examples/feed/test.sh",
        ] {
            assert_eq!(application_of(file), None, "{file}");
        }
        for file in ["examples/orders/src/main.rs", "examples/stack.mjs", "crates/feed/src/lib.rs"] {
            assert_eq!(application_of(file), None, "{file}");
        }
    }

    #[test]
    fn one_line_too_many_of_one_language_is_found() {
        let counts = [(("feed", "TypeScript"), LINES_MAX), (("mesh", "Python"), LINES_MAX + 1)].into();
        let findings = judge(&counts);
        assert_eq!((findings.len(), findings[0].file.as_str()), (1, "examples/mesh"));
        assert!(findings[0].what.contains("601 lines of Python"), "{findings:?}");
    }
}
