//! A Python with the packages of the examples, in a folder under `target/`: made once, made anew when the list changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::scratch::Scratch;
use super::server;
use crate::failure::Failure;
use crate::process;

/// The packages, each with its version.
const REQUIREMENTS: &str = "examples/agents/requirements.txt";
/// Beside the packages: the list they were installed from.
const INSTALLED: &str = "installed.txt";

/// The interpreter of that folder, for tests that run an example.
pub(crate) fn prepare(python: &Path, scratch: &Scratch) -> Result<PathBuf, Failure> {
    let repository = process::repository();
    let wanted = std::fs::read_to_string(repository.join(REQUIREMENTS))
        .map_err(|error| format!("failed to read {REQUIREMENTS}: {error}"))?;
    let folder = repository.join("target").join("python");
    let interpreter = folder.join("bin").join("python");
    if std::fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|installed| installed == wanted) {
        return Ok(interpreter);
    }
    eprintln!("xtask: installing the Python packages of the examples");
    let log = scratch.log("python");
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(&folder);
    server::run_logged(&mut venv, "making a Python environment", &log)?;
    let mut pip = Command::new(&interpreter);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    pip.arg(repository.join(REQUIREMENTS));
    server::run_logged(&mut pip, "installing Python packages", &log)?;
    std::fs::write(folder.join(INSTALLED), wanted)
        .map_err(|error| format!("failed to write down what is installed: {error}"))?;
    Ok(interpreter)
}
