//! `cargo xtask chaos`: real gateways on a real PostgreSQL with a real Redis, clients that retry, and faults all the time.
//! At the end every acknowledged request must have taken effect once, and none twice.

mod clients;
mod faults;
mod gates;
mod http;
mod proxy;
mod random;
mod upstream;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::services::{Permission, Services, seconds};
use crate::{flags, os, process};
use clients::Clients;
use faults::Faults;
use gates::Gates;
use proxy::Proxy;
use random::Random;
use upstream::Upstream;

const USAGE: &str = "\
Usage: cargo xtask chaos [--minutes M | --seconds S] [--seed N] [--planted BUG]

Two gateways (`semel serve gate`) share a PostgreSQL and a Redis of their own, in front of a service that counts effects.
Clients send keyed requests and retry them through either gateway, while gateways are killed and stopped past their
lease, PostgreSQL is shut down at once, Redis is killed, and connections to each of them are cut. Ends in a table of
faults and promises; exits with 1 if a request took effect twice, an acknowledged one did not, or an answer changed.

Options:
  --minutes M    how long faults happen [default: 1]
  --seconds S    the same in seconds; the continuous integration runs a short one
  --seed N       which faults, in which order [default: from the clock, printed]
  --planted BUG  plant a known bug in the gateways, to see that the run finds it";

/// How long everything may take to settle once the faults have stopped.
const CALM: Duration = Duration::from_secs(20);

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) lasts: Duration,
    pub(crate) seed: Option<u64>,
    pub(crate) planted: Option<String>,
}

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match parse(args)? {
        None => {
            println!("{USAGE}");
            Ok(())
        }
        Some(asked) => chaos(&asked),
    }
}

fn parse(args: &[String]) -> Result<Option<Asked>, Failure> {
    let mut asked = Asked { lasts: Duration::from_secs(60), seed: None, planted: None };
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
pub(crate) fn chaos(asked: &Asked) -> Result<(), Failure> {
    let _watch = os::Interrupts::watch();
    let seed = asked.seed.unwrap_or_else(Random::seed);
    eprintln!("xtask: chaos with seed {seed} for {}", seconds(asked.lasts));
    process::supervise(&mut process::cargo(&["build", "-p", "semel", "--features", "planted"]), None)?;
    let mut services = Services::start(Permission::InstallIfMissing)?;
    let upstream = Upstream::start(seed)?;
    let to_upstream = Proxy::start(upstream.port())?;
    let (to_postgres, to_redis) =
        (Proxy::start(services.postgres_port()?)?, Proxy::start(services.redis_port()?)?);
    let gates = Gates::start(&services, &to_postgres, &to_redis, &to_upstream, asked.planted.as_deref())?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients = Clients::start(&gates, &stop, seed);
    let mut faults = Faults {
        services: &mut services,
        gates: &gates,
        proxies: [&to_postgres, &to_redis, &to_upstream],
        done: vec![],
    };
    let result = faults.play(asked.lasts, &mut Random::new(seed), || clients.progress());
    let done = std::mem::take(&mut faults.done);
    eprintln!("xtask: the faults have stopped");
    upstream.calm();
    let settled_by = Instant::now() + CALM;
    stop.store(true, Ordering::SeqCst);
    let sent = clients.finish(settled_by);
    result?;
    let judged = verdict::judge(&sent, &upstream, &gates);
    println!("{}", verdict::table(seed, &done, &judged));
    drop(gates);
    for line in services.stop() {
        eprintln!("xtask: {line}");
    }
    match judged.broken() {
        None => Ok(()),
        Some(why) => Err(Failure::Failed(format!("{why}; again: cargo xtask chaos --seed {seed}"))),
    }
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
