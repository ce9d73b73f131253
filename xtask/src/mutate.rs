//! `cargo xtask mutate-decide`: breaks the decision table one cell at a time and sees the tests of the table catch it.
//! The table is compiled once; which cell is wrong is chosen at run time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use semel_contract::decide::CELLS;
use semel_testbed::binaries::{self, TestBinary, Verdict};
use semel_testbed::failure::Failure;

/// Break the contract's decisions one by one and see each caught.
///
/// Flips every cell of the decision table of semel-contract, one at a time, and runs the tests of the table against each.
/// Prints how many flips were caught; fails if one was not.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {}

/// The variable by which the contract is told which cell to flip.
const VARIABLE: &str = "SEMEL_MUTATE_CELL";

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    let tests = build()?;
    if verdict(&tests, None)?.caught_by().is_some() {
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

/// Builds the tests of the table with the switch in them.
fn build() -> Result<TestBinary, String> {
    let built = binaries::build(&["--test", "decisions"])?;
    built
        .into_iter()
        .find(|program| program.is("semel-contract", "decisions"))
        .ok_or_else(|| "cargo did not say where it put the tests named decisions".to_owned())
}

/// Runs the tests of the table, which are those named after its cells, with one cell flipped or none.
fn verdict(tests: &TestBinary, cell: Option<usize>) -> Result<Verdict, String> {
    let cell = cell.map(|cell| cell.to_string());
    tests.run(&["cell"], cell.as_deref().map(|cell| (VARIABLE, cell)))
}

/// The cells whose flip no test noticed.
fn flip_all(tests: &TestBinary) -> Result<Vec<usize>, String> {
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
            if verdict(tests, Some(cell))?.caught_by().is_none() {
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
