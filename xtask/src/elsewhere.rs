//! Commands that are programs of their own: chaos and the benches, which only those build who run them. Hands their words
//! over; knows none of their flags.

use std::os::unix::process::CommandExt;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::{os, process};

const CHAOS: &str = "semel-chaos";
const BENCH: &str = "semel-bench-runner";

/// Becomes chaos: signals, output and the exit code are its own.
pub(crate) fn become_chaos(args: &[String]) -> Result<(), Failure> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    become_program(&mut program(CHAOS, &args))
}

/// Becomes the benches: signals, output and the exit code are their own.
pub(crate) fn become_bench(args: &[String]) -> Result<(), Failure> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    become_program(&mut program(BENCH, &args))
}

/// Runs chaos to its end. It stops what it started when this process ends before.
pub(crate) fn run_chaos(args: &[&str]) -> Result<(), Failure> {
    let mut command = program(CHAOS, args);
    os::die_with_parent(&mut command, libc::SIGTERM);
    process::run(&mut command)
}

fn program(package: &str, args: &[&str]) -> Command {
    process::cargo(&[&["run", "--quiet", "--package", package, "--"], args].concat())
}

/// Returns only when the program could not be started.
fn become_program(command: &mut Command) -> Result<(), Failure> {
    Err(Failure::Failed(format!("cannot start `{}`: {}", process::line(command), command.exec())))
}
