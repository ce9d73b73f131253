//! `cargo xtask planted`: plants each known bug, one at a time, and sees the tests catch it. The tests know nothing of the
//! bugs; a bug that survives says that a rule has no test.

use semel_contract::planted::Bug;

use crate::binaries::{self, TestBinary};
use crate::failure::Failure;
use crate::flags::{Asked, only_help};

const USAGE: &str = "Usage: cargo xtask planted

Builds the tests once with the feature `planted`, runs them once for every known bug with that bug chosen, and
prints which test caught it. Fails if a bug survives, or if a test fails without one.";

/// The variable by which a bug is chosen.
const VARIABLE: &str = "SEMEL_PLANTED";

/// Where the bugs are, and the tests that look for them: quick ones, which need no server and kill no process.
const TESTS: &str = "--package semel-contract --package semel-store --package semel-gate \
    --features semel-gate/planted,semel-gate/testing,semel-gate/failpoints,semel-store/conformance \
    --lib --test decisions --test requests --test senders --test profiles --test memory --test layer";

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    if only_help(args, USAGE)? == Asked::Help {
        println!("{USAGE}");
        return Ok(());
    }
    let tests = binaries::build(&TESTS.split_whitespace().collect::<Vec<_>>())?;
    if let Some(test) = caught_by(&tests, None)? {
        return Err(Failure::Failed(format!("{test} fails without any bug; mend it first")));
    }
    let mut survivors = Vec::new();
    for bug in Bug::ALL {
        match caught_by(&tests, Some(*bug))? {
            Some(test) => println!("{:<26} caught by {test}", bug.name()),
            None => {
                println!("{:<26} SURVIVED: {}", bug.name(), bug.about());
                survivors.push(bug.name());
            }
        }
    }
    println!("{} of {} caught", Bug::ALL.len() - survivors.len(), Bug::ALL.len());
    match survivors.as_slice() {
        [] => Ok(()),
        some => Err(Failure::Failed(format!("no test noticed: {}", some.join(", ")))),
    }
}

/// The first test, among all programs, that fails.
fn caught_by(tests: &[TestBinary], bug: Option<Bug>) -> Result<Option<String>, String> {
    for program in tests {
        let verdict = program.run(&[], bug.map(|bug| (VARIABLE, bug.name())))?;
        if let Some(test) = verdict.caught_by() {
            return Ok(Some(format!("{}: {test}", program.name)));
        }
    }
    Ok(None)
}
