//! `cargo xtask ci`: every check of the repository in order. Owns the order; each step can be run alone with
//! the command that is printed when it fails.

use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::flags::{self, Asked};
use crate::services::seconds;
use crate::{chaos, fuzz, instructions, mutate, planted, process, sim, test, tidy};

const USAGE: &str = "\
Usage: cargo xtask ci

Runs every check in order and stops at the first that fails, with the command to repeat it:
format, clippy, tidy, test, mutate-decide, sim, planted, fuzz and chaos (short ones), instructions, doc.";

/// One check.
struct Step {
    name: &'static str,
    /// What to type to run this step alone.
    repeat: &'static str,
    run: fn() -> Result<(), Failure>,
}

const STEPS: &[Step] = &[
    Step {
        name: "format",
        repeat: "cargo fmt --all --check",
        run: || process::run(&mut process::cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "clippy",
        repeat: "cargo clippy --workspace --all-targets --all-features -- -D warnings",
        run: || {
            let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
            process::run(&mut process::cargo(&args))
        },
    },
    Step { name: "tidy", repeat: "cargo xtask tidy", run: || tidy::run(&[]) },
    Step { name: "test", repeat: "cargo xtask test", run: || test::run(&[]) },
    Step { name: "mutate-decide", repeat: "cargo xtask mutate-decide", run: || mutate::run(&[]) },
    Step { name: "sim", repeat: "cargo xtask sim", run: || sim::run(&[]) },
    Step { name: "planted", repeat: "cargo xtask planted", run: || planted::run(&[]) },
    Step { name: "fuzz", repeat: "cargo xtask fuzz", run: || fuzz::run(&[]) },
    Step {
        name: "chaos",
        repeat: "cargo xtask chaos --seconds 20",
        run: || chaos::run(&["--seconds".to_owned(), "20".to_owned()]),
    },
    Step { name: "instructions", repeat: "cargo xtask instructions", run: || instructions::run(&[]) },
    Step {
        name: "doc",
        repeat: "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features",
        run: || {
            let mut command = process::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
            process::run(command.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
];

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match flags::only_help(args, USAGE)? {
        Asked::Help => {
            println!("{USAGE}");
            Ok(())
        }
        Asked::Run => {
            need_component("fmt", "rustfmt")?;
            need_component("clippy", "clippy")?;
            let taken = run_steps(STEPS)?;
            println!("\n{}", table(&taken));
            Ok(())
        }
    }
}

/// Fails before the first step when a later one could not even start.
fn need_component(subcommand: &str, component: &str) -> Result<(), Failure> {
    process::read(&mut process::cargo(&[subcommand, "--version"])).map(drop).map_err(|_| {
        Failure::Failed(format!("`cargo {subcommand}` is missing: rustup component add {component}"))
    })
}

fn run_steps(steps: &[Step]) -> Result<Vec<(&'static str, Duration)>, Failure> {
    let mut taken = Vec::new();
    for Step { name, repeat, run } in steps {
        println!("\n== {name}: {repeat}");
        let started = Instant::now();
        run().map_err(|failure| match failure {
            Failure::Failed(text) => {
                Failure::Failed(format!("{text}\n\nThe step `{name}` failed. To repeat it:\n  {repeat}"))
            }
            Failure::Usage(_) | Failure::Interrupted(_) => failure,
        })?;
        println!("== {name}: ok in {}", seconds(started.elapsed()));
        taken.push((*name, started.elapsed()));
    }
    Ok(taken)
}

fn table(taken: &[(&str, Duration)]) -> String {
    let total = ("total", taken.iter().map(|(_, duration)| *duration).sum());
    let row = |(name, duration): &(&str, Duration)| format!("{name:15}{:>8.1} s", duration.as_secs_f64());
    taken.iter().chain([&total]).map(row).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_ends_the_run_and_says_how_to_repeat_it() {
        let steps = [
            Step { name: "good", repeat: "do good", run: || Ok(()) },
            Step { name: "bad", repeat: "do bad", run: || Err(Failure::Failed("it broke".to_owned())) },
            Step { name: "never", repeat: "do never", run: || unreachable!("a step after a failure") },
        ];
        let text = run_steps(&steps).unwrap_err().to_string();
        assert!(text.contains("it broke") && text.contains("  do bad"), "{text}");
    }

    #[test]
    fn the_table_adds_up() {
        let taken = [("one", Duration::from_millis(1500)), ("two", Duration::from_millis(2500))];
        let table = table(&taken);
        assert!(table.lines().count() == 3 && table.ends_with("4.0 s"), "{table}");
    }

    #[test]
    fn the_usage_names_every_step() {
        assert!(STEPS.iter().all(|step| USAGE.contains(step.name)));
    }
}
