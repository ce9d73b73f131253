//! `semel completions`: what a shell must know to complete this command line.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::exit::{Exit, Stop};
use crate::{Cli, output_failed};

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: semel completions bash > /etc/bash_completion.d/semel")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "semel", &mut text);
    std::io::stdout().write_all(&text).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}
