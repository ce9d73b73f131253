//! The project's own commands, run as `cargo xtask NAME`. Owns the table of commands and the exit codes;
//! refuses any command or flag that it does not know.

mod callgrind;
mod ci;
mod clients;
mod coverage;
mod dist;
mod elsewhere;
mod fuzz;
mod instructions;
mod integrations;
mod lines;
mod mutate;
mod planted;
mod reference;
mod sim;
mod source;
mod test;
mod tidy;
mod walk;

use std::process::ExitCode;

use semel_testbed::failure::Failure;
use semel_testbed::flags;

/// One row of the table: what is typed, what it is for, and what runs.
struct Entry {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

/// Every command there is. A new command is a new row: help and dispatch follow from it.
const COMMANDS: &[Entry] = &[
    Entry { name: "ci", about: "run every check in order, as the continuous integration does", run: ci::run },
    Entry { name: "test", about: "run the tests against throw-away PostgreSQL and Redis", run: test::run },
    Entry {
        name: "clients",
        about: "run the tests of the client libraries in other languages",
        run: clients::run,
    },
    Entry { name: "tidy", about: "check the rules of the tree that no compiler checks", run: tidy::run },
    Entry {
        name: "mutate-decide",
        about: "break the contract's decisions one by one and see each caught",
        run: mutate::run,
    },
    Entry { name: "sim", about: "play seeds of every engine in the simulator", run: sim::run },
    Entry { name: "planted", about: "plant known bugs one by one and see each caught", run: planted::run },
    Entry {
        name: "chaos",
        about: "real gateways and servers under faults; every effect counted",
        run: elsewhere::become_chaos,
    },
    Entry {
        name: "bench",
        about: "measure contestants side by side and keep the tables",
        run: elsewhere::become_bench,
    },
    Entry {
        name: "instructions",
        about: "count the instructions of a request and compare with what is on record",
        run: instructions::run,
    },
    Entry { name: "walk", about: "count the files and crates that one request visits", run: walk::run },
    Entry { name: "lines", about: "count the lines of product code, here or at revisions", run: lines::run },
    Entry {
        name: "fuzz",
        about: "feed changed inputs to everything that reads bytes of others",
        run: fuzz::run,
    },
    Entry {
        name: "reference",
        about: "write the reference of the settings from the code",
        run: reference::run,
    },
    Entry {
        name: "coverage",
        about: "write the page of requirements and the tests that show them",
        run: coverage::run,
    },
    Entry { name: "dist", about: "pack the release binary with what is installed beside it", run: dist::run },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    semel_testbed::end(dispatch(&args))
}

fn dispatch(args: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = args.split_first() else {
        return Err(Failure::Usage(format!("which command?\n\n{}", help())));
    };
    if flags::is_help(name) {
        println!("{}", help());
        return Ok(());
    }
    match COMMANDS.iter().find(|entry| entry.name == name) {
        Some(entry) => (entry.run)(rest),
        None => Err(Failure::Usage(format!("there is no command `{name}`\n\n{}", help()))),
    }
}

fn help() -> String {
    let width = COMMANDS.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut text = String::from("Usage: cargo xtask COMMAND [OPTIONS]\n\nCommands:\n");
    for Entry { name, about, .. } in COMMANDS {
        text.push_str(&format!("  {name:width$}  {about}\n"));
    }
    text.push_str("\n`cargo xtask COMMAND --help` says more about one of them.\n");
    text.push_str(
        "Exit codes: 0 all good, 1 something was found or failed, 2 wrong usage, 128+N ended by signal N.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_command() {
        let help = help();
        assert!(COMMANDS.iter().all(|entry| help.contains(entry.name) && help.contains(entry.about)));
    }

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        let failure = dispatch(&["tset".to_owned()]).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("`tset`"));
    }

    #[test]
    fn no_command_is_a_usage_error() {
        assert_eq!(dispatch(&[]).unwrap_err().exit_code(), 2);
    }
}
