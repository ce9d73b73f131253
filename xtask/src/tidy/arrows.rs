//! Which crate may depend on which. The table here is the architecture; a dependency that is not in it is a
//! finding. Dependencies of tests are free: an arrow is about what is built into a release.

use semel_testbed::process;
use serde_json::Value;

use super::files::{Tree, line_where};
use super::{Finding, Seen};

/// Where a room's arrows may lead.
enum Arrows {
    To(&'static [&'static str]),
    Anywhere,
}

use Arrows::{Anywhere, To};

/// Every room of the workspace. The package of a room is `semel-ROOM`; the binary's is `semel`.
const ARROWS: &[(&str, Arrows)] = &[
    ("contract", To(&[])),
    ("http", To(&["contract"])),
    ("store", To(&["contract", "http"])),
    ("gate", To(&["contract", "http", "store"])),
    ("delivery", To(&["contract", "http", "store"])),
    ("broker", To(&["contract", "http", "store", "delivery"])),
    ("gateway", To(&["contract", "http", "store", "gate"])),
    ("console", To(&["contract", "store"])),
    ("semel", To(&["contract", "store", "gate"])),
    ("cli", To(&["contract", "http", "store", "gate", "delivery", "broker", "gateway", "console"])),
    ("fuzz", To(&[])),
    ("sim", Anywhere),
    ("bench", Anywhere),
    ("bench-instructions", Anywhere),
    ("bench-runner", To(&["contract", "testbed"])),
    ("chaos", To(&["testbed"])),
    ("examples", Anywhere),
    ("testbed", To(&[])),
    ("xtask", To(&["contract", "testbed"])),
];

/// A package of the workspace and what it is built from.
struct Package {
    name: String,
    manifest: String,
    depends_on: Vec<String>,
}

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let metadata = process::read(&mut process::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let packages = packages(&metadata, tree);
    let findings = judge(&packages, |package, dependency| {
        let manifest = tree.text(&package.manifest).unwrap_or_default();
        line_where(&manifest, |line| line.trim_start().starts_with(dependency))
    });
    Ok(Seen { extent: format!("{} crates", packages.len()), findings })
}

fn packages(metadata: &Value, tree: &Tree) -> Vec<Package> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            manifest: tree.relative(&text(&package["manifest_path"])),
            depends_on: list(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| text(&dependency["name"]))
                .collect(),
        })
        .collect()
}

fn judge(packages: &[Package], line_of: impl Fn(&Package, &str) -> usize) -> Vec<Finding> {
    let is_ours = |name: &str| packages.iter().any(|package| package.name == name);
    let mut findings = Vec::new();
    for package in packages {
        let Package { name, manifest, depends_on } = package;
        let Some((_, arrows)) = ARROWS.iter().find(|(room, _)| *room == room_of(name)) else {
            let what = format!("the crate `{name}` is unknown: add its arrows to xtask/src/tidy/arrows.rs");
            findings.push(Finding::new(manifest, 1, what));
            continue;
        };
        let allowed = match arrows {
            Anywhere => continue,
            To(rooms) => rooms,
        };
        for dependency in depends_on.iter().filter(|dependency| is_ours(dependency)) {
            if !allowed.contains(&room_of(dependency)) {
                let what =
                    format!("`{name}` may not depend on `{dependency}`, only on [{}]", allowed.join(", "));
                findings.push(Finding::new(manifest, line_of(package, dependency), what));
            }
        }
    }
    findings
}

/// `semel-store` is the room `store`. Every example is in the room `examples`, whatever it shows.
fn room_of(package: &str) -> &str {
    let room = package.strip_prefix("semel-").unwrap_or(package);
    if room.starts_with("example-") { "examples" } else { room }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, depends_on: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn an_arrow_against_the_table_is_found() {
        let packages = [package("semel-contract", &["semel-store", "serde"]), package("semel-store", &[])];
        let findings = judge(&packages, |_, _| 7);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].file.as_str(), findings[0].line), ("crates/semel-contract/Cargo.toml", 7));
        assert!(findings[0].what.contains("may not depend on `semel-store`"));
    }

    #[test]
    fn the_binary_may_not_contain_the_tools() {
        let packages = [package("semel-cli", &["semel-sim"]), package("semel-sim", &["semel-cli"])];
        assert_eq!(judge(&packages, |_, _| 1).len(), 1);
    }

    #[test]
    fn an_unknown_crate_is_told_where_its_arrows_go() {
        let findings = judge(&[package("semel-attic", &[])], |_, _| 1);
        assert!(findings[0].what.contains("add its arrows to xtask/src/tidy/arrows.rs"));
    }

    #[test]
    fn arrows_of_the_table_and_crates_from_elsewhere_are_fine() {
        let packages = [
            package("semel-contract", &["serde"]),
            package("semel-store", &["semel-contract", "tokio"]),
            package("semel-gate", &["semel-contract", "semel-store"]),
            package("semel-example-axum", &["semel-gate", "semel"]),
            package("semel", &["semel-gate"]),
            package("xtask", &["semel-testbed", "semel-contract"]),
        ];
        assert_eq!(judge(&packages, |_, _| 1), []);
    }

    #[test]
    fn dependencies_of_tests_are_free_and_of_build_scripts_are_not() {
        let metadata = serde_json::json!({"packages": [{
            "name": "semel-contract", "manifest_path": "/x/Cargo.toml", "dependencies": [
                {"name": "semel-store", "kind": "dev"}, {"name": "semel-gate", "kind": "build"}, {"name": "serde", "kind": null}
            ]
        }]});
        let packages = packages(&metadata, &Tree::of_repository().unwrap());
        assert_eq!(packages[0].depends_on, ["semel-gate", "serde"]);
    }
}
