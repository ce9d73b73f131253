//! Publishes durably to a broker and reads along: how many a second, how long each takes, and how long until a live reader has it.
//! The same load for every contestant: so many publishers, each with a connection of its own and one message at a time.

mod http;
mod nats;
mod streams;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::remember::Order;
use crate::upstream::runtime;

/// Stands around the time in a message, where nothing else has it.
const MARK: u8 = b'~';
/// Digits of that time.
const DIGITS: usize = 16;
/// How long what is on its way is waited for.
const ON_ITS_WAY: Duration = Duration::from_secs(3);
/// Bytes of a body.
const BODY_BYTES: usize = 200;

/// Whom it is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum To {
    /// A semel broker.
    Broker,
    /// A semel outbox, whose lane is paused. It has no readers.
    Outbox,
    /// NATS JetStream.
    Jetstream,
    /// Redis Streams.
    Streams,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_enum)]
    to: To,
    #[arg(long)]
    target: SocketAddr,
    /// The token of the outbox, or what the members' tokens begin with: `TOKEN-0` publishes.
    #[arg(long, default_value = "")]
    token: String,
    #[arg(long, default_value_t = 64)]
    publishers: usize,
    /// Live readers of the first topic.
    #[arg(long, default_value_t = 1)]
    readers: usize,
    /// So many members share them.
    #[arg(long, default_value_t = 1)]
    members: usize,
    /// Publishers take turns with so many topics.
    #[arg(long, default_value_t = 1)]
    topics: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// What ids follow from: another one, other ids.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How ids follow each other.
    #[arg(long, value_enum, default_value = "ordered")]
    ids: Order,
    /// Messages a second of each publisher; without it, the next follows the answer.
    #[arg(long)]
    rate: Option<f64>,
}

/// What all tasks of one run share.
struct Run {
    args: Args,
    began: Instant,
    is_over: AtomicBool,
    next: AtomicU64,
    received: AtomicU64,
}

/// A message.
struct Message {
    id: String,
    topic: usize,
    /// When it was made, which is in its body.
    sent: u64,
    /// With the time in it.
    body: String,
}

impl Run {
    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn is_measured(&self, at: u64) -> bool {
        Duration::from_micros(at) >= Duration::from_secs_f64(self.args.warmup)
    }

    /// The next message.
    fn message(&self, publisher: usize) -> Message {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let topic = usize::try_from(number).unwrap_or(publisher) % self.args.topics;
        let sent = self.micros();
        let mut body = format!("{0}{sent:0DIGITS$}{0}", MARK as char);
        body.extend(std::iter::repeat_n('x', BODY_BYTES - body.len()));
        let id = match self.args.ids {
            Order::Ordered => format!("01{:08}{number:016}", self.args.seed),
            // A number for each number, and none twice.
            Order::Random => {
                let mixed = mixed(self.args.seed.wrapping_mul(1 << 32).wrapping_add(number));
                format!("{mixed:016x}{:010x}", self.args.seed)
            }
        };
        Message { id, topic, sent, body }
    }

    /// When the messages in these bytes were sent, and when they came here, in microseconds. Bytes that may go on are left.
    fn take(&self, bytes: &mut Vec<u8>, came: &mut Vec<(u64, u64)>) {
        let (mut at, now) = (0, self.micros());
        while let Some(found) = bytes[at..].iter().position(|byte| *byte == MARK) {
            let begin = at + found + 1;
            let Some(digits) = bytes.get(begin..=begin + DIGITS) else {
                at = begin - 1;
                bytes.drain(..at);
                return;
            };
            at = begin;
            let sent = std::str::from_utf8(&digits[..DIGITS]).ok().and_then(|text| text.parse::<u64>().ok());
            if let Some(sent) = sent.filter(|_| digits[DIGITS] == MARK) {
                at = begin + DIGITS + 1;
                self.received.fetch_add(1, Ordering::Relaxed);
                if self.is_measured(sent) {
                    came.push((sent, now));
                }
            }
        }
        bytes.clear();
    }
}

/// Another number for every number (the end of splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// One connection that publishes.
enum Publisher {
    Http(http::Publisher),
    Nats(nats::Publisher),
    Streams(streams::Publisher),
}

impl Publisher {
    async fn open(run: &Run) -> Result<Self, String> {
        Ok(match run.args.to {
            To::Broker | To::Outbox => Publisher::Http(http::Publisher::open(&run.args).await?),
            To::Jetstream => Publisher::Nats(nats::Publisher::open(run.args.target).await?),
            To::Streams => Publisher::Streams(streams::Publisher::open(run.args.target).await?),
        })
    }

    /// Publishes, and waits until it is said to be kept.
    async fn publish(&mut self, message: &Message) -> Result<(), String> {
        match self {
            Publisher::Http(publisher) => publisher.publish(message).await,
            Publisher::Nats(publisher) => publisher.publish(message).await,
            Publisher::Streams(publisher) => publisher.publish(message).await,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let run = Arc::new(Run {
        args: args.clone(),
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        next: AtomicU64::new(0),
        received: AtomicU64::new(0),
    });
    runtime()?.block_on(measure(run))
}

async fn measure(mut run: Arc<Run>) -> Result<(), String> {
    if run.args.to == To::Jetstream {
        nats::make_stream(run.args.target).await?;
    }
    let mut streams = Vec::new();
    for number in 0..if run.args.to == To::Outbox { 0 } else { run.args.readers } {
        streams.push(match run.args.to {
            To::Broker | To::Outbox => http::subscribe(&run.args, number % run.args.members).await?,
            To::Jetstream => nats::subscribe(run.args.target, number, run.args.seed).await?,
            To::Streams => streams::subscribe(run.args.target).await?,
        });
    }
    let mut publishers = Vec::new();
    for _ in 0..run.args.publishers {
        publishers.push(Publisher::open(&run).await?);
    }
    // Connecting is not measured.
    if let Some(fresh) = Arc::get_mut(&mut run) {
        fresh.began = Instant::now();
    }
    let mut reading = JoinSet::new();
    for stream in streams {
        reading.spawn(read(Arc::clone(&run), stream));
    }
    let mut publishing = JoinSet::new();
    for (number, publisher) in publishers.into_iter().enumerate() {
        publishing.spawn(publish(Arc::clone(&run), publisher, number));
    }
    tokio::time::sleep(Duration::from_secs_f64(run.args.warmup + run.args.seconds)).await;
    run.is_over.store(true, Ordering::Relaxed);
    let mut taken: Vec<(u64, u64)> = Vec::new();
    while let Some(done) = publishing.join_next().await {
        taken.extend(done.map_err(|error| error.to_string())??);
    }
    let published = run.next.load(Ordering::Relaxed);
    let expected = if run.args.topics == 1 { published * run.args.readers as u64 } else { u64::MAX };
    let since = Instant::now();
    // What is on its way arrives.
    while run.received.load(Ordering::Relaxed) < expected && since.elapsed() < ON_ITS_WAY {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    reading.abort_all();
    report(&run, &taken)
}

/// Publishes for as long as it is measured; says when each message was sent, and when it was said to be kept.
async fn publish(run: Arc<Run>, mut publisher: Publisher, number: usize) -> Result<Vec<(u64, u64)>, String> {
    let mut taken = Vec::new();
    let pause = run.args.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
    while !run.is_over.load(Ordering::Relaxed) {
        let message = run.message(number);
        publisher.publish(&message).await?;
        if run.is_measured(message.sent) && !run.is_over.load(Ordering::Relaxed) {
            taken.push((message.sent, run.micros()));
        }
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(taken)
}

/// What readers measured. They end by being aborted, so it is kept here.
static LIVE: std::sync::Mutex<Vec<(u64, u64)>> = std::sync::Mutex::new(Vec::new());

fn collected() -> Vec<(u64, u64)> {
    LIVE.lock().map(|mut live| std::mem::take(&mut *live)).unwrap_or_default()
}

async fn read(run: Arc<Run>, stream: Subscription) {
    let (mut bytes, mut came) = (Vec::new(), Vec::new());
    let mut stream = stream;
    while stream.more(&mut bytes).await {
        run.take(&mut bytes, &mut came);
        if let Ok(mut live) = LIVE.lock() {
            live.append(&mut came);
        }
    }
}

/// A connection on which messages come.
enum Subscription {
    /// By themselves.
    Pushed(TcpStream),
    /// When asked for.
    Asked(streams::Reader),
}

impl Subscription {
    /// Adds what came. Says whether more may come.
    async fn more(&mut self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Subscription::Pushed(stream) => stream.read_buf(bytes).await.is_ok_and(|count| count > 0),
            Subscription::Asked(reader) => reader.more(bytes).await.is_ok(),
        }
    }
}

/// How long each took, sorted.
fn times(spans: &[(u64, u64)]) -> Vec<u64> {
    let mut times: Vec<u64> = spans.iter().map(|(from, to)| to.saturating_sub(*from)).collect();
    times.sort_unstable();
    times
}

fn report(run: &Run, taken: &[(u64, u64)]) -> Result<(), String> {
    let (args, came) = (&run.args, collected());
    // From the moment at which the publisher heard that it is kept; whoever reads before that has waited for nothing.
    let kept: HashMap<u64, u64> = taken.iter().copied().collect();
    let after: Vec<(u64, u64)> =
        came.iter().filter_map(|(sent, came)| Some((*kept.get(sent)?, *came))).collect();
    let (taken, live, after) = (times(taken), times(&came), times(&after));
    let line = json!({
        "sent": taken.len(),
        "rate": taken.len() as f64 / args.seconds,
        "p50_ms": percentile(&taken, 50),
        "p99_ms": percentile(&taken, 99),
        "published": run.next.load(Ordering::Relaxed),
        "received": run.received.load(Ordering::Relaxed),
        "live_p50_ms": percentile(&live, 50),
        "live_p99_ms": percentile(&live, 99),
        "live_max_ms": percentile(&live, 100),
        "after_p99_ms": percentile(&after, 99),
    });
    println!("{line}");
    Ok(())
}

fn percentile(sorted: &[u64], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    Some(sorted[at] as f64 / 1000.0)
}
