//! `cargo xtask clients`: the tests of the client libraries in other languages, of the console in browsers, and of the
//! applications. Owns what each is told: where the servers and the `semel` program are. A folder under `clients/`, `crates/console/`
//! or `examples/` with a `test.sh` takes part; the script installs what it needs and runs the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{self, Program};
use semel_testbed::failure::Failure;
use semel_testbed::services::{Permission, Services};
use semel_testbed::{binaries, os, process};

const ENVIRONMENT: &str = "\
Environment, as every test.sh finds it:
  SEMEL_BIN                 the `semel` program
  SEMEL_TEST_POSTGRES       URL of a PostgreSQL where databases and roles may be made
  SEMEL_TEST_REDIS          URL of a Redis
  SEMEL_TEST_FAST=1, SEMEL_TEST_LONG=1  what --fast and --all say";

/// Run the tests of the client libraries in other languages.
///
/// Builds semel, starts a PostgreSQL and a Redis, and runs `clients/NAME/test.sh`, `crates/console/browser/test.sh` and
/// `examples/NAME/test.sh` of those that are named, or of all.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub(crate) struct Args {
    /// Leave out what takes long, such as browsers.
    #[arg(long)]
    fast: bool,
    /// The long forms: far more kills, every browser for as long as it takes.
    #[arg(long)]
    all: bool,
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// The script that each client brings.
const SCRIPT: &str = "test.sh";
/// Where clients, the console's browsers and the applications lie, in the order in which they are tested.
const ROOMS: [&str; 3] = ["clients", "crates/console", "examples"];

/// Those that take longest, the longest first.
const LONGEST: [&str; 4] = ["typescript", "browser", "walker", "core"];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let forms = [(args.fast, "SEMEL_TEST_FAST"), (args.all, "SEMEL_TEST_LONG")];
    let form = forms.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| (name, "1".to_owned()));
    let _watch = os::Interrupts::watch();
    let chosen = choose(&folders()?, &args.names)?;
    let services = Services::start(Permission::InstallIfMissing)?;
    let environment: Vec<_> = services.environment().into_iter().chain(form).collect();
    let result = test_each(&chosen, &environment, services.folder());
    for line in services.stop() {
        eprintln!("xtask: {line}");
    }
    result
}

/// Tests every client. `environment` tells them where the servers are; `output` is a folder for what they print meanwhile.
pub(crate) fn test(environment: &[(&'static str, String)], output: &Path) -> Result<(), Failure> {
    test_each(&folders()?, environment, output)
}

/// Tests each, two at a time: a script waits for browsers, virtual days and killed processes more than it works. Those that take
/// longest begin first, so that nothing long is left for the end.
fn test_each(
    chosen: &[PathBuf],
    environment: &[(&'static str, String)],
    output: &Path,
) -> Result<(), Failure> {
    let semel = binaries::tested_program("semel", "check")?;
    let mut chosen = chosen.to_vec();
    chosen.sort_by_key(|folder| {
        LONGEST.iter().position(|long| name_of(folder) == *long).unwrap_or(LONGEST.len())
    });
    let program = |folder: &PathBuf| {
        let mut command = Command::new("bash");
        command.arg(SCRIPT).current_dir(folder).env("SEMEL_BIN", &semel).envs(environment.iter().cloned());
        Program { name: name_of(folder), is_live: false, command }
    };
    programs::run_all(chosen.iter().map(program).collect(), output).map(drop)
}

/// The clients of these names; all of them when none is named.
fn choose(all: &[PathBuf], names: &[String]) -> Result<Vec<PathBuf>, Failure> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |name: &String| {
        let known = || all.iter().map(|folder| name_of(folder)).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|folder| name_of(folder) == *name).cloned();
        found.ok_or_else(|| Failure::Usage(format!("there is no client `{name}`; there are: {}", known())))
    };
    names.iter().map(find).collect()
}

/// Every folder that brings the script, in the order of their names.
fn folders() -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for room in ROOMS {
        let room = process::repository().join(room);
        let entries = std::fs::read_dir(&room)
            .map_err(|error| format!("failed to read {}: {error}", room.display()))?;
        let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        folders.retain(|folder| folder.join(SCRIPT).exists());
        folders.sort();
        found.append(&mut folders);
    }
    Ok(found)
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_chosen_by_name_and_an_unknown_one_is_named() {
        let all = [PathBuf::from("clients/go"), PathBuf::from("clients/python")];
        assert_eq!(choose(&all, &[]), Ok(all.to_vec()));
        assert_eq!(choose(&all, &["python".to_owned()]), Ok(vec![all[1].clone()]));
        let failure = choose(&all, &["perl".to_owned()]).unwrap_err().to_string();
        assert!(failure.contains("`perl`") && failure.contains("go, python"), "{failure}");
    }
}
