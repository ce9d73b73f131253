//! `cargo xtask dist`: one archive with the stripped release binary and everything that is installed beside it.

use std::path::Path;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process;
use sha2::{Digest, Sha256};

/// Pack the release binary with what is installed beside it.
///
/// Builds the release binary, strips it, and packs it with its documents, completions, systemd units, the recipe of its image
/// and an example configuration: target/dist/semel-VERSION-TARGET.tar.gz, with its SHA-256 beside it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// What goes along: from the repository, and where to in the archive.
const FILES: &[(&str, &str)] = &[
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("packaging/semel.toml", "etc/semel.toml"),
    ("packaging/systemd/semel-gate.service", "systemd/semel-gate.service"),
    ("packaging/systemd/semel-outbox.service", "systemd/semel-outbox.service"),
    ("packaging/systemd/semel-relay.service", "systemd/semel-relay.service"),
    ("packaging/systemd/semel-gate.socket", "systemd/semel-gate.socket"),
    ("packaging/Containerfile", "Containerfile"),
];

/// The shells that are told how to complete, and under which name.
const SHELLS: &[(&str, &str)] = &[("bash", "semel.bash"), ("zsh", "_semel"), ("fish", "semel.fish")];

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    process::run(&mut process::cargo(&["build", "--release", "--locked", "-p", "semel-cli"]))?;
    let repository = process::repository();
    let target = process::target();
    let built = target.join("release").join("semel");
    let version = process::read(Command::new(&built).arg("--version"))?;
    let version = version.trim().trim_start_matches("semel ").to_owned();
    let name = format!("semel-{version}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let folder = target.join("dist").join(&name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .map_err(|error| format!("failed to clear {}: {error}", folder.display()))?;
    }
    copy(&built, &folder.join("bin/semel"))?;
    process::run(Command::new("strip").arg(folder.join("bin/semel")))?;
    for (from, to) in FILES {
        copy(&repository.join(from), &folder.join(to))?;
    }
    for (shell, file) in SHELLS {
        let text = process::read(Command::new(&built).args(["completions", shell]))?;
        write(&folder.join("completions").join(file), text.as_bytes())?;
    }
    let archive = target.join("dist").join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "-C"]).arg(target.join("dist"));
    tar.arg("-czf").arg(&archive).arg(&name);
    process::run(&mut tar)?;
    let bytes = read(&archive)?;
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let file = format!("{name}.tar.gz");
    write(&target.join("dist").join(format!("{file}.sha256")), format!("{sum}  {file}\n").as_bytes())?;
    let binary = read(&folder.join("bin/semel"))?.len();
    println!("{}\n  binary  {:.1} MB\n  archive {:.1} MB", archive.display(), mb(binary), mb(bytes.len()));
    Ok(())
}

fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("failed to write {}: {error}", path.display());
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    std::fs::write(path, bytes).map_err(failed)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("failed to copy {}: {error}", from.display());
    to.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    std::fs::copy(from, to).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_goes_along_is_there() {
        for (from, _) in FILES {
            assert!(process::repository().join(from).is_file(), "{from} is missing");
        }
    }
}
