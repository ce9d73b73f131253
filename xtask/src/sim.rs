//! `cargo xtask sim`: the simulator, optimised, on a few hundred seeds of every engine. Each seed is played twice, must do
//! the same both times, and must keep every promise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use semel_testbed::binaries;
use semel_testbed::failure::Failure;
use semel_testbed::services::seconds;

/// Play seeds of every engine in the simulator.
///
/// Builds the simulator with optimisation and plays seeds of the gate, the outbox, the relay and the broker at once, each seed
/// twice. Fails with the first promise that is broken, its seed, the command that repeats it and what happened. Without a number,
/// 200 seeds of the gate, 60 of the outbox and the relay, and 100 of the broker; with one, so many of each. For a soak of hours,
/// `cargo run --profile instructions -p semel-sim -- --minutes M`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// How many seeds of each engine are played.
    #[arg(long, value_name = "N")]
    pub(crate) seeds: Option<u64>,
}

/// The simulator: the same program as the planted bugs are looked for with, so that it is built once.
const SIMULATOR: &str = "--profile instructions --package semel-sim --features semel-sim/_planted";

/// The engines, and how many seeds of each are played.
const ENGINES: [(&str, u64); 4] = [("gate", 200), ("outbox", 60), ("relay", 60), ("broker", 100)];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let simulator = build()?;
    std::thread::scope(|scope| {
        let play = |(engine, seeds)| {
            let simulator = &simulator;
            scope.spawn(move || played(simulator, engine, args.seeds.unwrap_or(seeds)))
        };
        let engines: Vec<_> = ENGINES.map(play).into_iter().collect();
        engines.into_iter().try_for_each(|engine| {
            let line = engine.join().map_err(|_| "a run of the simulator panicked".to_owned())??;
            println!("{line}");
            Ok(())
        })
    })
}

/// Builds the simulator, and says where it is.
pub(crate) fn build() -> Result<PathBuf, String> {
    binaries::program(&SIMULATOR.split_whitespace().collect::<Vec<_>>())
}

/// Plays seeds of an engine. `Ok`: every promise held.
fn played(simulator: &Path, engine: &str, seeds: u64) -> Result<String, Failure> {
    let began = Instant::now();
    let mut command = Command::new(simulator);
    command.args(["--part", engine, "--seeds", &seeds.to_string()]).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("cannot start the simulator: {error}"))?;
    match output.status.success() {
        true => Ok(format!(
            "{engine:<8}{seeds:>6} seeds, each twice, every promise held, {}",
            seconds(began.elapsed())
        )),
        false => Err(Failure::Failed(format!(
            "a seed of the {engine} breaks a promise:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}
