//! `cargo xtask mutate-decide`: breaks the decision table one cell at a time and sees the tests of the table catch it.
//! The table is compiled once; which cell is wrong is chosen at run time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use semel_contract::decide::CELLS;
use serde_json::Value;

use crate::failure::Failure;
use crate::flags::{Asked, only_help};
use crate::process;

const USAGE: &str = "Usage: cargo xtask mutate-decide

Flips every cell of the decision table of semel-contract, one at a time, and runs the tests of the table
against each. Prints how many flips were caught; fails if one was not.";

/// The variable by which the contract is told which cell to flip.
const VARIABLE: &str = "SEMEL_MUTATE_CELL";
/// What a test binary exits with when a test failed. Anything else is not a catch but a fault of the run.
const TESTS_FAILED: i32 = 101;

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    if only_help(args, USAGE)? == Asked::Help {
        println!("{USAGE}");
        return Ok(());
    }
    let tests = build()?;
    if verdict(&tests, None)? != Verdict::Passed {
        return Err(Failure::Failed(
            "the tests of the table fail without any flip; mend them first".to_owned(),
        ));
    }
    let survivors = flip_all(&tests)?;
    println!("{} of {CELLS} caught", CELLS - survivors.len());
    match survivors.as_slice() {
        [] => Ok(()),
        some => Err(Failure::Failed(format!("no test noticed when these cells were flipped: {some:?}"))),
    }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Passed,
    Caught,
}

/// Builds the tests of the table with the switch in them, and says where they are.
fn build() -> Result<PathBuf, String> {
    let mut command = process::cargo(&[
        "test",
        "--package",
        "semel-contract",
        "--features",
        "mutate",
        "--test",
        "decisions",
        "--no-run",
        "--message-format",
        "json",
    ]);
    let output = process::read(&mut command)?;
    let built = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = built
        .filter(|message| message["target"]["name"] == "decisions")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    binary.ok_or_else(|| "cargo did not say where it put the tests named decisions".to_owned())
}

/// Runs the tests, with one cell flipped or none.
fn verdict(tests: &Path, cell: Option<usize>) -> Result<Verdict, String> {
    let mut command = Command::new(tests);
    // The tests of the table are those named after its cells.
    command.args(["--quiet", "cell"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env_remove(VARIABLE).env("RUST_BACKTRACE", "0");
    if let Some(cell) = cell {
        command.env(VARIABLE, cell.to_string());
    }
    let status = command.status().map_err(|error| format!("cannot start {}: {error}", tests.display()))?;
    match status.code() {
        Some(0) => Ok(Verdict::Passed),
        Some(TESTS_FAILED) => Ok(Verdict::Caught),
        Some(_) | None => {
            Err(format!("{} ended with {status}, which is neither passed nor failed", tests.display()))
        }
    }
}

/// The cells whose flip no test noticed.
fn flip_all(tests: &Path) -> Result<Vec<usize>, String> {
    let next = AtomicUsize::new(0);
    let survivors = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        loop {
            let cell = next.fetch_add(1, Ordering::Relaxed);
            if cell >= CELLS {
                return Ok(());
            }
            if cell.is_multiple_of(200) {
                eprintln!("xtask: {cell} of {CELLS} cells flipped");
            }
            if verdict(tests, Some(cell))? == Verdict::Passed {
                survivors.lock().expect("no flip panics").push(cell);
            }
        }
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a flip panicked".to_owned())?)
    })?;
    let mut survivors = survivors.into_inner().expect("no flip panics");
    survivors.sort_unstable();
    Ok(survivors)
}
