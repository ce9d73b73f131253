//! The load generator: one thread per core, each an epoll loop over its share of the connections, with requests that
//! were formatted before the clock started. It must cost less than anything it measures.
//!
//! Closed loop: each connection sends its next request when it has the last answer. Open loop (`--rate`): requests are
//! due at fixed times, whether or not earlier ones were answered, and latency counts from when they were due.

mod answer;
mod connection;
mod histogram;
mod keys;
mod plan;
mod report;
mod streams;
mod template;
mod thread;
mod timer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use clap::ValueEnum;
pub(crate) use keys::key;
use report::Report;
use template::Template;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// A key that was never seen, on every request.
    Fresh,
    /// Keys of an earlier `fresh` run with the same seed, in a scattered order.
    Replay,
    /// Fresh keys, of which a part is sent again by another connection while in flight.
    Storm,
}

/// What keys look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ids {
    /// UUIDs of version 4.
    Random,
    /// UUIDs of version 7: each is above the one before.
    Ordered,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Whom to send to; given twice, connections alternate.
    #[arg(long, required = true)]
    target: Vec<SocketAddr>,
    /// The request's path; `{key}` and `{lane}` are filled in, here, in headers and in the body.
    #[arg(long, default_value = "/orders")]
    path: String,
    /// A header, `name: value`.
    #[arg(long)]
    header: Vec<String>,
    /// The body; without it, 200 bytes of JSON.
    #[arg(long)]
    body: Option<String>,
    #[arg(long, value_enum, default_value = "fresh")]
    load: Load,
    #[arg(long, value_enum, default_value = "random")]
    ids: Ids,
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Send by hyper: with 1, one request at a time on each HTTP/1.1 connection; with more, so many on each of HTTP/2.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["count", "rate"])]
    streams: usize,
    /// How long is measured.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How long it runs before that.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Send exactly so many requests instead, and measure them all.
    #[arg(long)]
    count: Option<u64>,
    /// What keys follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many keys a replay goes through.
    #[arg(long, default_value_t = 1)]
    keys: u64,
    /// How many lanes `{lane}` goes through.
    #[arg(long, default_value_t = 1)]
    lanes: u64,
    /// Of a hundred requests in a storm, how many repeat one in flight.
    #[arg(long, default_value_t = 10)]
    repeats: u32,
    /// Requests a second, on a clock of their own.
    #[arg(long)]
    rate: Option<f64>,
}

/// What the threads of one run share.
#[derive(Debug)]
struct Shared {
    started: Instant,
    /// From when answers count, in nanoseconds since the start.
    measured_from: u64,
    /// When sending ends. Answers that are owed by then are awaited and not counted.
    ends: u64,
    /// When the last answer came, for the longest stall.
    last_answer: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        nanoseconds(self.started.elapsed())
    }
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let template = Template::new(&args.path, &args.header, args.body.as_deref())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(args.connections).max(1);
    let (warmup, seconds) = match args.count {
        Some(_) => (0.0, 600.0),
        None => (args.warmup, args.seconds),
    };
    let measured_from = nanoseconds(Duration::from_secs_f64(warmup));
    let shared = Arc::new(Shared {
        started: Instant::now(),
        measured_from,
        ends: measured_from + nanoseconds(Duration::from_secs_f64(seconds)),
        last_answer: AtomicU64::new(measured_from),
    });
    if args.streams > 0 {
        let whole = streams::run(args, &shared)?;
        println!("{}", whole.json(Duration::from_nanos(shared.ends - shared.measured_from)));
        return Ok(());
    }
    let mut running = Vec::new();
    for number in 0..threads {
        let (args, template, shared) = (args.clone(), template.clone(), Arc::clone(&shared));
        running.push(std::thread::spawn(move || thread::run(number, threads, &args, &template, &shared)));
    }
    let mut whole = Report::default();
    for thread in running {
        let part = thread.join().map_err(|_| "a thread of the load generator broke".to_owned())?;
        whole.add(&part.map_err(|error| format!("failed to send: {error}"))?);
    }
    let measured = match args.count {
        Some(_) => whole.last_answer.saturating_sub(measured_from),
        None => {
            // A stall that lasts to the end is one.
            whole.stall = whole.stall.max(shared.ends.saturating_sub(whole.last_answer.max(measured_from)));
            shared.ends - measured_from
        }
    };
    println!("{}", whole.json(Duration::from_nanos(measured)));
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
