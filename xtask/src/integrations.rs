//! Crates that tie semel to libraries it cannot share a lock file with. Each has a workspace of its own under
//! `integrations/`; this runs their tests with the servers of the others.

use std::path::{Path, PathBuf};

use semel_testbed::failure::Failure;
use semel_testbed::process;

/// A crate that brings a SQLite of its own and must therefore stay out of these lock files.
const FORBIDDEN: &str = "name = \"rusqlite\"";

/// Tests every integration. `environment` tells them where the servers are.
pub(crate) fn test(environment: &[(&'static str, String)]) -> Result<(), Failure> {
    for folder in folders()? {
        refuse_forbidden(&folder.join("Cargo.lock"))?;
        let manifest = folder.join("Cargo.toml");
        let mut command =
            process::cargo(&["test", "--locked", "--manifest-path", &manifest.to_string_lossy()]);
        let target = process::repository().join("target").join("integrations");
        command.env("CARGO_TARGET_DIR", target).envs(environment.iter().cloned());
        eprintln!("xtask: {}", process::line(&command));
        process::supervise(&mut command, None)?;
    }
    Ok(())
}

fn folders() -> Result<Vec<PathBuf>, String> {
    let all = process::repository().join("integrations");
    let entries =
        std::fs::read_dir(&all).map_err(|error| format!("failed to read {}: {error}", all.display()))?;
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.retain(|folder| folder.join("Cargo.toml").exists());
    folders.sort();
    Ok(folders)
}

/// A user of such a library takes semel without its embedded store; nothing of it may come along.
fn refuse_forbidden(lock: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(lock)
        .map_err(|error| format!("failed to read {}: {error}", lock.display()))?;
    match text.contains(FORBIDDEN) {
        true => Err(format!(
            "{} locks rusqlite: a feature of semel pulls it in where it must not",
            lock.display()
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_with_the_embedded_store_is_refused() {
        let lock = std::env::temp_dir().join(format!("semel-xtask-lock-{}", std::process::id()));
        std::fs::write(&lock, "[[package]]\nname = \"rusqlite\"\n").expect("a file");
        assert!(refuse_forbidden(&lock).is_err());
        std::fs::write(&lock, "[[package]]\nname = \"sqlx\"\n").expect("a file");
        assert_eq!(refuse_forbidden(&lock), Ok(()));
        std::fs::remove_file(&lock).expect("it is there");
    }

    #[test]
    fn every_integration_has_a_lock_file() {
        let folders = folders().expect("the folder is there");
        assert!(!folders.is_empty());
        assert!(folders.iter().all(|folder| folder.join("Cargo.lock").exists()));
    }
}
