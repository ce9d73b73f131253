//! Builds our own programs and finds or installs those of others.

use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;
use crate::process;
use crate::services::{self, Permission, Scratch};

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| process::repository().join("target"), PathBuf::from)
}

pub(crate) fn semel_binary() -> PathBuf {
    target().join("release").join("semel")
}

pub(crate) fn bench_binary() -> PathBuf {
    target().join("release").join("semel-bench")
}

/// Builds the release binaries, each alone: built together, features that only one of them wants would be in both.
pub(crate) fn build() -> Result<(), Failure> {
    for package in ["semel", "semel-bench"] {
        process::supervise(&mut process::cargo(&["build", "--release", "-p", package]), None)?;
    }
    Ok(())
}

/// Installs what the benches need from others. What cannot be installed is said, and no failure: a bench says it again.
pub(crate) fn prepare() -> Result<(), Failure> {
    if let Err(why) = nginx() {
        eprintln!("xtask: {why}");
    }
    Ok(())
}

/// The path of nginx, which is installed where that is possible.
pub(crate) fn nginx() -> Result<PathBuf, String> {
    program("nginx", "nginx")
}

/// A program of the system, from its Debian package where it is missing.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, String> {
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
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The version that a program prints about itself, for the notes of a table.
pub(crate) fn version(program: &std::path::Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    let text = output.map(|out| [out.stdout, out.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("?").trim().to_owned()
}
