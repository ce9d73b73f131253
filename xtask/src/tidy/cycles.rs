//! Arrows between the modules of a crate go one way. Two modules with the same parent that use each other, directly or
//! through others, are a cycle; a parent and its child are not. Cycles that stand today are listed in [`ALLOWED`], which
//! may only become shorter.

use std::collections::{BTreeMap, BTreeSet};

use super::files::Tree;
use super::{Finding, Seen};
use crate::source::modules::{Mention, Modules};

/// The cycles that stand today: the parent, as `CRATE` or `CRATE::module`, and how many modules are in each cycle below
/// it, largest first. Whoever takes one apart lowers the number here.
const ALLOWED: &[(&str, &[usize])] = &[];

/// This file, where the list is kept.
const HERE: &str = "xtask/src/tidy/cycles.rs";

/// Modules below one parent that use each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    parent: String,
    modules: Vec<String>,
    /// One mention for each arrow between them.
    arrows: Vec<(String, String, String, usize)>,
}

pub(crate) fn check(tree: &Tree) -> Result<Seen, String> {
    let roots = roots(tree);
    let cycles: Vec<Cycle> = roots.iter().flat_map(|root| cycles_of(tree, root)).collect();
    let modules: usize = cycles.iter().map(|cycle| cycle.modules.len()).sum();
    Ok(Seen {
        extent: format!("{} crates, {} cycles of {modules} modules left", roots.len(), cycles.len()),
        findings: judge(ALLOWED, &cycles),
    })
}

/// Every cycle of every crate with its arrows, for people.
pub(crate) fn figures(tree: &Tree) -> String {
    let mut lines = Vec::new();
    for root in roots(tree) {
        let cycles = cycles_of(tree, &root);
        let sizes: Vec<usize> = cycles.iter().map(|cycle| cycle.modules.len()).collect();
        lines.push(format!("{:40} {} cycles {sizes:?}", root, cycles.len()));
        lines.extend(cycles.iter().map(shown));
    }
    lines.join("\n")
}

/// The root files of the crates.
fn roots(tree: &Tree) -> Vec<String> {
    let is_root = |file: &&String| file.ends_with("/src/lib.rs") || file.ends_with("/src/main.rs");
    tree.files().iter().filter(is_root).cloned().collect()
}

fn cycles_of(tree: &Tree, root: &str) -> Vec<Cycle> {
    let mentions = Modules::of(root, &|file| tree.text(file)).mentions();
    cycles(crate_of(root), &mentions)
}

/// `crates/store/src/lib.rs` is `store`.
fn crate_of(root: &str) -> String {
    let folder = root.rsplit_once("/src/").map_or(root, |(folder, _)| folder);
    folder.strip_prefix("crates/").unwrap_or(folder).to_owned()
}

/// The arrows between modules of one parent: the first mention of each.
type Arrows<'a> = BTreeMap<(&'a str, &'a str), &'a Mention>;

fn cycles(name: String, mentions: &[Mention]) -> Vec<Cycle> {
    let mut levels: BTreeMap<&[String], Arrows<'_>> = BTreeMap::new();
    for mention in mentions {
        let common = mention.from.iter().zip(&mention.to).take_while(|(from, to)| from == to).count();
        if let (Some(from), Some(to)) = (mention.from.get(common), mention.to.get(common)) {
            levels.entry(&mention.from[..common]).or_default().entry((from, to)).or_insert(mention);
        }
    }
    let mut found = Vec::new();
    for (parent, arrows) in &levels {
        let parent =
            std::iter::once(name.clone()).chain(parent.iter().cloned()).collect::<Vec<_>>().join("::");
        let mut here: Vec<Cycle> = components(arrows)
            .into_iter()
            .map(|members| {
                let inside = arrows.iter().filter(|((a, b), _)| members.contains(a) && members.contains(b));
                let arrow = |((a, b), mention): (&(&str, &str), &&Mention)| {
                    ((*a).to_owned(), (*b).to_owned(), mention.file.clone(), mention.line)
                };
                Cycle {
                    parent: parent.clone(),
                    modules: members.iter().map(|module| (*module).to_owned()).collect(),
                    arrows: inside.map(arrow).collect(),
                }
            })
            .collect();
        here.sort_by_key(|cycle| std::cmp::Reverse(cycle.modules.len()));
        found.extend(here);
    }
    found
}

/// Sets of more than one module in which each can be reached from each.
fn components<'a>(arrows: &Arrows<'a>) -> Vec<BTreeSet<&'a str>> {
    let modules: BTreeSet<&str> = arrows.keys().flat_map(|(from, to)| [*from, *to]).collect();
    let reached_from = |start: &'a str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            for ((_, to), _) in arrows.range((module, "")..).take_while(|((from, _), _)| *from == module) {
                if seen.insert(*to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        modules.iter().map(|module| (*module, reached_from(module))).collect();
    let mut sets = BTreeSet::new();
    for (module, reached) in &reach {
        let set: BTreeSet<&str> =
            reached.iter().copied().filter(|other| reach[other].contains(module)).collect();
        if set.len() > 1 {
            sets.insert(set);
        }
    }
    sets.into_iter().collect()
}

/// What is not as the list says.
fn judge(allowed: &[(&str, &[usize])], cycles: &[Cycle]) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<&Cycle>> = BTreeMap::new();
    for cycle in cycles {
        found.entry(&cycle.parent).or_default().push(cycle);
    }
    let parents: BTreeSet<&str> =
        allowed.iter().map(|(parent, _)| *parent).chain(found.keys().copied()).collect();
    parents.into_iter().filter_map(|parent| {
        let listed = allowed.iter().find(|(name, _)| *name == parent).map_or(&[][..], |(_, sizes)| sizes);
        let cycles = found.get(parent).map_or(&[][..], Vec::as_slice);
        let sizes: Vec<usize> = cycles.iter().map(|cycle| cycle.modules.len()).collect();
        if sizes == listed {
            return None;
        }
        let has_grown = sizes.len() > listed.len() || sizes.iter().zip(listed).any(|(now, then)| now > then);
        let what = match has_grown {
            false => format!("the cycles of `{parent}` are smaller than listed, {sizes:?} and no longer {listed:?}: lower the list in {HERE}"),
            true => {
                let all: Vec<String> = cycles.iter().map(|cycle| shown(cycle)).collect();
                format!("modules of `{parent}` form cycles of {sizes:?}, allowed are {listed:?}: let arrows go one way\n{}", all.join("\n"))
            }
        };
        let place = cycles.first().filter(|_| has_grown).and_then(|cycle| cycle.arrows.first());
        Some(place.map_or_else(|| Finding::new(HERE, 1, what.clone()), |(_, _, file, line)| Finding::new(file, *line, what.clone())))
    }).collect()
}

fn shown(cycle: &Cycle) -> String {
    let mut text = format!("    {}::{{{}}}", cycle.parent, cycle.modules.join(", "));
    for (from, to, file, line) in &cycle.arrows {
        text.push_str(&format!("\n      {from} -> {to}  {file}:{line}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of a crate with these files.
    fn planted(files: &[(&str, &str)]) -> Vec<Cycle> {
        let read =
            |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        cycles("x".to_owned(), &Modules::of("src/lib.rs", &read).mentions())
    }

    const RING: [(&str, &str); 4] = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::B;"),
        ("src/b.rs", "fn f() { super::c::g() }"),
        ("src/c.rs", "use crate::{a::A};"),
    ];

    #[test]
    fn a_planted_ring_is_found_with_its_arrows() {
        let found = planted(&RING);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].parent.as_str(), &found[0].modules[..]),
            ("x", &["a", "b", "c"].map(str::to_owned)[..])
        );
        assert!(shown(&found[0]).contains("b -> c  src/b.rs:1"), "{}", shown(&found[0]));
    }

    #[test]
    fn a_ring_below_a_module_is_found_there() {
        let found = planted(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b; mod c;"),
            ("src/a/b.rs", "use super::c::X;"),
            ("src/a/c.rs", "use crate::a::b::Y;"),
        ]);
        assert_eq!(found.iter().map(|cycle| cycle.parent.as_str()).collect::<Vec<_>>(), ["x::a"]);
    }

    #[test]
    fn parent_and_child_may_use_each_other_and_tests_whatever_they_like() {
        let found = planted(&[
            ("src/lib.rs", "mod a; mod d; use a::b::X; pub struct R;"),
            ("src/a.rs", "pub mod b; use b::X; use crate::R;"),
            ("src/a/b.rs", "use super::Z; use crate::d::D;"),
            ("src/d.rs", "#[cfg(test)] mod tests { use crate::a::b::X; }"),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn a_name_imported_through_the_root_counts_where_it_is_defined() {
        let found = planted(&[
            ("src/lib.rs", "mod a; mod b; pub use b::B;"),
            ("src/a.rs", "use crate::B;"),
            ("src/b.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_listed_cycle_may_stay_but_neither_grow_nor_be_listed_when_it_is_gone() {
        let ring = planted(&RING);
        assert_eq!(judge(&[("x", &[3])], &ring), []);
        let grown = judge(&[("x", &[2])], &ring);
        assert!(grown.len() == 1 && grown[0].what.contains("allowed are [2]"), "{grown:?}");
        assert!(judge(&[], &ring)[0].what.contains("a -> b  src/a.rs:1"));
        let second =
            judge(&[("x", &[3])], &planted(&RING).into_iter().chain(planted(&RING)).collect::<Vec<_>>());
        assert_eq!(second.len(), 1, "a second cycle of the same size is one too many");
        for listed in [&[4][..], &[3, 2]] {
            let stale = judge(&[("x", listed)], &ring);
            assert!(stale.len() == 1 && stale[0].what.contains("lower the list"), "{stale:?}");
        }
        assert!(judge(&[("x", &[3])], &[])[0].what.contains("lower the list"));
    }
}
