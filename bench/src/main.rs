//! The programs that a benchmark needs beside semel itself: what sends, what answers, what stands for comparison.
//! Measures and serves; which contestants meet, and what their figures mean, is `cargo xtask bench`.

mod accept;
mod fill;
mod load;
mod proxy;
mod publish;
mod remember;
mod service;
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
    /// Take orders in process: without any storage, or atomically with the gate's layer on SQLite or PostgreSQL.
    Service(service::Args),
    /// Accept messages as the outbox does, into memory.
    Accept(accept::Args),
    /// Put settled records into a store.
    Fill(fill::Args),
    /// Put ids into a broker's file.
    Remember(remember::Args),
    /// Publish messages to a broker and read along, and print what was measured, as one line of JSON.
    Publish(publish::Args),
    /// Pass every request on, and nothing else: the ceiling for a proxy on hyper.
    Proxy(proxy::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Load(args) => load::run(&args),
        Command::Upstream(args) => upstream::run(&args),
        Command::Service(args) => service::run(&args),
        Command::Accept(args) => accept::run(&args),
        Command::Fill(args) => fill::run(&args),
        Command::Remember(args) => remember::run(&args),
        Command::Publish(args) => publish::run(&args),
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
