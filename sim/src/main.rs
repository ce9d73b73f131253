//! Runs seeds from the command line: one, many, or for some minutes.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use semel_sim::coverage::{Coverage, Met};
use semel_sim::delivery_faults::DeliveryFault;
use semel_sim::faults::{Fault, Swarm};
use semel_sim::part::Part;
use semel_sim::plan::Options;
use semel_sim::planted::Bug;
use semel_sim::report::too_small;
use semel_sim::run::{run, run_twice};

/// How often the progress line is written.
const PROGRESS: Duration = Duration::from_secs(5);

/// Simulates the gate: one seed, virtual time, injected faults. Every seed is run twice and must do the same.
#[derive(Debug, Parser)]
#[command(name = "semel-sim", after_help = HELP)]
struct Cli {
    /// Which engine is simulated: gate, outbox, relay, broker, or all, where the seed chooses.
    #[arg(long, value_name = "PART", default_value = "all", value_parser = part)]
    part: Parts,
    /// Run this seed.
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "minutes"])]
    seed: Option<u64>,
    /// Run so many seeds.
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, value_name = "S", default_value_t = 1)]
    from: u64,
    /// Run seeds for so many minutes.
    #[arg(long, value_name = "M")]
    minutes: Option<u64>,
    /// Which faults may happen: mixed, calm, store, node, client, upstream, clock, operator or everything.
    #[arg(long, value_name = "P", default_value = "mixed", value_parser = swarm)]
    profile: Swarm,
    /// At least so many steps in a run.
    #[arg(long, value_name = "N", default_value_t = Options::new(0).steps_min)]
    steps: usize,
    /// A fault that is spared unless it is asked for; may be repeated.
    #[arg(long, value_name = "FAULT", value_parser = fault)]
    with: Vec<Spared>,
    /// Show everything that happened.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Run every seed once, and count those that break a promise instead of ending with the first.
    #[arg(long, conflicts_with = "seed")]
    tally: bool,
    /// A mistake that is built in on purpose, to see that it is found.
    #[arg(long, value_name = "BUG", value_parser = bug)]
    planted: Option<Bug>,
}

const HELP: &str = "\
Without --seed, --seeds or --minutes, 100 seeds are run.

Exit codes:
  0  every promise held
  1  a promise was broken, or a seed did not repeat itself; the seed, the command and a trace are printed
  2  the command line is wrong";

fn swarm(name: &str) -> Result<Swarm, String> {
    let known = Swarm::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Swarm::named(name).ok_or_else(|| format!("expected one of {known}"))
}

/// The engines that may be played.
#[derive(Clone, Copy, Debug)]
enum Parts {
    /// The seed chooses.
    All,
    /// This one.
    One(Part),
}

fn part(name: &str) -> Result<Parts, String> {
    match (name, Part::named(name)) {
        ("all", _) => Ok(Parts::All),
        (_, Some(part)) => Ok(Parts::One(part)),
        (_, None) => Err("expected one of gate, outbox, relay, broker, all".to_owned()),
    }
}

/// A fault that is asked for.
#[derive(Clone, Copy, Debug)]
enum Spared {
    Fault(Fault),
    DeliveryFault(DeliveryFault),
}

fn fault(name: &str) -> Result<Spared, String> {
    let fault = Fault::ALL.iter().copied().find(|fault| fault.name() == name).map(Spared::Fault);
    let known = || {
        let faults = Fault::ALL.iter().map(|fault| fault.name());
        faults.chain(DeliveryFault::ALL.iter().map(|fault| fault.name())).collect::<Vec<_>>().join(", ")
    };
    // Some names are of both kinds: each engine takes its own.
    fault
        .or_else(|| DeliveryFault::named(name).map(Spared::DeliveryFault))
        .ok_or_else(|| format!("expected one of {}", known()))
}

fn bug(name: &str) -> Result<Bug, String> {
    let known = || Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join(", ");
    Bug::named(name).ok_or_else(|| format!("expected one of {}", known()))
}

impl Cli {
    /// Whether the minutes that were asked for are over.
    fn is_over(&self, since: Instant) -> bool {
        self.minutes.is_some_and(|minutes| since.elapsed() > Duration::from_secs(minutes * 60))
    }
}

/// What came of all seeds so far.
#[derive(Debug, Default)]
struct Total {
    seeds: u64,
    steps: u64,
    effects: u64,
    millis: u64,
    coverage: Coverage,
}

impl Total {
    fn line(&self, since: Instant) -> String {
        let seconds = since.elapsed().as_secs_f64();
        format!(
            "{} seeds, {:.1} simulated hours, {} steps, {} faults injected, {} effects checked, {:.1} seeds/s (each run twice)",
            self.seeds,
            self.millis as f64 / 3_600_000.0,
            self.steps,
            self.coverage.total(Met::Fault),
            self.effects,
            self.seeds as f64 / seconds.max(0.001)
        )
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let since = Instant::now();
    if cli.tally {
        return tally(&cli, since);
    }
    let mut total = Total::default();
    let mut shown = since;
    for seed in seeds(&cli).take_while(|_| !cli.is_over(since)) {
        if let Err(explained) = one(&cli, seed, &mut total) {
            say(&format!("\n{explained}"));
            return ExitCode::from(1);
        }
        if shown.elapsed() > PROGRESS {
            shown = Instant::now();
            say(&format!("{}\n", total.line(since)));
        }
    }
    say(&format!("{}\nevery promise held\n\n{}", total.line(since), total.coverage.table()));
    ExitCode::SUCCESS
}

/// Runs every seed once. The last line says how many broke a promise.
fn tally(cli: &Cli, since: Instant) -> ExitCode {
    let (mut broken, mut all) = (0_u64, 0_u64);
    for seed in seeds(cli).take_while(|_| !cli.is_over(since)) {
        let options = options(cli, seed);
        all += 1;
        if let Some(failure) = run(&options).failure {
            broken += 1;
            say(&format!("{} {seed} breaks {failure}\n", options.part.name()));
        }
    }
    say(&format!("{broken} of {all} seeds break a promise\n"));
    ExitCode::from(u8::from(broken > 0))
}

fn seeds(cli: &Cli) -> std::ops::Range<u64> {
    match (cli.seed, cli.seeds, cli.minutes) {
        (Some(seed), _, _) => seed..seed + 1,
        (None, Some(count), _) => cli.from..cli.from + count,
        (None, None, Some(_)) => cli.from..u64::MAX,
        (None, None, None) => cli.from..cli.from + 100,
    }
}

/// What is asked for of one seed.
fn options(cli: &Cli, seed: u64) -> Options {
    let part = match cli.part {
        Parts::All => Part::of_seed(seed),
        Parts::One(part) => part,
    };
    let names: Vec<&str> = cli
        .with
        .iter()
        .map(|spared| match spared {
            Spared::Fault(fault) => fault.name(),
            Spared::DeliveryFault(fault) => fault.name(),
        })
        .collect();
    let is_gate = part == Part::Gate;
    Options {
        swarm: cli.profile,
        steps_min: cli.steps,
        planted: cli.planted,
        with: Fault::ALL.iter().copied().filter(|fault| is_gate && names.contains(&fault.name())).collect(),
        with_delivery_faults: names
            .iter()
            .filter(|_| !is_gate)
            .filter_map(|name| DeliveryFault::named(name))
            .collect(),
        ..Options::of(part, seed)
    }
}

/// Runs one seed and adds it to the total, or says what broke.
fn one(cli: &Cli, seed: u64, total: &mut Total) -> Result<(), String> {
    let options = options(cli, seed);
    let report = run_twice(&options)?;
    if cli.log {
        say(&report.log().whole());
    }
    if let Some(explained) = report.explain() {
        return Err(explained);
    }
    if let Some(small) = too_small(&report) {
        return Err(format!("seed {seed}: {small}\n"));
    }
    total.seeds += 1;
    total.steps += report.steps as u64;
    total.effects += report.effects;
    total.millis += report.millis;
    total.coverage.add(&report.coverage);
    Ok(())
}

/// Writes to standard output. Nothing more can be done when that is gone.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
