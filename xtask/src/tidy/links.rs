//! Every relative link in a Markdown file leads to a file of this repository, and its anchor to a heading there.
//! Addresses of the outside world are not visited.

use std::collections::{BTreeMap, BTreeSet};

use super::files::Tree;
use super::markdown::{self, Link};
use super::{Finding, Seen};

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let pages: BTreeMap<&str, String> = tree.texts(".md").collect();
    let mut count = 0;
    let mut findings = Vec::new();
    for (file, text) in &pages {
        for Link { line, target } in markdown::links(text) {
            count += 1;
            if let Some(what) = judge(file, &target, tree.files(), &pages) {
                findings.push(Finding::new(file, line, what));
            }
        }
    }
    Ok(Seen { extent: format!("{count} links in {} pages", pages.len()), findings })
}

/// What is wrong with a link that stands in `file`, if anything.
fn judge(
    file: &str,
    target: &str,
    files: &BTreeSet<String>,
    pages: &BTreeMap<&str, String>,
) -> Option<String> {
    if is_outside(target) {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let path = path.split('?').next().unwrap_or(path);
    let Some(place) = resolve(file, &decoded(path)) else {
        return Some(format!("the link `{target}` leads out of the repository: use a full address"));
    };
    if !is_there(&place, files) {
        return Some(format!("the link `{target}` leads to {place}, which does not exist: correct the path"));
    }
    let (anchor, page) = (decoded(anchor?), pages.get(place.as_str())?);
    let anchors = markdown::anchors(page);
    if anchors.contains(&anchor) {
        return None;
    }
    let known = anchors.into_iter().map(|known| format!("#{known}")).collect::<Vec<_>>().join(" ");
    Some(format!("the link `{target}` names a heading that {place} does not have; it has: {known}"))
}

/// Whether a link has a scheme (`https:`, `mailto:`) or names a host (`//host`).
fn is_outside(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
    };
    target.starts_with("//") || scheme.is_some_and(is_scheme)
}

/// The file or folder that a path leads to from `file`, or nothing when it leaves the repository.
fn resolve(file: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(file.to_owned());
    }
    let mut parts: Vec<&str> = match path.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect(),
    };
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Folders exist by the files in them; the root always does.
fn is_there(place: &str, files: &BTreeSet<String>) -> bool {
    let folder = format!("{place}/");
    place.is_empty()
        || files.contains(place)
        || files.range(folder.clone()..).next().is_some_and(|f| f.starts_with(&folder))
}

/// Undoes `%20` and the like. What is no such escape stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(file: &str, target: &str) -> Option<String> {
        let files: BTreeSet<String> =
            ["README.md", "spec/contract.md", "spec/problems/a b.md", "crates/gate/src/lib.rs"]
                .map(str::to_owned)
                .into();
        let pages = BTreeMap::from([
            ("README.md", "# Semel\n## Two commands\n".to_owned()),
            ("spec/contract.md", "# The contract\n".to_owned()),
        ]);
        judge(file, target, &files, &pages)
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert!(wrong("README.md", "spec/contrat.md").unwrap().contains("does not exist"));
        assert!(wrong("spec/contract.md", "contract.md/..").is_none());
        assert!(wrong("spec/contract.md", "README.md").unwrap().contains("spec/README.md"));
        assert!(wrong("README.md", "../elsewhere").unwrap().contains("out of the repository"));
    }

    #[test]
    fn an_anchor_to_nothing_is_found_with_those_that_exist() {
        assert!(wrong("spec/contract.md", "../README.md#three").unwrap().contains("#two-commands"));
        assert!(wrong("README.md", "#three").is_some());
    }

    #[test]
    fn files_folders_headings_and_the_outside_world_are_fine() {
        for target in [
            "spec/contract.md#the-contract",
            "#two-commands",
            "spec",
            "spec/problems/",
            "./spec/../README.md",
            "/spec/contract.md",
            "spec/problems/a%20b.md",
            "crates/gate/src/lib.rs#L10",
            "https://example.com/x#y",
            "mailto:a@example.com",
            "//example.com",
        ] {
            assert_eq!(wrong("README.md", target), None, "{target}");
        }
    }
}
