//! The files of the repository: those that git tracks or would track, or, in a tree without git, those that
//! are not build output. Reads files; judges nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::process;

/// Every file's path, relative to the root, with `/` between folders.
pub(crate) struct Tree {
    root: PathBuf,
    files: BTreeSet<String>,
}

impl Tree {
    pub(crate) fn of_repository() -> Result<Tree, String> {
        let root = process::repository();
        let listed = listed_by_git(&root).map_or_else(|_| walked(&root), Ok)?;
        // Git also lists what was deleted and not yet committed so, and links, which are checked where they lead.
        let is_plain = |file: &String| root.join(file).symlink_metadata().is_ok_and(|meta| meta.is_file());
        Ok(Tree { files: listed.into_iter().filter(is_plain).collect(), root })
    }

    pub(crate) fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// The text of every file whose name ends in `extension`, such as `.rs`. What is not UTF-8 is no text.
    pub(crate) fn texts(&self, extension: &str) -> impl Iterator<Item = (&str, String)> {
        self.files
            .iter()
            .filter(move |file| file.ends_with(extension))
            .filter_map(|file| Some((file.as_str(), self.text(file)?)))
    }

    /// The text of one file, if it is there and is text.
    pub(crate) fn text(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(file)).ok()
    }

    /// A path below the root, as a file of this tree is named.
    pub(crate) fn relative(&self, path: &str) -> String {
        let path = Path::new(path);
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned()
    }
}

/// The number of the first line for which `is_it` holds, or 1: a finding always points somewhere.
pub(crate) fn line_where(text: &str, is_it: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is_it).map_or(1, |index| index + 1)
}

fn listed_by_git(root: &Path) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let names = process::read(&mut git)?;
    let names: Vec<String> = names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    // An unpacked source archive inside somebody else's repository is ignored or untracked as a whole.
    if names.is_empty() { Err("git lists no file".to_owned()) } else { Ok(names) }
}

/// Without git: every file except build output.
fn walked(root: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("cannot read {}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() && name != "target" && name != ".git" {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(root).expect("the walk stays below its root");
                files.extend(relative.to_str().map(str::to_owned));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: &str = "xtask/src/tidy/files.rs";

    #[test]
    fn this_file_is_in_the_tree_and_build_output_is_not() {
        let tree = Tree::of_repository().unwrap();
        assert!(tree.files().contains(THIS));
        assert!(!tree.files().iter().any(|file| file.starts_with("target/") || file.starts_with(".git/")));
    }

    #[test]
    fn without_git_the_walk_finds_it_too() {
        let files = walked(&process::repository()).unwrap();
        assert!(files.iter().any(|file| file == THIS));
        assert!(!files.iter().any(|file| file.starts_with("target/") || file.starts_with(".git/")));
    }

    #[test]
    fn a_line_is_counted_from_one() {
        assert_eq!(line_where("a\nb\nc", |line| line == "b"), 2);
        assert_eq!(line_where("a\nb\nc", |line| line == "z"), 1);
    }
}
