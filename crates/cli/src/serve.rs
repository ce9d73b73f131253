//! `semel serve`: runs a part of semel until it is told to stop.

#[cfg(test)]
mod acts;
pub(crate) mod admin;
pub(crate) mod announce;
mod args;
pub(crate) mod broker;
pub(crate) mod disk;
pub(crate) mod gate;
pub(crate) mod leans;
mod lifecycle;
mod notify;
pub(crate) mod outbox;
pub(crate) mod plan;
pub(crate) mod relay;
pub(crate) mod running;
pub(crate) mod settings;
pub(crate) mod signals;
pub(crate) mod sockets;

use crate::exit::{Exit, Stop};
use crate::logging;

/// Run a part of semel.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
    /// The form of the log on standard error. [default: text; requests are written as JSON unless it is a terminal]
    #[arg(long, global = true, value_name = "FORM")]
    log_format: Option<logging::LogFormat>,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Run the gate as a reverse proxy in front of a service.
    Gate(Box<gate::Args>),
    /// Run the outbox: a durable local queue that delivers in order, once.
    Outbox(Box<outbox::Args>),
    /// Run the relay: safe, merged, audited writes to a slow third-party API.
    Relay(Box<relay::Args>),
    /// Run the broker: publish once, and every subscriber gets it, in order.
    Broker(Box<broker::Args>),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    logging::choose(args.log_format);
    match &args.part {
        Part::Gate(args) => gate::run(args),
        Part::Outbox(args) => outbox::run(args),
        Part::Relay(args) => relay::run(args),
        Part::Broker(args) => broker::run(args),
    }
}
