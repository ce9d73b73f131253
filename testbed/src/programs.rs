//! Programs of the system: where one is, and how a missing one is installed. Judges no version.

use std::path::{Path, PathBuf};

use crate::services::{self, Permission, Scratch};

/// A program of the system, from its Debian package where it is missing.
pub fn program(name: &str, package: &str) -> Result<PathBuf, String> {
    if let Some(path) = find(name) {
        return Ok(path);
    }
    let scratch = Scratch::named("install")?;
    services::install_package(package, Permission::InstallIfMissing, &scratch.log("apt-get"))
        .map_err(|failure| format!("{name} is not here and could not be installed: {failure}"))?;
    find(name)
        .ok_or_else(|| format!("{name} is not where it should be after its package {package} was installed"))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path: &PathBuf| Path::is_file(path))
}
