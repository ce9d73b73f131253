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
mod programs;
mod reference;
mod sim;
mod source;
mod test;
mod tidy;
mod walk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use semel_testbed::failure::Failure;

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 all good, 1 something was found or failed, 2 wrong usage, 128+N ended by signal N.";

/// Every command there is. A new command is a new row, and a row of `run`; what it says of itself is beside its flags.
#[derive(Debug, Subcommand)]
enum Command {
    Ci(ci::Args),
    Test(test::Args),
    Clients(clients::Args),
    Tidy(tidy::Args),
    MutateDecide(mutate::Args),
    Sim(sim::Args),
    Planted(planted::Args),
    /// Real gateways and servers under faults; every effect counted.
    #[command(disable_help_flag = true)]
    Chaos(elsewhere::Words),
    /// Measure contestants side by side and keep the tables.
    #[command(disable_help_flag = true)]
    Bench(elsewhere::Words),
    Instructions(instructions::Args),
    Walk(walk::Args),
    Lines(lines::Args),
    Fuzz(fuzz::Args),
    Reference(reference::Args),
    Coverage(coverage::Args),
    Dist(dist::Args),
}

fn main() -> ExitCode {
    semel_testbed::end(run(&Cli::parse().command))
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Ci(args) => ci::run(args),
        Command::Test(args) => test::run(args),
        Command::Clients(args) => clients::run(args),
        Command::Tidy(args) => tidy::run(args),
        Command::MutateDecide(args) => mutate::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Planted(args) => planted::run(args),
        Command::Chaos(words) => elsewhere::become_chaos(words),
        Command::Bench(words) => elsewhere::become_bench(words),
        Command::Instructions(args) => instructions::run(args),
        Command::Walk(args) => walk::run(args),
        Command::Lines(args) => lines::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Reference(args) => reference::run(args),
        Command::Coverage(args) => coverage::run(args),
        Command::Dist(args) => dist::run(args),
    }
}

/// The flags of one command, as `main` would read them from this line.
#[cfg(test)]
fn parsed<A: clap::Args>(line: &str) -> Result<A, clap::Error> {
    let words = std::iter::once("xtask").chain(line.split_whitespace());
    let matches = A::augment_args(clap::Command::new("xtask")).try_get_matches_from(words)?;
    A::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn exit_code(words: &[&str]) -> i32 {
        Cli::try_parse_from(words).unwrap_err().exit_code()
    }

    #[test]
    fn the_table_holds_together_and_every_command_says_what_it_is_for() {
        Cli::command().debug_assert();
        assert!(Cli::command().get_subcommands().all(|command| command.get_about().is_some()));
    }

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        let error = Cli::try_parse_from(["xtask", "tset"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("'tset'"), "{error}");
    }

    #[test]
    fn chaos_and_the_benches_get_their_words_as_they_are() {
        let line = ["xtask", "chaos", "--seconds", "20", "--help"];
        let Command::Chaos(words) = Cli::try_parse_from(line).unwrap().command else { panic!("not chaos") };
        assert_eq!(words.words, ["--seconds", "20", "--help"]);
    }

    #[test]
    fn no_command_is_a_usage_error() {
        assert_eq!(exit_code(&["xtask"]), 2);
    }
}
