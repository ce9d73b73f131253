//! `cargo xtask planted`: plants each known bug, one at a time, and sees the tests and the simulation catch it. They know
//! nothing of the bugs; a bug that survives says that a rule has no test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_contract::planted::Bug;
use semel_testbed::binaries::{self, TestBinary};
use semel_testbed::failure::Failure;
use semel_testbed::process;

use crate::sim;

/// Plant known bugs one by one and see each caught.
///
/// Builds the tests and the simulator once with the feature `_planted`, runs them once for every known bug with that bug
/// chosen, and prints which test caught it and in how many seeds the simulation did. Fails if a bug survives both, or if a
/// test or a seed fails without one. Each bug is given N seeds of its engine; without a number, six of the gate's and two of
/// the others', which take longer.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// How many seeds of its engine each bug is given.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
}

/// The variable by which a bug is chosen.
const VARIABLE: &str = "SEMEL_PLANTED";

/// The tests that look for the bugs: quick ones, which need no server and kill no process.
const TESTS: &str = "--lib --test decisions --test requests --test senders --test profiles --test memory --test layer \
    --test stores --test claims --test lanes --test requeues --test receiving --test relay --test broker --test gateway";
/// Where the bugs are.
const FOLDERS: [&str; 7] = ["contract", "http", "store", "gate", "gateway", "delivery", "broker"];

/// Tests that kill and start an engine again for half a minute do so less often while one bug after another is looked at.
const LESS_OFTEN: (&str, &str) = ("SEMEL_TEST_RELAY_CRASHES", "4");
/// How long the simulator may take for the seeds of one bug. A bug that keeps it from ending breaks a promise in one of them.
const SEEDS_MAX: Duration = Duration::from_secs(120);
/// Engines that the simulation has.
const SIMULATED: [&str; 4] = ["gate", "outbox", "relay", "broker"];
/// Bugs that are looked at at once.
const AT_ONCE: usize = 2;

/// Which layer caught a bug.
struct Caught {
    /// The first test that failed.
    by: Option<String>,
    /// How many seeds broke a promise, and of how many.
    seeds: u64,
    of: u64,
}

impl Caught {
    fn line(&self, bug: Bug) -> String {
        let by = self.by.as_deref().unwrap_or("-");
        match (&self.by, self.seeds) {
            (None, 0) => format!("{:<30} SURVIVED: {}", bug.name(), bug.about()),
            (_, seeds) => format!("{:<30} simulation {seeds} of {} seeds   tests {by}", bug.name(), self.of),
        }
    }

    fn survived(&self) -> bool {
        self.by.is_none() && self.seeds == 0
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let seeds = |engine: &str| args.seeds.unwrap_or(if engine == "gate" { 6 } else { 2 });
    let mut tests = binaries::build(&TESTS.split_whitespace().collect::<Vec<_>>())?;
    tests.retain(|program| FOLDERS.iter().any(|folder| program.is_of(folder)));
    let simulator = sim::build()?;
    if let Some(test) = caught_by(&tests, None)? {
        return Err(Failure::Failed(format!("{test} fails without any bug; mend it first")));
    }
    for engine in SIMULATED {
        if broken_seeds(&simulator, engine, seeds(engine), None)? > 0 {
            return Err(Failure::Failed(format!(
                "a seed of the {engine} fails without any bug; mend it first"
            )));
        }
    }
    let all = look_at_all(&tests, &simulator, seeds)?;
    let survivors: Vec<&str> =
        all.iter().filter(|(_, caught)| caught.survived()).map(|(bug, _)| bug.name()).collect();
    println!("{} of {} caught", Bug::ALL.len() - survivors.len(), Bug::ALL.len());
    match survivors.as_slice() {
        [] => Ok(()),
        some => Err(Failure::Failed(format!("nothing noticed: {}", some.join(", ")))),
    }
}

/// Looks at every bug, a few at once, and prints a line for each.
fn look_at_all(
    tests: &[TestBinary],
    simulator: &Path,
    seeds: impl Fn(&str) -> u64 + Sync,
) -> Result<Vec<(Bug, Caught)>, String> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let of = if SIMULATED.contains(&bug.engine()) { seeds(bug.engine()) } else { 0 };
            let caught = Caught {
                by: caught_by(tests, Some(*bug))?,
                seeds: broken_seeds(simulator, bug.engine(), of, Some(*bug))?,
                of,
            };
            println!("{}", caught.line(*bug));
            found.lock().map_err(|_| "a look at a bug panicked")?.push((*bug, caught));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a look at a bug panicked")?)
    })?;
    found.into_inner().map_err(|_| "a look at a bug panicked".to_owned())
}

/// The first test that fails, among the programs that run what has the bug.
fn caught_by(tests: &[TestBinary], bug: Option<Bug>) -> Result<Option<String>, String> {
    let concerns = |program: &&TestBinary| match bug.map(Bug::engine) {
        None => true,
        // How a server's clock is counted for it is the store's.
        Some("broker") => program.is_of("broker") || program.is_of("store"),
        Some("gateway") => program.is_of("gateway"),
        Some("gate") => !["delivery", "broker", "gateway"].iter().any(|folder| program.is_of(folder)),
        Some(_) => program.is_of("delivery"),
    };
    for program in tests.iter().filter(concerns) {
        let planted = bug.map(|bug| (VARIABLE, bug.name()));
        // Of the gateway's those alone that see what no other test does: the others wait for deadlines that really pass.
        let chosen: &[&str] = if program.is_of("gateway") { &["streams"] } else { &[] };
        let verdict = program.run(chosen, planted.into_iter().chain([LESS_OFTEN]))?;
        if let Some(test) = verdict.caught_by() {
            return Ok(Some(format!("{}: {test}", program.name)));
        }
    }
    Ok(None)
}

/// How many seeds of an engine break a promise.
fn broken_seeds(simulator: &Path, engine: &str, seeds: u64, bug: Option<Bug>) -> Result<u64, String> {
    if seeds == 0 {
        return Ok(0);
    }
    let mut command = Command::new(PathBuf::from(simulator));
    command.args(["--tally", "--part", engine, "--seeds", &seeds.to_string()]).stderr(Stdio::null());
    command.env("RUST_BACKTRACE", "0").envs(bug.map(|bug| (VARIABLE, bug.name())));
    let Some(output) = process::read_within(&mut command, SEEDS_MAX)? else { return Ok(1) };
    let said = String::from_utf8_lossy(&output.stdout);
    let count = said.lines().next_back().and_then(|line| line.split(' ').next()?.parse().ok());
    count.ok_or_else(|| format!("the simulator did not count its seeds: {}", output.status))
}
