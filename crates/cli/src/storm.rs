//! `semel storm`: a bounded retry storm and the count of effects. Reads the command line, storms a service or the demo
//! (bare, then through the gate), prints the table; what is planned, sent, counted and judged has files of its own.

mod demo;
mod flight;
mod plan;
mod progress;
mod report;
mod tally;
mod verdict;

use std::io::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::client::effects::Counter;
use crate::client::{self, Connection, Target, header_line};
use crate::config::duration;
use crate::exit::{Exit, Stop};
use crate::output_failed;
use crate::serve::sockets;
use flight::Settings;
use progress::{Progress, Style};
use verdict::Row;

/// How long a count of effects must stand still, at least, before it is believed; and the longest wait for that.
const QUIET_LEAST: Duration = Duration::from_millis(300);
const QUIET_WITHIN: Duration = Duration::from_secs(15);
const CREDENTIAL: &str = "Bearer semel-storm";
/// Copies of requests in one storm.
const SENDINGS_MAX: u64 = 1_000_000;

const DETAILS: &str = "\
Without URL the demo shop is started and stormed twice: bare, then through the gate.

Every request is sent several times at once under one idempotency key; some clients give up waiting, some hang up, and \
every request is sent again until it has a final answer. Unless a header line says otherwise, requests carry \
`Content-Type: application/json` and `Authorization: Bearer semel-storm`.

Effects are counted at --effects-url, before and after: a JSON number, a list, or an object with a count in it. Without \
that URL they are not known; what is judged then is whether any request got two different answers, and where answers do \
not tell one request from another, that is said and counts as a fault.

Exit code 1: effects differ from the number of requests (of the gate's row, in the demo), or a request was refused, never \
answered, or answered in two different ways.

Examples:
  semel storm
  semel storm http://127.0.0.1:7400/orders --effects-url http://127.0.0.1:7400/effects\n\nThe second one storms what `semel up` has started.";

/// Send a bounded retry storm and count the effects; without URL, to the demo, bare and then through the gate.
#[derive(Debug, clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// The service to storm; its path is where requests are sent. Without it, the demo.
    url: Option<String>,
    /// Where the service says how many effects it has had.
    #[arg(long, value_name = "URL", requires = "url")]
    effects_url: Option<String>,
    /// The member that holds the count, where that URL gives several numbers.
    #[arg(long, value_name = "NAME", requires = "effects_url")]
    effects_field: Option<String>,
    /// How many requests should take effect once each.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// How many times each is sent at once.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    copies: u32,
    /// How many requests are under way at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// What decides who gives up and who hangs up; a random number without this.
    #[arg(long)]
    seed: Option<u64>,
    /// The method of every request.
    #[arg(long, default_value = "POST")]
    method: Method,
    /// Where requests are sent; without this the URL's own path, else /orders.
    #[arg(long)]
    path: Option<String>,
    /// A header line, `Name: value`; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "LINE")]
    headers: Vec<String>,
    /// The header that carries the key.
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// The body; {number} becomes the request's number.
    #[arg(long, default_value = r#"{"item":"tea {number}","amount":1}"#)]
    body: String,
    /// How long a patient client waits for an answer.
    #[arg(long, default_value = "30s", value_parser = duration)]
    timeout: Duration,
    /// No request is begun after this time.
    #[arg(long, default_value = "1m", value_parser = duration)]
    max_time: Duration,
    /// How long an order takes in the demo.
    #[arg(long, default_value = "10ms", value_parser = duration, conflicts_with = "url")]
    delay: Duration,
    /// Storm a host that is not this machine. It must be yours.
    #[arg(long)]
    yes_storm_this_host: bool,
    /// Print one JSON object, and no progress.
    #[arg(long)]
    json: bool,
    /// Print no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let sendings = u64::from(args.requests) * u64::from(args.copies);
    if sendings > SENDINGS_MAX {
        let message = format!("--requests times --copies is {sendings}; at most {SENDINGS_MAX} are sent");
        return Err(Stop::new(Exit::Usage, message));
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => u64::from(
            getrandom::u32().map_err(|error| Stop::new(Exit::Io, format!("no random numbers: {error}")))?,
        ),
    };
    sockets::raise_limit();
    let rows = client::block_on(async {
        tokio::select! {
            biased;
            rows = storm(args, seed) => rows,
            _ = tokio::signal::ctrl_c() => Err(Stop::new(Exit::Interrupted, "the storm was broken off: nothing is known")),
        }
    })?;
    // In the demo the bare service is there to be compared with: its duplicates are what is shown.
    let faults = rows.last().map(verdict::faults).unwrap_or_default();
    print(args, seed, &rows, &faults)?;
    Ok(if faults.is_empty() { Exit::Success } else { Exit::Found })
}

async fn storm(args: &Args, seed: u64) -> Result<Vec<Row>, Stop> {
    match &args.url {
        Some(url) => Ok(vec![service(args, url, seed).await?]),
        None => demo::storm(args, seed).await,
    }
}

fn print(args: &Args, seed: u64, rows: &[Row], faults: &[String]) -> Result<(), Stop> {
    let text = if args.json {
        format!("{}\n", report::json(rows, seed, args.copies, faults))
    } else {
        let name = rows.last().map_or("", |row| row.name.as_str());
        let words: String = match faults {
            [] if rows.last().is_some_and(|row| row.effects.is_some()) => {
                format!("{name}: every request took effect once\n")
            }
            [] => format!("{name}: no request was answered in two ways; more cannot be known here\n"),
            faults => faults.iter().map(|fault| format!("{name}: FAULT: {fault}\n")).collect(),
        };
        format!("{}{words}seed {seed}\n", report::table(rows))
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))
}

async fn service(args: &Args, url: &str, seed: u64) -> Result<Row, Stop> {
    let usage = |message: String| Stop::new(Exit::Usage, message);
    let target = Target::parse(url).map_err(usage)?;
    let target = match &args.path {
        Some(path) => target.at(path),
        None => target.or_at("/orders"),
    };
    let target = target.map_err(usage)?;
    refuse_strangers(args, &target).await?;
    let counter = match &args.effects_url {
        Some(url) => Some(Counter {
            target: Target::parse(url).map_err(usage)?,
            field: args.effects_field.clone(),
            headers: headers(args)?,
        }),
        None => None,
    };
    let name = target.authority().to_owned();
    one(args, seed, &name, target, counter).await
}

/// A storm is for one's own machine, unless somebody says so in as many words.
async fn refuse_strangers(args: &Args, target: &Target) -> Result<(), Stop> {
    let found = target.addresses().await;
    let addresses =
        found.map_err(|error| Stop::new(Exit::Io, format!("failed to look up {target}: {error}")))?;
    match addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
        Some(address) if !args.yes_storm_this_host => Err(Stop::new(
            Exit::Usage,
            format!(
                "{target} is not this machine ({}): a storm could harm others. Where it is yours, say \
                 --yes-storm-this-host",
                address.ip()
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Storms one service and counts.
async fn one(
    args: &Args,
    seed: u64,
    name: &str,
    target: Target,
    counter: Option<Counter>,
) -> Result<Row, Stop> {
    let failed = |message: String| Stop::new(Exit::Io, message);
    // A service that is not there is not stormed.
    drop(
        Connection::open(&target, args.timeout)
            .await
            .map_err(|error| failed(format!("failed to reach {target}: {error}")))?,
    );
    let before = match &counter {
        Some(counter) => Some(counter.read().await.map_err(failed)?),
        None => None,
    };
    let style = if args.json || args.quiet { Style::Silent } else { Style::fitting() };
    let progress = Progress::new(name, u64::from(args.requests));
    let shown = progress::show(progress.clone(), style);
    let settings = Settings {
        target: target.clone(),
        method: args.method.clone(),
        headers: headers(args)?,
        key_header: args.key_header.clone(),
        body: args.body.clone(),
        timeout: args.timeout,
        concurrency: args.concurrency as usize,
        max_time: args.max_time,
    };
    let flown = flight::fly(settings, plan::plan(seed, args.requests, args.copies), progress).await;
    shown.end();
    let tally = flown?;
    let effects = match (&counter, before) {
        (Some(counter), Some(before)) => {
            // What is still under way takes about as long as what was answered.
            let quiet = tally.percentile(100).map_or(QUIET_LEAST, |longest| (longest * 2).max(QUIET_LEAST));
            let after = counter.settled(quiet.min(QUIET_WITHIN), QUIET_WITHIN).await.map_err(failed)?;
            Some(after.saturating_sub(before))
        }
        _ => None,
    };
    Ok(Row { name: name.to_owned(), url: target.to_string(), tally, effects })
}

fn headers(args: &Args) -> Result<HeaderMap, Stop> {
    let mut headers = HeaderMap::new();
    for line in &args.headers {
        let (name, value) = header_line(line).map_err(|message| Stop::new(Exit::Usage, message))?;
        headers.append(name, value);
    }
    headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.entry(header::AUTHORIZATION).or_insert(HeaderValue::from_static(CREDENTIAL));
    Ok(headers)
}
