//! Every problem that semel can answer with has a page, and every page is about such a problem. The slugs come
//! from the contract, which is the only place that may name one.

use std::collections::BTreeSet;

use semel_contract::problem::Kind;

use super::files::Tree;
use super::{Finding, Seen};

const FOLDER: &str = "spec/problems/";
/// The one page that is about all of them.
const INDEX: &str = "README";
const SOURCE: &str = "crates/contract/src/problem.rs";

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let slugs: Vec<&str> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
    Ok(Seen { extent: format!("{} problems", slugs.len()), findings: judge(&slugs, tree.files()) })
}

fn judge(slugs: &[&str], files: &BTreeSet<String>) -> Vec<Finding> {
    let pages: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.strip_prefix(FOLDER)?.strip_suffix(".md"))
        .filter(|p| *p != INDEX)
        .collect();
    let without_page = slugs.iter().filter(|slug| !pages.contains(*slug)).map(|slug| {
        Finding::new(SOURCE, 1, format!("the problem `{slug}` has no page: write {FOLDER}{slug}.md"))
    });
    let without_problem = pages.iter().filter(|page| !slugs.contains(page)).map(|page| {
        let what = format!("no problem of the contract is called `{page}`: rename or remove this page");
        Finding::new(&format!("{FOLDER}{page}.md"), 1, what)
    });
    without_page.chain(without_problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_problem_without_page_and_a_page_without_problem_are_found() {
        let findings = judge(
            &["key-missing", "in-progress"],
            &files(&["spec/problems/key-missing.md", "spec/problems/old.md"]),
        );
        assert_eq!(findings.len(), 2);
        assert!(findings[0].what.contains("write spec/problems/in-progress.md"));
        assert_eq!(findings[1].file, "spec/problems/old.md");
    }

    #[test]
    fn the_index_and_files_elsewhere_are_no_pages() {
        assert_eq!(
            judge(&[], &files(&["spec/problems/README.md", "spec/contract.md", "spec/problems/x.svg"])),
            []
        );
    }
}
