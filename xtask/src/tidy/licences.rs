//! The licence of every dependency allows what our users do. Holds the list of licences that do, and reads the
//! expressions in which packages state theirs.

use std::iter::Peekable;

use semel_testbed::process;
use serde_json::Value;

use super::files::{Tree, line_where};
use super::{Finding, Seen};

const LOCK: &str = "Cargo.lock";

const ALLOWED: [&str; 16] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "OpenSSL",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let metadata =
        process::read(&mut process::cargo(&["metadata", "--format-version", "1", "--all-features"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let lock = tree.text(LOCK).unwrap_or_default();
    let findings = packages.iter().filter_map(|package| {
        let name = package["name"].as_str().unwrap_or_default();
        let what = judge(name, package["license"].as_str())?;
        Some(Finding::new(LOCK, line_where(&lock, |line| line == format!("name = \"{name}\"")), what))
    });
    Ok(Seen { extent: format!("{} packages", packages.len()), findings: findings.collect() })
}

/// What is wrong with a package's licence, if anything.
fn judge(name: &str, licence: Option<&str>) -> Option<String> {
    const HOW: &str =
        "use another package, or add the licence to xtask/src/tidy/licences.rs once it is understood";
    match licence.map(|expression| (expression, is_allowed(expression))) {
        Some((_, Ok(true))) => None,
        Some((expression, Ok(false))) => {
            Some(format!("`{name}` is under `{expression}`, which is not allowed: {HOW}"))
        }
        Some((expression, Err(why))) => {
            Some(format!("`{name}` states its licence as `{expression}`, but {why}: {HOW}"))
        }
        None => Some(format!("`{name}` states no licence: {HOW}")),
    }
}

/// Whether we may choose, among what an SPDX expression offers, only licences that are allowed.
///
/// The grammar is `any := all (OR all)*`, `all := one (AND one)*`, `one := ID [WITH ID] | "(" any ")"`. The
/// slash of old manifests means OR.
fn is_allowed(expression: &str) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any(&mut words)?;
    match words.next() {
        None => Ok(allowed),
        Some(word) => Err(format!("`{word}` stands where the expression should end")),
    }
}

// The operators below use `|` and `&` on purpose: both sides must be read even when one decides.

fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Result<bool, String> {
    let mut allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words)?;
    }
    Ok(allowed)
}

fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Result<bool, String> {
    let mut allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words)?;
    }
    Ok(allowed)
}

fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Result<bool, String> {
    match words.next() {
        Some("(") => {
            let allowed = any(words)?;
            words.next_if_eq(&")").map(|_| allowed).ok_or_else(|| "a parenthesis is not closed".to_owned())
        }
        Some(word @ (")" | "AND" | "OR" | "WITH")) => Err(format!("`{word}` stands where a licence should")),
        Some(licence) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().ok_or("WITH is followed by nothing")?;
            Ok(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str()))
        }
        Some(licence) => Ok(ALLOWED.contains(&licence)),
        None => Err("it ends where a licence should stand".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_choice_is_enough_and_every_obligation_counts() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("MIT / Apache-2.0", true),
            ("GPL-2.0/LGPL-2.1", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0-only", false),
            ("MIT OR (Apache-2.0 AND GPL-3.0-only)", true),
            // AND binds tighter than OR.
            ("GPL-3.0-only AND MIT OR ISC", true),
            ("ISC OR MIT AND GPL-3.0-only", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("GPL-3.0-only WITH Classpath-exception-2.0", false),
            ("MIT WITH LLVM-exception", false),
        ] {
            assert_eq!(is_allowed(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn a_broken_expression_is_an_error_and_not_a_yes() {
        for expression in ["", "(MIT", "MIT)", "MIT OR", "AND MIT", "MIT Apache-2.0", "Apache-2.0 WITH", "()"]
        {
            assert!(is_allowed(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn a_package_without_a_usable_licence_is_found() {
        assert!(judge("x", None).unwrap().contains("states no licence"));
        assert!(judge("x", Some("SSPL-1.0")).unwrap().contains("not allowed"));
        assert!(judge("x", Some("MIT OR")).unwrap().contains("it ends where"));
        assert_eq!(judge("x", Some("MIT")), None);
    }
}
