//! `cargo xtask bench`: contestants side by side, in turns, on this machine. Owns which benches there are and what is
//! saved; each bench is a file of its own below, with its contestants as data.

mod broker;
mod chart;
mod connections;
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

use semel_testbed::failure::Failure;
use semel_testbed::services::seconds;
use semel_testbed::{flags, os};

use result::Outcome;
use world::World;

const USAGE: &str = "\
Usage: cargo xtask bench [NAME…] [--quick] [--json] [--prepare] [--rounds N] [--seconds S]

Builds the release binaries, installs what it can of the rest, starts the contestants of each bench on loopback, lets
them take turns (A B A B) and prints medians with ratios. Results and charts are kept in docs/benchmarks/.
Without a NAME, all of them run one after the other.

Options:
  --quick      short runs, nothing kept: figures within two minutes
  --json       print the results as JSON instead of tables
  --prepare    build and install only
  --rounds N   how often each contestant runs
  --seconds S  how long one run is measured

Environment:
  SEMEL_BENCH_SEMEL  path of a semel to measure instead of building one

Benches:
";

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
    Bench { name: "broker-readers", about: "10,000 idle readers on one broker", run: broker::crowd },
    Bench {
        name: FLAME,
        about: "where the gateway's time goes, as flame graphs (needs perf)",
        run: flame::run,
    },
];

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    names: Vec<String>,
    pub(crate) quick: bool,
    json: bool,
    prepare: bool,
    rounds: Option<usize>,
    seconds: Option<f64>,
}

impl Asked {
    /// How often each contestant runs.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// How long one run is measured.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 1.5 } else { 2.5 })
    }

    fn parse(args: &[String]) -> Result<Option<Asked>, Failure> {
        let usage = usage();
        let mut asked =
            Asked { names: vec![], quick: false, json: false, prepare: false, rounds: None, seconds: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().and_then(|value| value.parse::<f64>().ok());
                value.filter(|value| *value > 0.0).ok_or_else(|| flags::unknown(arg, &usage))
            };
            match arg.as_str() {
                "--quick" => asked.quick = true,
                "--json" => asked.json = true,
                "--prepare" => asked.prepare = true,
                "--rounds" => asked.rounds = Some(number()?.ceil() as usize),
                "--seconds" => asked.seconds = Some(number()?),
                other if flags::is_help(other) => return Ok(None),
                other if BENCHES.iter().any(|bench| bench.name == other) => {
                    asked.names.push(other.to_owned())
                }
                other => return Err(flags::unknown(other, &usage)),
            }
        }
        Ok(Some(asked))
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Bench> {
        BENCHES
            .iter()
            .filter(|bench| self.names.is_empty() || self.names.iter().any(|name| name == bench.name))
    }
}

fn usage() -> String {
    let width = BENCHES.iter().map(|bench| bench.name.len()).max().unwrap_or(0);
    let list: Vec<String> =
        BENCHES.iter().map(|bench| format!("  {:width$}  {}", bench.name, bench.about)).collect();
    format!("{USAGE}{}", list.join("\n"))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    semel_testbed::end(run(&args))
}

fn run(args: &[String]) -> Result<(), Failure> {
    let Some(asked) = Asked::parse(args)? else {
        println!("{}", usage());
        return Ok(());
    };
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
        let outcome = (bench.run)(&mut world, &asked)?;
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

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn benches_are_chosen_by_name_and_others_refused() {
        let asked = Asked::parse(&words("gateway --quick --rounds 7 --seconds 0.5")).unwrap().unwrap();
        assert!(asked.quick && asked.rounds() == 7 && (asked.seconds() - 0.5).abs() < 1e-9);
        assert_eq!(asked.chosen().map(|bench| bench.name).collect::<Vec<_>>(), ["gateway"]);
        assert_eq!(Asked::parse(&[]).unwrap().unwrap().chosen().count(), BENCHES.len());
        assert_eq!(Asked::parse(&words("gatewya")).unwrap_err().exit_code(), 2);
        assert_eq!(Asked::parse(&words("--rounds none")).unwrap_err().exit_code(), 2);
        assert!(Asked::parse(&words("gateway --help")).unwrap().is_none());
    }

    #[test]
    fn the_usage_names_every_bench() {
        assert!(BENCHES.iter().all(|bench| usage().contains(bench.about)));
    }
}
