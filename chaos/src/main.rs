//! `cargo xtask chaos`: real gateways, relays and outboxes on a real PostgreSQL with a real Redis, clients that retry, and
//! faults all the time. At the end every acknowledged request must have taken effect once, and none twice.

mod clients;
mod faults;
mod gates;
mod http;
mod http2;
mod listeners;
mod mail;
mod mesh;
mod outboxes;
mod posts;
mod preload;
mod processes;
mod proxy;
mod random;
mod scores;
mod settling;
mod stalled;
mod tokens;
mod upstream;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use semel_testbed::failure::Failure;
use semel_testbed::services::{Permission, Services, seconds};
use semel_testbed::{binaries, os, process};

use clients::{Clients, Group};
use faults::Faults;
use gates::{ALONE, Gates};
use listeners::Listeners;
use mail::Mail;
use mesh::Mesh;
use outboxes::Outboxes;
use posts::Posts;
use preload::Preload;
use proxy::Proxy;
use random::Random;
use scores::{Scores, Senders};
use stalled::{Doors, Stalled};
use tokens::Tokens;
use upstream::Upstream;

/// How many send at a time to the gateways that share a store, and to the one with its own.
const CLIENTS: u64 = 28;
const CLIENTS_ALONE: u64 = 8;
/// How long everything may take to settle once the faults have stopped.
const CALM: Duration = Duration::from_secs(150);

/// How long a person may take to bring every message to its end.
const SETTLING: Duration = Duration::from_secs(120);

/// Real gateways and servers under faults; every effect counted.
///
/// Two gateways, two relays (`semel serve …`) share a PostgreSQL and a Redis of their own, in front of services that count
/// effects, one over HTTP/1.1 and one over HTTP/2 with few streams, which streams of events hold; a third gateway has an embedded
/// store; two outboxes send through the gateways. Two brokers on the same PostgreSQL and Redis have a mesh, whose four members publish and receive by outboxes.
/// Clients send keyed requests, messages and score changes and retry them, one key to two hosts and some for answers that are
/// too large to keep; others begin uploads and fall silent. Meanwhile processes are killed, stopped past their lease and frozen
/// while they connect, their clocks are set, configurations and credentials change, PostgreSQL is shut down at once and
/// replaced by a synchronous standby, Redis is killed, disks are full or fail to sync, and connections are cut. Ends in a
/// table of faults and promises; exits with 1 if a request took effect twice, an acknowledged one did not, an answer changed,
/// a message was overtaken, a score is not the sum of what was accepted, or an inbox lacks a published message, has it twice or
/// out of its order.
#[derive(Debug, PartialEq, Eq, Parser)]
#[command(name = "semel-chaos", bin_name = "cargo xtask chaos")]
struct Cli {
    /// How long faults happen.
    #[arg(long, value_name = "M", default_value_t = 2)]
    minutes: u64,
    /// The same in seconds; the continuous integration runs a short one.
    #[arg(long, value_name = "S", conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Which faults, in which order; from the clock without this, and printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plant a known bug in every process, to see that the run finds it.
    #[arg(long, value_name = "BUG")]
    planted: Option<String>,
}

impl Cli {
    fn lasts(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(self.minutes * 60))
    }
}

fn main() -> ExitCode {
    semel_testbed::end(chaos(&Cli::parse()))
}

/// Runs it all and judges.
fn chaos(asked: &Cli) -> Result<(), Failure> {
    let _watch = os::Interrupts::watch();
    let seed = asked.seed.unwrap_or_else(Random::seed);
    eprintln!("xtask: chaos with seed {seed} for {}", seconds(asked.lasts()));
    // As the tests have it, bugs to plant included: it is there when they were built.
    binaries::tested_program("semel", "check")?;
    let mut services = Services::start(Permission::InstallIfMissing)?;
    let upstream = Upstream::start(seed)?;
    let [plain, http2] = upstream.ports();
    let (to_plain, to_http2) = (Proxy::start(plain)?, Proxy::start(http2)?);
    let tokens = Tokens::start(services.folder())?;
    let (to_postgres, to_redis) =
        (Proxy::start(services.postgres_port()?)?, Proxy::start(services.redis_port()?)?);
    let scores = Scores::start(seed)?;
    let to_scores = Proxy::start(scores.port())?;
    let planted = asked.planted.as_deref();
    let preload = Preload::make(services.folder());
    let stores = [&to_postgres, &to_redis];
    let gates = Gates::start(&services, &preload, stores, [&to_plain, &to_http2], planted)?;
    let admins = [free_port()?, free_port()?];
    let relay_machines = ["relay-0", "relay-1"].map(|name| preload.machine(name));
    let relays = scores::relays(&services, &to_postgres, &to_scores, &admins, &relay_machines, planted)?;
    let ways = [Proxy::start(gates.ports()[0])?, Proxy::start(gates.ports()[1])?];
    let ways = [&ways[0], &ways[1]];
    let outboxes =
        Outboxes::start(services.folder(), &preload, &ways, tokens.file(), asked.lasts(), planted)?;
    let doors = vec![free_port()?, free_port()?];
    let mesh = Mesh::start(&services, stores, doors, planted)?;
    let stop = Arc::new(AtomicBool::new(false));
    let alone = &gates.ports()[ALONE..];
    let groups = [
        Group { gates: gates.shared_ports(), clients: CLIENTS, plain: gates.ports()[0] },
        Group { gates: alone, clients: CLIENTS_ALONE, plain: alone[0] },
    ];
    let clients = Clients::start(&groups, &tokens, &stop, seed);
    let listeners = Listeners::start(gates.ports(), &stop, seed);
    let mail = Mail::start(outboxes.processes.ports(), &stop, seed);
    let senders = Senders::start(relays.ports(), &admins, &stop, seed);
    let posts = Posts::start(mesh.daemons.ports(), &stop, seed);
    let doors = Doors {
        gates: gates.ports().to_vec(),
        outboxes: outboxes.processes.ports().to_vec(),
        relays: relays.ports().to_vec(),
    };
    let stalled = Stalled::start(&doors, &tokens, &stop, seed);
    let mut faults = Faults {
        services: &mut services,
        gates: &gates,
        relays: &relays,
        relay_machines: &relay_machines,
        outboxes: &outboxes,
        mesh: &mesh,
        tokens: &tokens,
        stores,
        upstreams: [&to_plain, &to_http2, &to_scores],
        ways,
        done: vec![],
        revived: 0,
    };
    let result = faults.play(asked.lasts(), &mut Random::new(seed), || clients.progress());
    let (done, mut revived) = (std::mem::take(&mut faults.done), faults.revived);
    result?;
    eprintln!("xtask: the faults have stopped");
    upstream.calm();
    for machine in gates.machines().iter().chain(outboxes.machines()).chain(&relay_machines) {
        machine.set_clock(0);
    }
    stop.store(true, Ordering::SeqCst);
    let (sent, mut more) = std::thread::scope(|scope| {
        let settling = scope.spawn(|| {
            let sent = clients.finish(Instant::now() + CALM);
            let mut more = mail.judge(&upstream, Instant::now() + SETTLING);
            more.extend(senders.judge(&scores, Instant::now() + CALM));
            more.extend(posts.judge(&mesh, Instant::now() + CALM));
            (sent, more)
        });
        // A process that ends now, for a fault of a moment ago, is started again.
        while !settling.is_finished() {
            let daemons = [&mesh.brokers, &mesh.daemons];
            for processes in [&gates.processes, &relays, &outboxes.processes].into_iter().chain(daemons) {
                revived += processes.revive()?;
            }
            std::thread::sleep(process::POLL);
        }
        settling.join().map_err(|_| "a client panicked".to_owned())
    })?;
    more.push(listeners.finish());
    more.extend(stalled.finish(&upstream));
    more.push(verdict::Row::count(
        "processes that ended by themselves",
        usize::try_from(revived).unwrap_or(0),
    ));
    let judged = verdict::judge(&sent, &upstream, more);
    println!("{}", verdict::table(seed, &done, &judged));
    drop((mesh, outboxes, relays, gates));
    for line in services.stop() {
        eprintln!("xtask: {line}");
    }
    match judged.broken() {
        None => Ok(()),
        Some(why) => Err(Failure::Failed(format!("{why}; again: cargo xtask chaos --seed {seed}"))),
    }
}

/// A port of this machine that is free now.
fn free_port() -> Result<u16, String> {
    let listener =
        std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let read = |line: &str| Cli::try_parse_from(std::iter::once("chaos").chain(line.split_whitespace()));
        let asked = read("--seconds 20 --seed 7 --planted answer-before-settle").unwrap();
        assert_eq!((asked.lasts(), asked.seed), (Duration::from_secs(20), Some(7)));
        assert_eq!(read("").unwrap().lasts(), Duration::from_secs(120));
        assert_eq!(read("--minutes 3").unwrap().lasts(), Duration::from_secs(180));
        assert_eq!(read("--help").unwrap_err().exit_code(), 0);
        for wrong in ["--seconds", "--hours 1", "--minutes x"] {
            assert_eq!(read(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
