//! The temporary folder of one run: server data and logs. Removed when dropped; a folder whose run was killed
//! is removed by the next run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::os;

const PREFIX: &str = "semel-xtask-";

/// A folder that lives as long as this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes this run's folder, after removing those that killed runs left.
    pub fn create() -> Result<Scratch, String> {
        sweep(&std::env::temp_dir());
        Scratch::named("run")
    }

    /// Makes a folder for one purpose. Its name holds our process id, by which a later sweep knows its owner.
    pub fn named(purpose: &str) -> Result<Scratch, String> {
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{purpose}", std::process::id()));
        let failed = |error| format!("cannot make the temporary folder {}: {error}", path.display());
        fs::create_dir(&path).map_err(failed)?;
        // PostgreSQL may run as another user than we do: it must be able to pass through.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        Ok(Scratch { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the output of one program goes.
    pub fn log(&self, program: &str) -> PathBuf {
        self.path.join(format!("{program}.log"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("xtask: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the folders of processes that are gone. What cannot be removed belongs to someone else and stays.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let owner = entry.file_name().to_str().and_then(owner_of);
        if owner.is_some_and(|pid| !os::is_alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn owner_of(name: &str) -> Option<u32> {
    let (pid, _purpose) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok().filter(|pid| (2..=i32::MAX as u32).contains(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_gone_with_what_is_in_it() {
        let scratch = Scratch::named("drop").unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(scratch.log("server"), "line").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn the_sweep_takes_folders_of_dead_runs_and_leaves_the_rest() {
        let parent = Scratch::named("sweep").unwrap();
        let dead = parent.path().join(format!("{PREFIX}{}-run", i32::MAX));
        let alive = parent.path().join(format!("{PREFIX}{}-run", std::process::id()));
        let foreign = parent.path().join("semel-notes");
        for folder in [&dead, &alive, &foreign] {
            fs::create_dir(folder).unwrap();
        }
        sweep(parent.path());
        assert!(!dead.exists());
        assert!(alive.exists() && foreign.exists());
    }

    #[test]
    fn only_folders_of_ours_have_an_owner() {
        assert_eq!(owner_of("semel-xtask-4711-run"), Some(4711));
        assert_eq!(owner_of("semel-xtask-4711"), None);
        assert_eq!(owner_of("semel-xtask-1-run"), None);
        assert_eq!(owner_of("other-4711-run"), None);
    }
}
