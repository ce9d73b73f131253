//! Programs under callgrind: how valgrind is found, how `semel-bench-instructions` is built and run under it, and what its
//! profile says about who calls whom. Draws no conclusions.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::{process, programs};

const PACKAGE: &str = "semel-bench-instructions";

/// The path of valgrind, which is installed where that is possible.
pub(crate) fn find() -> Result<PathBuf, String> {
    programs::program("valgrind", "valgrind")
}

/// Builds the program that sends requests, with this profile of cargo's, and says where it is.
pub(crate) fn build(profile: &str) -> Result<PathBuf, Failure> {
    process::run(&mut process::cargo(&["build", "--profile", profile, "-p", PACKAGE]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(process::target().join(folder).join(PACKAGE))
}

/// Runs `binary PATH REQUESTS` under callgrind and returns how many instructions that took. The profile goes to `profile`.
pub(crate) fn run(
    valgrind: &Path,
    binary: &Path,
    path: &str,
    requests: u64,
    profile: &Path,
) -> Result<u64, Failure> {
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--demangle=no"]);
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg(binary);
    command.args([path, &requests.to_string()]);
    let output = command.output().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    collected(&said).filter(|_| output.status.success()).ok_or_else(|| {
        Failure::Failed(format!("`{}` failed ({}):\n{said}", process::line(&command), output.status))
    })
}

/// The count in callgrind's last words.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

/// A function: its mangled name and the file in which it is written.
pub(crate) type Function = (String, String);

/// Who called whom, and how often.
pub(crate) type Calls = BTreeMap<(Function, Function), u64>;

/// Names are written out once, as `(7) name`, and by their number from then on.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn of(&mut self, text: &str) -> String {
        let (number, name) = text.split_once(' ').unwrap_or((text, ""));
        match name {
            "" => self.0.get(number).cloned().unwrap_or_default(),
            name => {
                self.0.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
        }
    }
}

/// Reads the calls of a profile.
pub(crate) fn calls(profile: &str) -> Calls {
    let (mut files, mut functions) = (Names::default(), Names::default());
    let (mut file, mut inlined, mut caller) = (String::new(), String::new(), String::new());
    let (mut called_file, mut called) = (None, String::new());
    let mut calls: BTreeMap<(Function, Function), u64> = BTreeMap::new();
    for line in profile.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        match key {
            "fl" => {
                file = files.of(value);
                inlined.clone_from(&file);
            }
            "fi" | "fe" => inlined = files.of(value),
            "fn" => caller = functions.of(value),
            "cfi" | "cfl" => called_file = Some(files.of(value)),
            "cfn" => called = functions.of(value),
            "calls" => {
                let count: u64 = value.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
                // Without a file of its own, the called one stands where the caller is.
                let callee = (called.clone(), called_file.take().unwrap_or_else(|| inlined.clone()));
                *calls.entry(((caller.clone(), file.clone()), callee)).or_default() += count;
            }
            _ => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_last_words_are_understood() {
        assert_eq!(
            collected("==1== Events    : Ir\n==1== Collected : 112582024\n==1==\n"),
            Some(112_582_024)
        );
        assert_eq!(collected("==1== nothing"), None);
    }

    #[test]
    fn calls_are_read_with_their_names_and_files() {
        let profile = "events: Ir\nfl=(1) /a.rs\nfn=(1) one\n3 10\ncfi=(2) /b.rs\ncfn=(2) two\ncalls=4 9\n3 40\n\
                       fi=(2)\ncfn=(3) three\ncalls=1 2\n3 1\n\nfl=(2)\nfn=(2)\n9 10\ncfn=(3)\ncalls=2 2\n5 5\n";
        let function = |name: &str, file: &str| (name.to_owned(), file.to_owned());
        let (one, two, three) =
            (function("one", "/a.rs"), function("two", "/b.rs"), function("three", "/b.rs"));
        let expected = [((one.clone(), two.clone()), 4), ((one, three.clone()), 1), ((two, three), 2)];
        assert_eq!(calls(profile), expected.into_iter().collect());
    }
}
