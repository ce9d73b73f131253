//! The modules of a crate and the paths between them, read from its files. Knows nothing of visibility or types: a path
//! leads to the module in which its last known name stands.

use std::collections::{BTreeMap, BTreeSet};

use super::{Word, end_of_group, without_tests, words};

/// A module, by the names from the root of its crate.
pub(crate) type Path = Vec<String>;

/// One mention of another module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) from: Path,
    pub(crate) to: Path,
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// A crate: its modules, the files that hold them, and what each imports under which name.
#[derive(Default)]
pub(crate) struct Modules {
    known: BTreeSet<Path>,
    files: BTreeSet<String>,
    imports: BTreeMap<(Path, String), Path>,
    raw: Vec<Mention>,
}

/// A path as it is written: its names, and the name under which it is imported.
struct Written {
    names: Vec<String>,
    alias: Option<String>,
    line: usize,
}

impl Modules {
    /// Reads the crate whose root is this file. `read` gives the text of a file, or nothing where there is none.
    pub(crate) fn of(root: &str, read: &impl Fn(&str) -> Option<String>) -> Modules {
        let mut modules = Modules::default();
        modules.read_file(root, vec![], read);
        modules
    }

    /// The files that are built into a release.
    pub(crate) fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// Every mention of another module, the modules in which imported names are defined among them.
    pub(crate) fn mentions(&self) -> Vec<Mention> {
        let resolve = |mention: &Mention| Mention { to: self.resolve(&mention.to), ..mention.clone() };
        self.raw.iter().map(resolve).filter(|mention| mention.to != mention.from).collect()
    }

    fn read_file(&mut self, file: &str, module: Path, read: &impl Fn(&str) -> Option<String>) {
        let Some(text) = read(file) else { return };
        self.known.insert(module.clone());
        self.files.insert(file.to_owned());
        let words = without_tests(&words(&text));
        for (name, path) in self.read_words(file, &words, &module) {
            let folder = match file.rsplit_once('/').unwrap_or(("", file)) {
                (folder, "lib.rs" | "main.rs" | "mod.rs") => folder.to_owned(),
                _ => file.trim_end_matches(".rs").to_owned(),
            };
            let inner = path[module.len()..path.len() - 1].iter().map(|name| format!("/{name}"));
            let folder = inner.fold(folder, |folder, name| folder + &name);
            for candidate in [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")] {
                self.read_file(&candidate, path.clone(), read);
            }
        }
    }

    /// Notes imports and mentions, and returns the modules that are declared to be in files of their own.
    fn read_words(&mut self, file: &str, words: &[Word], module: &Path) -> Vec<(String, Path)> {
        let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
        let (mut at, mut declared) = (0, Vec::new());
        while at < words.len() {
            let begins_path = at == 0 || text(at - 1) != "::";
            match (text(at), text(at + 1), text(at + 2)) {
                ("mod", name, ";") => {
                    let path = [module.as_slice(), &[name.to_owned()]].concat();
                    self.known.insert(path.clone());
                    declared.push((name.to_owned(), path));
                    at += 3;
                }
                ("mod", name, "{") => {
                    let path = [module.as_slice(), &[name.to_owned()]].concat();
                    let end = end_of_group(words, at + 2);
                    self.known.insert(path.clone());
                    declared.extend(self.read_words(file, &words[at + 3..end - 1], &path));
                    at = end;
                }
                ("use", ..) => at = self.note(file, words, at + 1, module, true),
                ("crate" | "super" | "self", "::", _) if begins_path => {
                    at = self.note(file, words, at, module, false);
                }
                _ => at += 1,
            }
        }
        declared
    }

    fn note(&mut self, file: &str, words: &[Word], at: usize, module: &Path, is_use: bool) -> usize {
        let mut found = Vec::new();
        let end = read_tree(words, at, &[], is_use, &mut found);
        for Written { names, alias, line } in found {
            let Some(to) = absolute(&names, module, is_use) else { continue };
            let own = |name: &String| to == [module.as_slice(), std::slice::from_ref(name)].concat();
            if let Some(name) = alias.filter(|name| is_use && !own(name)) {
                self.imports.insert((module.clone(), name), to.clone());
            }
            self.raw.push(Mention { from: module.clone(), to, file: file.to_owned(), line });
        }
        end
    }

    /// The module in which the thing of this path stands.
    fn resolve(&self, path: &Path) -> Path {
        const JUMPS_MAX: usize = 16;
        let mut rest: Path = path.clone();
        for _ in 0..JUMPS_MAX {
            let inside = (0..=rest.len()).take_while(|length| self.known.contains(&rest[..*length]));
            let module = rest[..inside.last().unwrap_or(0)].to_vec();
            let Some(name) = rest.get(module.len()) else { return module };
            match self.imports.get(&(module.clone(), name.clone())) {
                Some(to) => rest = [to, &rest[module.len() + 1..]].concat(),
                None => return module,
            }
        }
        vec![]
    }
}

/// Reads `a::b::{c, d::e as f}` from `at` on, and returns where it ends.
fn read_tree(
    words: &[Word],
    mut at: usize,
    before: &[String],
    has_groups: bool,
    found: &mut Vec<Written>,
) -> usize {
    let mut names = before.to_vec();
    let line = words.get(at).map_or(0, |word| word.line);
    loop {
        let text = words.get(at).map_or("", |word| word.text.as_str());
        match text {
            "{" if has_groups => {
                at += 1;
                while words.get(at).is_some_and(|word| word.text != "}") {
                    at = read_tree(words, at, &names, true, found);
                    at += usize::from(words.get(at).is_some_and(|word| word.text == ","));
                }
                return at + 1;
            }
            "*" => at += 1,
            "self" if !names.is_empty() => at += 1,
            "" | "<" | "(" | "{" | ">" => {}
            name => {
                names.push(name.to_owned());
                at += 1;
            }
        }
        if words.get(at).is_some_and(|word| word.text == "::") {
            at += 1;
            continue;
        }
        let renamed = words.get(at).is_some_and(|word| word.text == "as") && has_groups;
        let alias =
            if renamed { words.get(at + 1).map(|word| word.text.clone()) } else { names.last().cloned() };
        found.push(Written { names, alias, line });
        return at + 2 * usize::from(renamed);
    }
}

/// The path from the root of the crate; nothing where it leads out of the crate.
fn absolute(names: &[String], module: &Path, is_use: bool) -> Option<Path> {
    let ups = names.iter().take_while(|name| *name == "super").count();
    match names.first()?.as_str() {
        "crate" => Some(names[1..].to_vec()),
        "self" => Some([module, &names[1..]].concat()),
        "super" if ups <= module.len() => Some([&module[..module.len() - ups], &names[ups..]].concat()),
        // A child, or another crate: a path to what is no child ends in the module itself, and says nothing.
        _ if is_use => Some([module.as_slice(), names].concat()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentions(files: &[(&str, &str)]) -> Vec<String> {
        let read =
            |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        let found = Modules::of("src/lib.rs", &read).mentions();
        found.iter().map(|mention| format!("{}>{}", mention.from.join("::"), mention.to.join("::"))).collect()
    }

    #[test]
    fn every_spelling_of_a_path_is_followed() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::{b::{self, X}, c}; fn f() { super::b::g(); crate::c::d::h::<u8>() }"),
            ("src/b.rs", "use std::fs; // crate::a\n#[cfg(test)] mod tests { use crate::a; }"),
            ("src/c.rs", "mod d; use super::super::nowhere;"),
            ("src/c/d.rs", "pub(in crate::c) fn h() { self::i() }"),
        ];
        assert_eq!(mentions(&files), ["a>b", "a>b", "a>c", "a>b", "a>c::d", "c::d>c"]);
    }

    #[test]
    fn a_name_is_followed_to_where_it_is_defined() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use b::Thing as Renamed; use self::b::inner::Deep;"),
            ("src/a.rs", "use crate::Renamed; use super::Deep;"),
            ("src/b.rs", "mod inner { pub struct Deep; fn x() { super::y() } } pub struct Thing;"),
        ];
        let found = mentions(&files);
        assert!(found.contains(&"a>b".to_owned()) && found.contains(&"a>b::inner".to_owned()), "{found:?}");
        assert!(found.contains(&"b::inner>b".to_owned()), "{found:?}");
    }
}
