//! How many packages are built into the binary. Every one of them is somebody else's code that our users run.

use std::collections::BTreeSet;

use semel_testbed::process;

use super::files::Tree;
use super::{Finding, Seen};

const PACKAGE: &str = "semel-cli";
const MANIFEST: &str = "crates/cli/Cargo.toml";
const PACKAGES_MAX: usize = 300;

pub(crate) fn check(_tree: &Tree) -> Result<Seen, String> {
    let listing =
        process::read(&mut process::cargo(&["tree", "-p", PACKAGE, "-e", "normal", "--prefix", "none"]))?;
    let count = packages(&listing).len();
    Ok(Seen {
        extent: format!("{count} packages, {PACKAGES_MAX} allowed"),
        findings: judge(count).into_iter().collect(),
    })
}

fn judge(count: usize) -> Option<Finding> {
    let what = format!(
        "`{PACKAGE}` is built from {count} packages, {PACKAGES_MAX} are allowed: remove features or dependencies (`cargo tree -p {PACKAGE} -e normal`)"
    );
    (count > PACKAGES_MAX).then(|| Finding::new(MANIFEST, 1, what))
}

/// The distinct packages of a `cargo tree --prefix none`, each as `name version`: two versions are two packages.
fn packages(listing: &str) -> BTreeSet<String> {
    listing
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{} {}", words.next()?, words.next()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_packages_count_once_and_versions_count_apart() {
        let listing = "semel v0.1.0 (/x)\nserde v1.0.0\nserde_derive v1.0.0 (proc-macro)\nserde v1.0.0 (*)\nserde v0.9.0\n\n";
        assert_eq!(packages(listing).len(), 4);
    }

    #[test]
    fn one_package_too_many_is_found() {
        assert_eq!(judge(PACKAGES_MAX), None);
        assert!(judge(PACKAGES_MAX + 1).unwrap().what.contains("301"));
    }
}
