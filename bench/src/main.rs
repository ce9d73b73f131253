//! The programs that a benchmark needs beside semel itself: what sends, what answers, what stands for comparison.
//! Measures and serves; which contestants meet, and what their figures mean, is `cargo xtask bench`.

mod load;
mod proxy;
mod upstream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The parts of semel's benchmarks.
#[derive(Debug, Parser)]
#[command(name = "semel-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send requests and print what was measured, as one line of JSON.
    Load(Box<load::Args>),
    /// Answer every request with 300 bytes, and say at /count how many there were.
    Upstream(upstream::Args),
    /// Pass every request on, and nothing else: the ceiling for a proxy on hyper.
    Proxy(proxy::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Load(args) => load::run(&args),
        Command::Upstream(args) => upstream::run(&args),
        Command::Proxy(args) => proxy::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("semel-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
