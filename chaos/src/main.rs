//! `cargo xtask chaos`: real gateways, relays and outboxes on a real PostgreSQL with a real Redis, clients that retry, and
//! faults all the time. At the end every acknowledged request must have taken effect once, and none twice.

mod clients;
mod faults;
mod gates;
mod http;
mod http2;
mod listeners;
mod mail;
mod outboxes;
mod processes;
mod proxy;
mod random;
mod scores;
mod settling;
mod tokens;
mod upstream;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use semel_testbed::failure::Failure;
use semel_testbed::services::{Permission, Services, seconds};
use semel_testbed::{binaries, flags, os, process};

use clients::Clients;
use faults::Faults;
use gates::Gates;
use listeners::Listeners;
use mail::Mail;
use outboxes::Outboxes;
use proxy::Proxy;
use random::Random;
use scores::{Scores, Senders};
use tokens::Tokens;
use upstream::Upstream;

const USAGE: &str = "\
Usage: cargo xtask chaos [--minutes M | --seconds S] [--seed N] [--planted BUG]

Two gateways, two relays (`semel serve …`) share a PostgreSQL and a Redis of their own, in front of services that count
effects, one over HTTP/1.1 and one over HTTP/2 with few streams, which streams of events hold; two outboxes send through the
gateways. Clients send keyed requests, messages and score changes and retry them, while processes are killed, stopped past
their lease and frozen while they connect, configurations and credentials change, PostgreSQL is shut down at once and
replaced by a synchronous standby, Redis is killed, disks are full or fail to sync, and connections are cut. Ends in a table of faults and promises;
exits with 1 if a request took effect twice, an acknowledged one did not, an answer changed, a message was overtaken or a
score is not the sum of what was accepted.

Options:
  --minutes M    how long faults happen [default: 2]
  --seconds S    the same in seconds; the continuous integration runs a short one
  --seed N       which faults, in which order [default: from the clock, printed]
  --planted BUG  plant a known bug in every process, to see that the run finds it";

/// How long everything may take to settle once the faults have stopped.
const CALM: Duration = Duration::from_secs(150);

/// How long a person may take to bring every message to its end.
const SETTLING: Duration = Duration::from_secs(120);

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    lasts: Duration,
    seed: Option<u64>,
    planted: Option<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    semel_testbed::end(run(&args))
}

fn run(args: &[String]) -> Result<(), Failure> {
    match parse(args)? {
        None => {
            println!("{USAGE}");
            Ok(())
        }
        Some(asked) => chaos(&asked),
    }
}

fn parse(args: &[String]) -> Result<Option<Asked>, Failure> {
    let mut asked = Asked { lasts: Duration::from_secs(120), seed: None, planted: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if flags::is_help(arg) {
            return Ok(None);
        }
        let value = args.next().ok_or_else(|| flags::unknown(arg, USAGE))?;
        let number = || value.parse::<u64>().map_err(|_| flags::unknown(value, USAGE));
        match arg.as_str() {
            "--minutes" => asked.lasts = Duration::from_secs(number()? * 60),
            "--seconds" => asked.lasts = Duration::from_secs(number()?),
            "--seed" => asked.seed = Some(number()?),
            "--planted" => asked.planted = Some(value.clone()),
            other => return Err(flags::unknown(other, USAGE)),
        }
    }
    Ok(Some(asked))
}

/// Runs it all and judges.
fn chaos(asked: &Asked) -> Result<(), Failure> {
    let _watch = os::Interrupts::watch();
    let seed = asked.seed.unwrap_or_else(Random::seed);
    eprintln!("xtask: chaos with seed {seed} for {}", seconds(asked.lasts));
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
    let gates = Gates::start(&services, &to_postgres, &to_redis, [&to_plain, &to_http2], planted)?;
    let admins = [free_port()?, free_port()?];
    let relays = scores::relays(&services, &to_postgres, &to_scores, &admins, planted)?;
    let outboxes = Outboxes::start(services.folder(), gates.ports(), tokens.file(), asked.lasts, planted)?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients = Clients::start(gates.ports(), &tokens, &stop, seed);
    let listeners = Listeners::start(gates.ports(), &stop, seed);
    let mail = Mail::start(outboxes.processes.ports(), &stop, seed);
    let senders = Senders::start(relays.ports(), &admins, &stop, seed);
    let mut faults = Faults {
        services: &mut services,
        gates: &gates,
        relays: &relays,
        outboxes: &outboxes,
        tokens: &tokens,
        stores: [&to_postgres, &to_redis],
        upstreams: [&to_plain, &to_http2, &to_scores],
        done: vec![],
        revived: 0,
    };
    let result = faults.play(asked.lasts, &mut Random::new(seed), || clients.progress());
    let (done, mut revived) = (std::mem::take(&mut faults.done), faults.revived);
    result?;
    eprintln!("xtask: the faults have stopped");
    upstream.calm();
    stop.store(true, Ordering::SeqCst);
    let (sent, mut more) = std::thread::scope(|scope| {
        let settling = scope.spawn(|| {
            let sent = clients.finish(Instant::now() + CALM);
            let mut more = mail.judge(&upstream, Instant::now() + SETTLING);
            more.extend(senders.judge(&scores, Instant::now() + CALM));
            (sent, more)
        });
        // A process that ends now, for a fault of a moment ago, is started again.
        while !settling.is_finished() {
            for processes in [&gates.processes, &relays, &outboxes.processes] {
                revived += processes.revive()?;
            }
            std::thread::sleep(process::POLL);
        }
        settling.join().map_err(|_| "a client panicked".to_owned())
    })?;
    more.push(listeners.finish());
    more.push(verdict::Row::count(
        "processes that ended by themselves",
        usize::try_from(revived).unwrap_or(0),
    ));
    let judged = verdict::judge(&sent, &upstream, gates.ports(), more);
    println!("{}", verdict::table(seed, &done, &judged));
    drop((outboxes, relays, gates));
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

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_command_line_is_read() {
        let asked = parse(&words("--seconds 20 --seed 7 --planted answer-before-settle")).unwrap().unwrap();
        assert_eq!((asked.lasts, asked.seed), (Duration::from_secs(20), Some(7)));
        assert_eq!(parse(&words("--help")), Ok(None));
        assert!(parse(&words("--seconds")).is_err() && parse(&words("--hours 1")).is_err());
    }
}
