//! `cargo xtask ci`: every check of the repository in order. Owns the order and how long each step may take; each can be run
//! alone with the command that is printed when it fails.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::process;
use semel_testbed::services::{self, Permission, seconds};

use crate::{callgrind, clients, elsewhere, fuzz, instructions, mutate, planted, sim, test, tidy};

/// Run every check in order, as the continuous integration does.
///
/// Runs every check in order and stops at the first that fails, with the command to repeat it: format, clippy, tidy, test,
/// clients, mutate-decide, sim, planted, fuzz and chaos (short ones), instructions, doc. A step that takes over twice its
/// budget fails and ends the run. What has to be installed is installed while the first steps run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {}

/// One check.
struct Step {
    name: &'static str,
    /// What to type to run this step alone.
    repeat: &'static str,
    /// How long it should take on two cores that build everything for the first time.
    minutes: f64,
    run: fn() -> Result<(), Failure>,
}

const STEPS: &[Step] = &[
    Step {
        name: "format",
        repeat: "cargo fmt --all --check",
        minutes: 0.2,
        run: || process::run(&mut process::cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "clippy",
        repeat: "cargo clippy --workspace --all-targets --all-features -- -D warnings",
        minutes: 2.5,
        run: || {
            let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
            process::run(&mut process::cargo(&args))
        },
    },
    Step {
        name: "tidy",
        repeat: "cargo xtask tidy",
        minutes: 0.2,
        run: || tidy::run(&tidy::Args::default()),
    },
    Step {
        name: "test",
        repeat: "cargo xtask test --no-clients",
        minutes: 13.0,
        run: test::run_without_clients,
    },
    // Programs in six languages, three of them in browsers, two at a time.
    Step {
        name: "clients",
        repeat: "cargo xtask clients",
        minutes: 10.5,
        run: || clients::run(&clients::Args::default()),
    },
    Step {
        name: "mutate-decide",
        repeat: "cargo xtask mutate-decide",
        minutes: 1.0,
        run: || mutate::run(&mutate::Args::default()),
    },
    Step { name: "sim", repeat: "cargo xtask sim", minutes: 5.0, run: || sim::run(&sim::Args::default()) },
    Step {
        name: "planted",
        repeat: "cargo xtask planted",
        minutes: 5.5,
        run: || planted::run(&planted::Args::default()),
    },
    Step {
        name: "fuzz",
        repeat: "cargo xtask fuzz",
        minutes: 1.0,
        run: || fuzz::run(&fuzz::Args::default()),
    },
    Step {
        name: "chaos",
        repeat: "cargo xtask chaos --seconds 20",
        minutes: 2.0,
        run: || elsewhere::run_chaos(&["--seconds", "20"]),
    },
    Step {
        name: "instructions",
        repeat: "cargo xtask instructions",
        minutes: 2.5,
        run: || instructions::run(&instructions::Args::default()),
    },
    Step {
        name: "doc",
        repeat: "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features",
        minutes: 1.5,
        run: || {
            let mut command = process::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
            process::run(command.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
];

pub(crate) fn run(_: &Args) -> Result<(), Failure> {
    need_component("fmt", "rustfmt")?;
    need_component("clippy", "clippy")?;
    // What could not be installed is said by the step that needs it.
    let installing =
        thread::spawn(|| (services::install_all(Permission::InstallIfMissing), callgrind::find()));
    let taken = run_steps(STEPS)?;
    drop(installing.join());
    println!("\n{}", table(&taken));
    Ok(())
}

/// Fails before the first step when a later one could not even start.
fn need_component(subcommand: &str, component: &str) -> Result<(), Failure> {
    process::read(&mut process::cargo(&[subcommand, "--version"])).map(drop).map_err(|_| {
        Failure::Failed(format!("`cargo {subcommand}` is missing: rustup component add {component}"))
    })
}

fn run_steps(steps: &[Step]) -> Result<Vec<(&'static str, Duration)>, Failure> {
    let mut taken = Vec::new();
    for Step { name, repeat, minutes, run } in steps {
        println!("\n== {name}: {repeat}");
        let started = Instant::now();
        let budget = Duration::from_secs_f64(minutes * 60.0);
        let _watch = give_up_after(budget * 2, name);
        run().map_err(|failure| match failure {
            Failure::Failed(text) => {
                Failure::Failed(format!("{text}\n\nThe step `{name}` failed. To repeat it:\n  {repeat}"))
            }
            Failure::Usage(_) | Failure::Interrupted(_) => failure,
        })?;
        keep_to(name, budget, started.elapsed())?;
        println!("== {name}: ok in {} of {}", seconds(started.elapsed()), seconds(budget));
        taken.push((*name, started.elapsed()));
    }
    Ok(taken)
}

/// Ends this process, and with it what it started, when a step is still at work after `limit`: a step that hangs would
/// otherwise take the whole run's time and say nothing. It stands down once what it returns is dropped.
fn give_up_after(limit: Duration, name: &'static str) -> mpsc::Sender<()> {
    let (done, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("xtask: the step `{name}` is still at work after {}: given up", seconds(limit));
            std::process::exit(1);
        }
    });
    done
}

/// A step that grows unnoticed makes every change wait: twice over is too much.
fn keep_to(name: &str, budget: Duration, taken: Duration) -> Result<(), Failure> {
    match taken > budget * 2 {
        false => Ok(()),
        true => Err(Failure::Failed(format!(
            "the step `{name}` took {}, its budget is {}: make it faster, or say in xtask/src/ci.rs why it may take longer",
            seconds(taken),
            seconds(budget)
        ))),
    }
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
            Step { name: "good", repeat: "do good", minutes: 1.0, run: || Ok(()) },
            Step {
                name: "bad",
                repeat: "do bad",
                minutes: 1.0,
                run: || Err(Failure::Failed("it broke".to_owned())),
            },
            Step {
                name: "never",
                repeat: "do never",
                minutes: 1.0,
                run: || unreachable!("a step after a failure"),
            },
        ];
        let text = run_steps(&steps).unwrap_err().to_string();
        assert!(text.contains("it broke") && text.contains("  do bad"), "{text}");
    }

    #[test]
    fn a_step_that_takes_over_twice_its_budget_fails() {
        let minute = Duration::from_secs(60);
        assert_eq!(keep_to("slow", minute, minute * 2), Ok(()));
        let failure = keep_to("slow", minute, minute * 2 + Duration::from_millis(1)).unwrap_err().to_string();
        assert!(failure.contains("`slow`") && failure.contains("60.0 s"), "{failure}");
    }

    #[test]
    fn the_whole_run_fits_in_three_quarters_of_an_hour() {
        let total: f64 = STEPS.iter().map(|step| step.minutes).sum();
        assert!(total <= 45.0, "{total} minutes");
    }

    #[test]
    fn the_table_adds_up() {
        let taken = [("one", Duration::from_millis(1500)), ("two", Duration::from_millis(2500))];
        let table = table(&taken);
        assert!(table.lines().count() == 3 && table.ends_with("4.0 s"), "{table}");
    }

    #[test]
    fn the_help_names_every_step() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("ci"));
        let help = command.get_long_about().expect("it explains itself").to_string();
        assert!(STEPS.iter().all(|step| help.contains(step.name)), "{help}");
    }
}
