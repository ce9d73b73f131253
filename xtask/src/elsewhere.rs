//! Commands that are programs of their own: chaos and the benches, which only those build who run them. Hands their words
//! over; knows none of their flags.

use std::os::unix::process::CommandExt;
use std::process::Command;

use semel_testbed::failure::Failure;
use semel_testbed::{os, process};

const CHAOS: &str = "semel-chaos";
const BENCH: &str = "semel-bench-runner";

/// What another program reads: every word as it stands, flags too.
#[derive(Debug, clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(crate) words: Vec<String>,
}

/// Becomes chaos: signals, output and the exit code are its own.
pub(crate) fn become_chaos(words: &Words) -> Result<(), Failure> {
    become_program(CHAOS, words)
}

/// Becomes the benches: signals, output and the exit code are their own.
pub(crate) fn become_bench(words: &Words) -> Result<(), Failure> {
    become_program(BENCH, words)
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
fn become_program(package: &str, words: &Words) -> Result<(), Failure> {
    let words: Vec<&str> = words.words.iter().map(String::as_str).collect();
    let mut command = program(package, &words);
    Err(Failure::Failed(format!("cannot start `{}`: {}", process::line(&command), command.exec())))
}
