//! `cargo xtask test`: the tests of the whole workspace against servers that live as long as the run. Owns
//! which tests run; how servers are found, started and stopped is `services`.

mod versions;

use std::thread;
use std::time::Instant;

use semel_testbed::failure::Failure;
use semel_testbed::services::{Permission, Services, seconds};
use semel_testbed::{binaries, os, process};
use serde_json::Value;

use crate::programs::{self, Program};
use crate::{elsewhere, sim};

const AFTER: &str = "\
Environment:
  SEMEL_TEST_POSTGRES      URL of a PostgreSQL to use instead of starting one
  SEMEL_TEST_REDIS         URL of a Redis to use instead of starting one
  SEMEL_TEST_POSTGRES_BIN  folder of the PostgreSQL server programs to prefer
The tests find all three set, and SEMEL_TEST_PYTHON, an interpreter with the packages of the examples.

Examples:
  cargo xtask test -- -p semel-contract
  cargo xtask test -- -p xtask --test live_services -- --nocapture";

/// Run the tests against throw-away PostgreSQL and Redis.
///
/// Starts a PostgreSQL and a Redis on free loopback ports while the tests are built, runs every test program of the workspace
/// against them, two at a time, then the doc tests and those of the clients in other languages, and stops and removes the
/// servers, however the tests end. One other version of PostgreSQL is tried too, each day another. With ARGS, runs
/// `cargo test --workspace --all-features ARGS` instead.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Start no server; run only what needs none: no doc tests, no tests/live_*.rs. It leaves out the clients in other languages
    /// too, since each brings a tool chain of its own: their inner loop is `cargo xtask clients --fast NAME`.
    #[arg(long, conflicts_with_all = ["all", "no_clients"])]
    fast: bool,
    /// The long forms: tests that crash, lose power or fill up do so far more often; every version of PostgreSQL; then 10,000
    /// seeds of every engine in the simulator and ten minutes of chaos. Takes hours.
    #[arg(long, conflicts_with_all = ["no_clients", "args"])]
    all: bool,
    /// Leave out the clients in other languages, the console's browsers and the applications, which `cargo xtask clients`
    /// tests.
    #[arg(long, conflicts_with = "args")]
    no_clients: bool,
    /// Fail where a server is missing, even where apt-get could install it.
    #[arg(long)]
    no_install: bool,
    /// Go to `cargo test`; with `-p NAME` among them only those packages are tested.
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Integration tests whose name starts so need a server.
const LIVE_PREFIX: &str = "live_";

pub(crate) fn run(asked: &Args) -> Result<(), Failure> {
    let permission = match asked.no_install {
        true => Permission::NeverInstall,
        false => Permission::InstallIfMissing,
    };
    match (asked.fast, asked.all, asked.no_clients) {
        (true, _, _) => fast(&asked.args),
        (false, true, _) => {
            full(&[], permission, LONG, Clients::Test)?;
            sim::run(&sim::Args { seeds: Some(10_000) })?;
            elsewhere::run_chaos(&["--minutes", "10"])
        }
        (false, false, true) => full(&[], permission, &[], Clients::LeaveOut),
        (false, false, false) => full(&asked.args, permission, &[], Clients::Test),
    }
}

/// All but the clients, as one step of several.
pub(crate) fn run_without_clients() -> Result<(), Failure> {
    run(&Args { no_clients: true, ..Args::default() })
}

/// What the long forms of tests are told.
const LONG: &[(&str, &str)] = &[
    ("SEMEL_TEST_RELAY_CRASHES", "200"),
    ("SEMEL_TEST_POWER_LOSSES", "500"),
    ("SEMEL_TEST_OUTBOX_FULL", "1"),
    ("SEMEL_TEST_LONG", "1"),
];

/// Whether what is written in other languages is tested too.
#[derive(Clone, Copy)]
enum Clients {
    Test,
    LeaveOut,
}

fn full(
    args: &[String],
    permission: Permission,
    long: &[(&'static str, &str)],
    clients: Clients,
) -> Result<(), Failure> {
    let started = Instant::now();
    let _watch = os::Interrupts::watch();
    // Servers die with the thread that starts them, so it is the build that gets one of its own.
    let building = args.is_empty().then(|| thread::spawn(|| binaries::build(&[])));
    eprintln!("xtask: starting PostgreSQL and Redis");
    let services = Services::start(permission)?;
    eprintln!("xtask: both ready after {}", seconds(started.elapsed()));
    let result = match building {
        None => some(args, &services),
        Some(building) => {
            let programs = building.join().map_err(|_| "the build of the tests panicked".to_owned())?;
            programs.map_err(Failure::Failed).and_then(|programs| whole(&programs, &services, long, clients))
        }
    };
    for line in services.stop() {
        eprintln!("xtask: {line}");
    }
    eprintln!("xtask: total     {}", seconds(started.elapsed()));
    result
}

/// The tests that the arguments for cargo choose.
fn some(args: &[String], services: &Services) -> Result<(), Failure> {
    let mut command = process::cargo(&["test"]);
    command.args(selection(args)).args(args).envs(services.environment());
    eprintln!("xtask: {}", process::line(&command));
    process::supervise(&mut command, None)
}

/// Every test program, then the doc tests and the crates with a workspace of their own.
fn whole(
    built: &[binaries::TestBinary],
    services: &Services,
    long: &[(&'static str, &str)],
    clients: Clients,
) -> Result<(), Failure> {
    let mut programs: Vec<Program> = built
        .iter()
        .map(|program| {
            let mut command = program.command(&[]);
            command.env_remove("RUST_BACKTRACE").envs(services.environment()).envs(long.iter().copied());
            Program { name: program.title(), is_live: program.name.starts_with(LIVE_PREFIX), command }
        })
        .collect();
    // They take turns: the sooner the first begins, the less the last is waited for.
    programs.sort_by_key(|program| !program.is_live);
    let count = programs::run_all(programs, services.folder())?;
    println!("\n{} passed, {} failed", count.passed, count.failed);
    let mut documents = process::cargo(&["test"]);
    documents.args(binaries::WHOLE).arg("--doc").envs(services.environment());
    process::supervise(&mut documents, None)?;
    versions::test(built, !long.is_empty())?;
    crate::integrations::test(&services.environment())?;
    let long = long.iter().map(|(name, value)| (*name, (*value).to_owned()));
    match clients {
        Clients::LeaveOut => Ok(()),
        Clients::Test => {
            let environment: Vec<_> = services.environment().into_iter().chain(long).collect();
            crate::clients::test(&environment, services.folder())
        }
    }
}

fn fast(args: &[String]) -> Result<(), Failure> {
    let started = Instant::now();
    let metadata = process::read(&mut process::cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut command = process::cargo(&["test"]);
    command.args(selection(args)).args(serverless(&targets(&metadata), &packages(args))).args(args);
    eprintln!("xtask: {}", process::line(&command));
    let result = process::run(&mut command);
    eprintln!(
        "xtask: no server was started, and no client was tested: `cargo xtask clients --fast NAME` does that"
    );
    eprintln!("xtask: total     {}", seconds(started.elapsed()));
    result
}

/// The words before `ARGS` that choose packages and features, unless `ARGS` chooses them itself.
fn selection(args: &[String]) -> Vec<&'static str> {
    let args = for_cargo(args);
    let says = |words: &[&str]| args.iter().any(|arg| words.iter().any(|word| is_option(arg, word)));
    let mut chosen = Vec::new();
    if packages(args).is_empty() && !says(&["--workspace", "--all"]) {
        chosen.push("--workspace");
    }
    if !says(&["--all-features", "--features", "-F", "--no-default-features"]) {
        chosen.push("--all-features");
    }
    chosen
}

/// The packages that `ARGS` names with `-p`.
fn packages(args: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let mut args = for_cargo(args).iter();
    while let Some(arg) = args.next() {
        if arg == "-p" || arg == "--package" {
            names.extend(args.next().cloned());
        } else if let Some(name) = arg.strip_prefix("--package=").or_else(|| arg.strip_prefix("-p")) {
            names.push(name.trim_start_matches('=').to_owned());
        }
    }
    names
}

/// `ARGS` up to its own `--`; what follows is for the test programs.
fn for_cargo(args: &[String]) -> &[String] {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    &args[..end]
}

fn is_option(arg: &str, option: &str) -> bool {
    arg == option || arg.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))
}

/// One thing of a package that cargo can test.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    package: String,
    kind: String,
    name: String,
}

fn targets(metadata: &Value) -> Vec<Target> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    for package in list(metadata, "packages") {
        for target in list(&package, "targets") {
            for kind in list(&target, "kind") {
                targets.push(Target {
                    package: text(&package["name"]),
                    kind: text(&kind),
                    name: text(&target["name"]),
                });
            }
        }
    }
    targets
}

/// The options that select every target which needs no server. Doc tests are left out by naming targets.
fn serverless(targets: &[Target], packages: &[String]) -> Vec<String> {
    let chosen = |target: &&Target| packages.is_empty() || packages.contains(&target.package);
    let mut options = Vec::new();
    // Cargo refuses `--lib` when none of the packages has a library.
    if targets.iter().filter(chosen).any(|target| target.kind == "lib" || target.kind == "proc-macro") {
        options.push("--lib".to_owned());
    }
    options.push("--bins".to_owned());
    let mut names: Vec<&str> = targets
        .iter()
        .filter(chosen)
        .filter(|target| target.kind == "test" && !target.name.starts_with(LIVE_PREFIX))
        .map(|target| target.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    options.extend(names.into_iter().flat_map(|name| ["--test".to_owned(), name.to_owned()]));
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn target(package: &str, kind: &str, name: &str) -> Target {
        Target { package: package.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn options_end_at_the_dashes_and_unknown_ones_are_refused() {
        let all: Args = parsed("--no-install -- --fast x").unwrap();
        assert_eq!(all, Args { no_install: true, args: words("--fast x"), ..Args::default() });
        assert_eq!(parsed("--fast").ok(), Some(Args { fast: true, ..Args::default() }));
        assert_eq!(parsed::<Args>("--fast --help").unwrap_err().exit_code(), 0);
        assert_eq!(parsed("--all").ok(), Some(Args { all: true, ..Args::default() }));
        assert_eq!(parsed("--no-clients").ok(), Some(Args { no_clients: true, ..Args::default() }));
        for wrong in ["-p xtask", "--all --fast", "--all -- x", "--no-clients --fast", "--no-clients -- x"] {
            assert_eq!(parsed::<Args>(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn help_says_which_inner_loop_the_clients_have() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            _args: Args,
        }
        let help = <Command as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(
            help.split_whitespace().collect::<Vec<_>>().join(" ").contains("cargo xtask clients --fast NAME"),
            "{help}"
        );
    }

    #[test]
    fn the_whole_workspace_is_tested_unless_packages_are_named() {
        assert_eq!(selection(&words("")), ["--workspace", "--all-features"]);
        assert_eq!(selection(&words("-p xtask")), ["--all-features"]);
        assert_eq!(selection(&words("--package=xtask --features x")), [] as [&str; 0]);
        assert_eq!(selection(&words("some_test -- -p x")), ["--workspace", "--all-features"]);
    }

    #[test]
    fn every_spelling_of_a_package_is_read() {
        assert_eq!(packages(&words("-p a --package b --package=c -pd -- -p e")), ["a", "b", "c", "d"]);
    }

    #[test]
    fn fast_takes_every_target_that_needs_no_server() {
        let targets = [
            target("semel-store", "lib", "semel_store"),
            target("semel-store", "test", "live_postgres"),
            target("semel-store", "test", "round_trip"),
            target("xtask", "bin", "xtask"),
            target("xtask", "test", "live_services"),
        ];
        assert_eq!(serverless(&targets, &[]), ["--lib", "--bins", "--test", "round_trip"]);
        assert_eq!(serverless(&targets, &["xtask".to_owned()]), ["--bins"]);
    }

    #[test]
    fn targets_are_read_from_cargo_metadata() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "targets": [{"kind": ["lib"], "name": "a"}, {"kind": ["test"], "name": "claims"}]}
        ]});
        assert_eq!(targets(&metadata), [target("a", "lib", "a"), target("a", "test", "claims")]);
    }
}
