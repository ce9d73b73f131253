//! `cargo xtask fuzz`: runs the fuzz targets, each for a while, and prints how often it was executed. Owns the list of
//! targets; what they check is with the readers that they check.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;

use clap::builder::PossibleValuesParser;
use semel_testbed::binaries::{self, TestBinary};
use semel_testbed::failure::Failure;

/// How long each target runs where nothing is said.
const SECONDS: u64 = 3;

/// A target: a test of the crate that owns the reader.
struct Target {
    name: &'static str,
    package: &'static str,
    program: &'static str,
    test: &'static str,
    /// Whether it needs a database or sockets, and is slow for it.
    is_slow: bool,
}

const fn target(
    name: &'static str,
    package: &'static str,
    program: &'static str,
    test: &'static str,
) -> Target {
    Target { name, package, program, test, is_slow: false }
}

const TARGETS: &[Target] = &[
    target("key", "semel-contract", "fuzz", "key::fuzz_key"),
    target("field", "semel-contract", "fuzz", "field::fuzz_field"),
    target("json", "semel-contract", "fuzz", "json::fuzz_json"),
    target("at-rest", "semel-store", "semel_store", "at_rest::fuzz::fuzz_at_rest"),
    target("config", "semel-cli", "semel", "config::fuzz::fuzz_config"),
    target("envelope", "semel-cli", "semel", "outbox::fuzz::fuzz_envelope"),
    target("broker-message", "semel-broker", "fuzz", "fuzz_message"),
    target("broker-event-id", "semel-broker", "fuzz", "fuzz_event_id"),
    target("sse-frames", "semel-delivery", "semel_delivery", "receive::fuzz::fuzz_frames"),
    Target { is_slow: true, ..target("broker-doors", "semel-broker", "fuzz", "fuzz_doors") },
    Target { is_slow: true, ..target("row", "semel-store", "fuzz", "fuzz_row") },
    Target { is_slow: true, ..target("outbox-row", "semel-delivery", "fuzz", "fuzz_outbox_row") },
    Target { is_slow: true, ..target("framing", "semel-gateway", "gateway", "fuzzing::fuzz_framing") },
];

/// Feed changed inputs to everything that reads bytes of others.
///
/// Compares with a second reader. Without names, every target. A failure is made smaller, written to a file and printed with
/// the command that replays it.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Args {
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(TARGETS.iter().map(|target| target.name)))]
    names: Vec<String>,
    /// How long each target runs; 3 without this.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// How often each target runs instead; those that need a database or sockets stop after 30 s.
    #[arg(long, value_name = "N")]
    executions: Option<u64>,
    /// Which changes, in which order; 1 without this.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Add inputs that reached a new outcome to fuzz/corpus.
    #[arg(long)]
    keep: bool,
    /// One input, for one target.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
}

pub(crate) fn run(asked: &Args) -> Result<(), Failure> {
    let variables = variables(asked)?;
    let is_chosen =
        |target: &&Target| asked.names.is_empty() || asked.names.iter().any(|name| name == target.name);
    let chosen: Vec<&Target> = TARGETS.iter().filter(is_chosen).collect();
    let programs = binaries::build(&choice(&chosen))?;
    let mut failed = Vec::new();
    for target in chosen {
        if !fuzz(target, &programs, &variables)? {
            failed.push(target.name);
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        some => Err(Failure::Failed(format!("found by {}: see above", some.join(", ")))),
    }
}

/// Runs one target. `false`: it found something, which is printed.
fn fuzz(target: &Target, programs: &[TestBinary], variables: &[Variable]) -> Result<bool, Failure> {
    let program = programs.iter().find(|program| program.is(target.package, target.program));
    let program = program.ok_or_else(|| format!("the program of `{}` was not built", target.name))?;
    let mut command = program.command(&["--exact", target.test, "--nocapture"]);
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    if target.is_slow {
        command.env("SEMEL_FUZZ_SLOW", "1");
    }
    let output = command.stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("cannot start the program of `{}`: {error}", target.name))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find(|line| line.starts_with("fuzz ")).filter(|_| output.status.success()) {
        Some(line) => {
            println!("{line}");
            Ok(true)
        }
        None if output.status.success() => Err(format!("there is no test {} any more", target.test).into()),
        None => {
            println!("{}\n{}", text, String::from_utf8_lossy(&output.stderr));
            Ok(false)
        }
    }
}

/// The targets of the workspace that hold them, each once: cargo refuses a flag that stands there twice.
fn choice(targets: &[&Target]) -> Vec<&'static str> {
    let chosen: BTreeSet<Vec<&str>> = targets
        .iter()
        .map(|target| match target.program {
            program @ ("fuzz" | "gateway") => vec!["--test", program],
            "semel" => vec!["--bin", "semel"],
            _ => vec!["--lib"],
        })
        .collect();
    chosen.into_iter().flatten().collect()
}

/// What the driver is told, in its environment.
type Variable = (&'static str, String);

fn variables(asked: &Args) -> Result<Vec<Variable>, Failure> {
    if asked.replay.is_some() && asked.names.len() != 1 {
        return Err(Failure::Usage("--replay needs one target".to_owned()));
    }
    let replay = asked.replay.as_ref().map(|path| {
        let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(path.display().to_string())
    });
    let seconds = asked.seconds.or_else(|| asked.executions.is_none().then_some(SECONDS));
    let all = [
        ("SEMEL_FUZZ_SECONDS", seconds.map(|number| number.to_string())),
        ("SEMEL_FUZZ_EXECUTIONS", asked.executions.map(|number| number.to_string())),
        ("SEMEL_FUZZ_SEED", asked.seed.map(|number| number.to_string())),
        ("SEMEL_FUZZ_KEEP", asked.keep.then(|| "1".to_owned())),
        ("SEMEL_FUZZ_REPLAY", replay.transpose()?),
    ];
    Ok(all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed;

    fn told(line: &str) -> Result<Vec<Variable>, Failure> {
        variables(&parsed(line).expect("the line is read"))
    }

    #[test]
    fn a_flag_of_cargo_stands_there_once() {
        let all: Vec<&Target> = TARGETS.iter().collect();
        let chosen = choice(&all);
        assert_eq!(chosen.iter().filter(|word| **word == "--lib").count(), 1, "{chosen:?}");
    }

    #[test]
    fn the_command_line_is_read() {
        let asked: Args = parsed("json --executions 7").unwrap();
        assert_eq!(asked.names, ["json"]);
        assert_eq!(variables(&asked), Ok(vec![("SEMEL_FUZZ_EXECUTIONS", "7".to_owned())]));
        assert_eq!(told(""), Ok(vec![("SEMEL_FUZZ_SECONDS", "3".to_owned())]));
        assert!(parsed::<Args>("nothing").is_err() && parsed::<Args>("--seconds x").is_err());
        assert!(told("--replay x").is_err(), "for which target?");
        assert_eq!(parsed::<Args>("--help").unwrap_err().exit_code(), 0);
    }
}
