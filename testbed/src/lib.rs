//! What the project's commands, chaos and the benches share: real servers that live as long as a run, programs of others
//! found or installed, processes that end with us, and the test programs of the workspace. Refuses to be part of a release.

// Nothing of this leaves the repository.
#![allow(missing_debug_implementations)]

pub mod binaries;
pub mod failure;
pub mod os;
pub mod process;
pub mod programs;
pub mod services;

use std::process::ExitCode;

use failure::Failure;

/// Ends a command: what went wrong is said, and the exit code tells its reason.
pub fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
