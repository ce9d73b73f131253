//! Test programs: built once, run many times with one variable changed. Owns how a failed test is told from a failed run,
//! and that every command builds the same: other packages or features would be another build of almost everything.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::{os, process};

/// What a test program exits with when a test failed. Anything else is not a catch but a fault of the run.
const TESTS_FAILED: i32 = 101;

/// How long a test program may run here. With a bug planted some tests wait for what never comes; that they do not end says
/// it as clearly as a failure does.
const RUN_MAX: Duration = Duration::from_secs(180);

/// A test program that is built.
pub struct TestBinary {
    pub name: String,
    path: PathBuf,
    package: PathBuf,
}

/// What a run of a test program came to.
pub enum Verdict {
    /// Every test passed.
    Passed,
    /// This test failed, perhaps with others.
    Caught(String),
}

impl Verdict {
    /// The test that noticed something.
    pub fn caught_by(&self) -> Option<&str> {
        match self {
            Verdict::Passed => None,
            Verdict::Caught(test) => Some(test),
        }
    }
}

/// Builds the one program that these arguments of `cargo build` choose, and says where it is.
pub fn program(args: &[&str]) -> Result<PathBuf, String> {
    let output =
        process::read(&mut process::cargo(&[&["build"], args, &["--message-format", "json"]].concat()))?;
    let messages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    built.next_back().ok_or_else(|| "nothing was built that can be run".to_owned())
}

/// The packages and features with which tests are built, by whichever command.
pub const WHOLE: [&str; 2] = ["--workspace", "--all-features"];

/// Builds the test programs that these targets (`--lib`, `--test NAME`) of the workspace choose.
pub fn build(targets: &[&str]) -> Result<Vec<TestBinary>, String> {
    let built = messages(targets)?.into_iter().filter_map(|message| {
        let path = PathBuf::from(message["executable"].as_str()?);
        let package = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        let is_test = message["profile"]["test"] == true;
        is_test.then(|| TestBinary {
            name: message["target"]["name"].as_str().unwrap_or("?").to_owned(),
            path,
            package,
        })
    });
    Ok(built.collect())
}

/// Builds a program of ours as the tests of this name run it, and says where it is.
pub fn tested_program(name: &str, test: &str) -> Result<PathBuf, String> {
    let built = messages(&["--test", test])?.into_iter().find_map(|message| {
        let is_it = message["target"]["name"] == name && message["target"]["kind"][0] == "bin";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    built.ok_or_else(|| format!("the tests `{test}` do not run `{name}`"))
}

/// What cargo says while it builds tests. Its own output for people goes where ours goes.
fn messages(targets: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = process::cargo(
        &[&["test"], &WHOLE[..], targets, &["--no-run", "--message-format", "json-render-diagnostics"]]
            .concat(),
    );
    // It may run beside something that fails first.
    os::die_with_parent(&mut command, libc::SIGTERM);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    match output.status.success() {
        true => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
        }
        false => Err(format!("`{}` failed ({})", process::line(&command), output.status)),
    }
}

impl TestBinary {
    /// Whether it is this program of this package.
    pub fn is(&self, package: &str, name: &str) -> bool {
        let folder = package.strip_prefix("semel-").unwrap_or(package);
        self.name == name && self.package.file_name().is_some_and(|found| found == folder)
    }

    /// The folder of its crate and its name.
    pub fn title(&self) -> String {
        let folder = self.package.file_name().unwrap_or_default().to_string_lossy();
        format!("{folder}: {}", self.name)
    }

    /// The program with these arguments, to be run where its tests expect it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).current_dir(&self.package).stdin(Stdio::null()).env("RUST_BACKTRACE", "0");
        // As cargo has it: ours names this package.
        command.env("CARGO_MANIFEST_DIR", &self.package);
        command
    }

    /// Whether it belongs to the crate in this folder.
    pub fn is_of(&self, folder: &str) -> bool {
        self.package.file_name().is_some_and(|name| name == folder)
    }

    /// Runs the program with these arguments and these variables set.
    pub fn run<'a>(
        &self,
        args: &[&str],
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Verdict, String> {
        let mut command = self.command(args);
        command.stderr(Stdio::null()).envs(variables);
        let Some(output) = process::read_within(&mut command, RUN_MAX)? else {
            return Ok(Verdict::Caught(format!("not at its end after {} s", RUN_MAX.as_secs())));
        };
        match output.status.code() {
            Some(0) => Ok(Verdict::Passed),
            Some(TESTS_FAILED) => Ok(Verdict::Caught(first_failed(&String::from_utf8_lossy(&output.stdout)))),
            Some(_) | None => {
                Err(format!("{} ended with {}, which is neither passed nor failed", self.name, output.status))
            }
        }
    }
}

/// The first test that a program's output says has failed.
fn first_failed(output: &str) -> String {
    let failed = output.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    failed.unwrap_or("a test").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_test_is_named() {
        let output = "running 2 tests\ntest good ... ok\ntest bad_one ... FAILED\n";
        assert_eq!(first_failed(output), "bad_one");
        assert_eq!(first_failed(""), "a test");
    }
}
