//! `cargo xtask fuzz`: runs the fuzz targets, each for a while, and prints how often it was executed. Owns the list of
//! targets; what they check is with the readers that they check.

use std::process::Stdio;

use semel_testbed::binaries::{self, TestBinary};
use semel_testbed::failure::Failure;
use semel_testbed::flags;

const USAGE: &str = "\
Usage: cargo xtask fuzz [NAME…] [--seconds N | --executions N] [--seed N] [--keep] [--replay FILE]

Feeds changed inputs to everything that reads bytes of others, and compares with a second reader. Without names, every
target. A failure is made smaller, written to a file and printed with the command that replays it.

Options:
  --seconds N     how long each target runs [default: 3]
  --executions N  how often each target runs instead; those that need a database or sockets stop after 30 s
  --seed N        which changes, in which order [default: 1]
  --keep          add inputs that reached a new outcome to fuzz/corpus
  --replay FILE   one input, for one target

Targets: ";

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
    Target { is_slow: true, ..target("row", "semel-store", "fuzz", "fuzz_row") },
    Target { is_slow: true, ..target("outbox-row", "semel-delivery", "fuzz", "fuzz_outbox_row") },
    Target { is_slow: true, ..target("framing", "semel-gateway", "gateway", "fuzzing::fuzz_framing") },
];

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    names: Vec<String>,
    /// Variables of the driver.
    variables: Vec<(&'static str, String)>,
}

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let Some(asked) = parse(args)? else {
        println!("{}", usage());
        return Ok(());
    };
    let is_chosen =
        |target: &&Target| asked.names.is_empty() || asked.names.iter().any(|name| name == target.name);
    let chosen: Vec<&Target> = TARGETS.iter().filter(is_chosen).collect();
    let programs = binaries::build(&choice(&chosen))?;
    let mut failed = Vec::new();
    for target in chosen {
        if !fuzz(target, &programs, &asked)? {
            failed.push(target.name);
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        some => Err(Failure::Failed(format!("found by {}: see above", some.join(", ")))),
    }
}

/// Runs one target. `false`: it found something, which is printed.
fn fuzz(target: &Target, programs: &[TestBinary], asked: &Asked) -> Result<bool, Failure> {
    let program = programs.iter().find(|program| program.is(target.package, target.program));
    let program = program.ok_or_else(|| format!("the program of `{}` was not built", target.name))?;
    let mut command = program.command(&["--exact", target.test, "--nocapture"]);
    command.envs(asked.variables.iter().map(|(name, value)| (*name, value.as_str())));
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

/// The targets of the workspace that hold them.
fn choice(targets: &[&Target]) -> Vec<&'static str> {
    let chosen = targets.iter().flat_map(|target| match target.program {
        program @ ("fuzz" | "gateway") => vec!["--test", program],
        "semel" => vec!["--bin", "semel"],
        _ => vec!["--lib"],
    });
    chosen.collect()
}

fn usage() -> String {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    format!("{USAGE}{}", names.join(", "))
}

fn parse(args: &[String]) -> Result<Option<Asked>, Failure> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().ok_or_else(|| flags::unknown(arg, &usage()))?;
            value.parse::<u64>().map(|number| number.to_string()).map_err(|_| flags::unknown(value, &usage()))
        };
        match arg.as_str() {
            "--seconds" => asked.variables.push(("SEMEL_FUZZ_SECONDS", number()?)),
            "--executions" => asked.variables.push(("SEMEL_FUZZ_EXECUTIONS", number()?)),
            "--seed" => asked.variables.push(("SEMEL_FUZZ_SEED", number()?)),
            "--keep" => asked.variables.push(("SEMEL_FUZZ_KEEP", "1".to_owned())),
            "--replay" => {
                let path = args.next().ok_or_else(|| flags::unknown(arg, &usage()))?;
                let path = std::path::absolute(path).map_err(|error| format!("{path}: {error}"))?;
                asked.variables.push(("SEMEL_FUZZ_REPLAY", path.display().to_string()));
            }
            name if TARGETS.iter().any(|target| target.name == name) => asked.names.push(name.to_owned()),
            help if flags::is_help(help) => return Ok(None),
            other => return Err(flags::unknown(other, &usage())),
        }
    }
    let says = |name: &str| asked.variables.iter().any(|(given, _)| *given == name);
    if says("SEMEL_FUZZ_REPLAY") && asked.names.len() != 1 {
        return Err(Failure::Usage("--replay needs one target".to_owned()));
    }
    if !says("SEMEL_FUZZ_SECONDS") && !says("SEMEL_FUZZ_EXECUTIONS") {
        asked.variables.push(("SEMEL_FUZZ_SECONDS", "3".to_owned()));
    }
    Ok(Some(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_command_line_is_read() {
        let asked = parse(&words("json --executions 7")).unwrap().unwrap();
        assert_eq!(asked.names, ["json"]);
        assert_eq!(asked.variables, [("SEMEL_FUZZ_EXECUTIONS", "7".to_owned())]);
        assert_eq!(parse(&words("")).unwrap().unwrap().variables, [("SEMEL_FUZZ_SECONDS", "3".to_owned())]);
        assert!(parse(&words("nothing")).is_err() && parse(&words("--seconds x")).is_err());
        assert!(parse(&words("--replay x")).is_err(), "for which target?");
        assert_eq!(parse(&words("--help")), Ok(None));
    }
}
