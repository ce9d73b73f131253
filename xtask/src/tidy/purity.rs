//! The contract decides and does nothing else: no runtime, no network, no clock, no randomness. This file holds
//! the packages that would give it one of those, and looks for them in its dependency tree.

use super::files::Tree;
use super::{Finding, Seen};
use semel_testbed::process;

const PACKAGE: &str = "semel-contract";
const MANIFEST: &str = "crates/contract/Cargo.toml";

/// Packages that bring the outside world, and what they bring.
const BANNED: &[(&str, &str)] = &[
    ("tokio", "a runtime"),
    ("async-std", "a runtime"),
    ("smol", "a runtime"),
    ("mio", "a network"),
    ("hyper", "a network"),
    ("reqwest", "a network"),
    ("chrono", "a clock"),
    ("time", "a clock"),
    ("jiff", "a clock"),
    ("web-time", "a clock"),
    ("instant", "a clock"),
    ("quanta", "a clock"),
    ("coarsetime", "a clock"),
    ("rand", "randomness"),
    ("getrandom", "randomness"),
    ("fastrand", "randomness"),
];

pub(crate) fn check(_tree: &Tree) -> Result<Seen, String> {
    let listing =
        process::read(&mut process::cargo(&["tree", "-p", PACKAGE, "-e", "normal", "--prefix", "none"]))?;
    Ok(Seen { extent: format!("{} dependencies", names(&listing).count() - 1), findings: judge(&listing) })
}

fn judge(listing: &str) -> Vec<Finding> {
    let banned = BANNED.iter().filter(|(name, _)| names(listing).any(|dependency| dependency == *name));
    banned
        .map(|(name, brings)| {
            let what = format!(
                "{PACKAGE} must stay pure, but `{name}` brings {brings}: `cargo tree -p {PACKAGE} -i {name}` shows who asks for it"
            );
            Finding::new(MANIFEST, 1, what)
        })
        .collect()
}

/// The distinct package names of a `cargo tree --prefix none`.
fn names(listing: &str) -> impl Iterator<Item = &str> {
    let names: std::collections::BTreeSet<&str> =
        listing.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_deep_in_the_tree_is_found() {
        let findings = judge("semel-contract v0.1.0 (/x)\nserde v1.0.0\ntime v0.3.1 (*)\n");
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("`time` brings a clock"), "{}", findings[0].what);
    }

    #[test]
    fn a_package_is_judged_by_its_whole_name() {
        assert_eq!(judge("semel-contract v0.1.0\ntime-macros-like v1.0.0\nrand_core v0.9.0\n"), []);
    }
}
