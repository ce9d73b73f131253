//! `cargo xtask bench`: contestants side by side, in turns, on this machine. Owns which benches there are and what is
//! saved; each bench is a file of its own below, with its contestants as data.

mod broker;
mod chart;
mod connections;
mod console;
mod contestant;
mod flame;
mod gateway;
mod install;
mod layer;
mod load;
mod outbox;
mod page;
mod peers;
mod processes;
mod relay;
mod result;
mod rounds;
mod size;
mod table;
mod targets;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use semel_testbed::failure::Failure;
use semel_testbed::os;
use semel_testbed::services::seconds;

use result::Outcome;
use world::World;

/// The bench that draws instead of counting.
pub(crate) const FLAME: &str = "flame";

/// One bench: what it is called, what it shows, how it runs.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&mut World, &Asked) -> Result<Outcome, Failure>,
}

/// Every bench there is, in the order in which they run and are shown.
pub(crate) const BENCHES: &[Bench] = &[
    Bench {
        name: "gateway",
        about: "the gateway at 64 connections: pass-through, fresh, replay, storm; SQLite and PostgreSQL",
        run: gateway::run,
    },
    Bench { name: "connections", about: "the gateway at 1 and at 256 connections", run: connections::run },
    Bench {
        name: "size",
        about: "the gateway with 0, 1 and 10 million records in its store",
        run: size::run,
    },
    Bench {
        name: "peers",
        about: "the gateway beside others that promise something of the kind",
        run: peers::run,
    },
    Bench {
        name: "layer",
        about: "the layer in process, atomic, beside a handler without storage",
        run: layer::run,
    },
    Bench { name: "outbox", about: "the outbox accepting, beside a map in memory", run: outbox::accept },
    Bench {
        name: "outbox-drain",
        about: "the outbox delivering, with and without a backlog",
        run: outbox::drain,
    },
    Bench { name: "relay", about: "the relay accepting entries that wait", run: relay::accept },
    Bench {
        name: "relay-drain",
        about: "the relay writing merged entries, beside queues",
        run: relay::drain,
    },
    Bench {
        name: "broker",
        about: "the broker publishing with dedupe, beside NATS JetStream and Redis Streams",
        run: broker::run,
    },
    Bench {
        name: "broker-ids",
        about: "the broker publishing with 10 million ids that it remembers",
        run: broker::remember,
    },
    Bench { name: "broker-readers", about: "10,000 idle readers on one broker", run: broker::crowd },
    Bench {
        name: "console",
        about: "finding one of 10 million records by its key; requests while lists are opened; the index of keys",
        run: console::run,
    },
    Bench {
        name: FLAME,
        about: "where the gateway's time goes, as flame graphs (needs perf)",
        run: flame::run,
    },
];

/// Measure contestants side by side and keep the tables.
///
/// Builds the release binaries, installs what it can of the rest, starts the contestants of each bench on loopback, lets them
/// take turns (A B A B) and prints medians with ratios. Results and charts are kept in docs/benchmarks/. Without a NAME, all
/// of them run one after the other.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "semel-bench-runner", bin_name = "cargo xtask bench", after_help = ENVIRONMENT)]
pub(crate) struct Asked {
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BENCHES.iter().map(possible)))]
    names: Vec<String>,
    /// Short runs, nothing kept: figures within two minutes.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print the results as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Build and install only.
    #[arg(long)]
    prepare: bool,
    /// How often each contestant runs.
    #[arg(long, value_name = "N", value_parser = positive)]
    rounds: Option<f64>,
    /// How long one run is measured.
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
}

const ENVIRONMENT: &str = "\
Environment:
  SEMEL_BENCH_SEMEL  path of a semel to measure instead of building one";

fn possible(bench: &Bench) -> PossibleValue {
    PossibleValue::new(bench.name).help(bench.about)
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| "a number above 0 is expected".to_owned())
}

impl Asked {
    /// How often each contestant runs.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 3 } else { 9 }, |rounds| rounds.ceil() as usize)
    }

    /// How long one run is measured.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 1.5 } else { 2.5 })
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Bench> {
        BENCHES
            .iter()
            .filter(|bench| self.names.is_empty() || self.names.iter().any(|name| name == bench.name))
    }
}

fn main() -> ExitCode {
    semel_testbed::end(run(&Asked::parse()))
}

fn run(asked: &Asked) -> Result<(), Failure> {
    let _watch = os::Interrupts::watch();
    install::build()?;
    if asked.prepare {
        install::prepare();
        return Ok(());
    }
    for bench in asked.chosen() {
        let started = Instant::now();
        eprintln!("xtask: bench {}: {}", bench.name, bench.about);
        let mut world = World::new()?;
        let mut outcome = (bench.run)(&mut world, asked)?;
        outcome.notes.extend(world.versions());
        drop(world);
        if asked.json {
            println!("{}", outcome.json(bench.name));
        } else {
            println!("{}", table::plain(bench, &outcome));
        }
        // Flame graphs keep themselves: they are no table.
        if !asked.quick && bench.name != FLAME {
            page::keep(bench, &outcome)?;
        }
        eprintln!("xtask: bench {} took {}", bench.name, seconds(started.elapsed()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Asked, clap::Error> {
        Asked::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()))
    }

    #[test]
    fn benches_are_chosen_by_name_and_others_refused() {
        let asked = read("gateway --quick --rounds 7 --seconds 0.5").unwrap();
        assert!(asked.quick && asked.rounds() == 7 && (asked.seconds() - 0.5).abs() < 1e-9);
        assert_eq!(asked.chosen().map(|bench| bench.name).collect::<Vec<_>>(), ["gateway"]);
        assert_eq!(read("").unwrap().chosen().count(), BENCHES.len());
        assert_eq!(read("gatewya").unwrap_err().exit_code(), 2);
        assert_eq!(read("--rounds none").unwrap_err().exit_code(), 2);
        assert_eq!(read("--rounds 0").unwrap_err().exit_code(), 2);
        assert_eq!(read("gateway --help").unwrap_err().exit_code(), 0);
    }

    #[test]
    fn the_help_names_every_bench() {
        let help = <Asked as clap::CommandFactory>::command().render_long_help().to_string();
        let help: Vec<&str> = help.split_whitespace().collect();
        let help = help.join(" ");
        assert!(
            BENCHES.iter().all(|bench| help.contains(bench.name) && help.contains(bench.about)),
            "{help}"
        );
    }
}
