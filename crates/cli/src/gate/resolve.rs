//! Saying what became of an unknown outcome.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_contract::time::{Timestamp, format_duration};
use serde_json::{Value, json};

use super::confirm::confirm;
use super::show::{in_full, search};
use super::way::Way;
use super::{At, Said, text};
use crate::exit::{Exit, Stop};

/// Past the earliest time, so that the store's clock is past it too.
const WAIT_MARGIN: Duration = Duration::from_millis(200);
/// How often an early `not-applied` is tried again.
const WAITS_MAX: u32 = 5;

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Outcome {
    /// It took effect.
    Applied,
    /// It did not, and may run when it is sent again.
    NotApplied,
}

/// Which outcome, and what became of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  semel gate resolve 42 --as applied --status 201 --body-file answer.json
  semel gate resolve 42 --as not-applied --reason 'not in the bank statement'

A kept 5xx, which every retry gets, is lifted in the same way: say what became of its request.

Until the time that a refusal names, the request could still take effect: what was seen at the service before it says nothing. \
Look again after that time. With --wait a person at a terminal is asked to; a script that gives it should be sure in another way.

Exits 5 when the outcome is not unknown, or when `not-applied` comes too early and --wait is not given.")]
pub(crate) struct Args {
    /// The record: its id, its request's id or its key.
    #[arg(value_name = "ID")]
    id: String,
    /// What became of it.
    #[arg(long = "as", value_name = "OUTCOME")]
    outcome: Outcome,
    /// The status that retries are answered with.
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// The body that retries are answered with.
    #[arg(long, value_name = "FILE", requires = "status")]
    body_file: Option<PathBuf>,
    /// A header of that answer; may be given several times.
    #[arg(long = "header", value_name = "NAME:VALUE", requires = "status")]
    headers: Vec<String>,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT", required_if_eq("outcome", "not-applied"))]
    reason: Option<String>,
    /// How long the record is kept; never less than 30d. [default: 30d]
    #[arg(long, value_name = "DURATION")]
    keep: Option<String>,
    /// Where `not-applied` comes too early, wait until it is accepted.
    #[arg(long)]
    wait: bool,
}

/// Resolves.
pub(crate) async fn resolve(way: &Way, args: &Args, at: &At) -> Result<Said, Stop> {
    let body = body(args)?;
    let id = record_id(way, &args.id).await?;
    let path = format!("/v1/records/{id}/resolve");
    for _ in 0..WAITS_MAX {
        let answered = way.try_post(&path, body.clone()).await?;
        if answered.code() != "too-early" {
            let value = answered.done()?;
            let shown = format!("resolved as {}\n\n{}", text(&body, "as"), in_full(&value, at));
            return Ok(Said { text: shown, value });
        }
        let until = text(&answered.value, "not_before").to_owned();
        let left = time_left(way, &until).await?;
        if !args.wait {
            let what = format!(
                "too early: request {} could still take effect until {until}, {} from now; look at the service after that, \
                 and run this again, or add --wait",
                args.id,
                format_duration(Duration::from_secs(left.as_secs() + 1)),
            );
            return Err(Stop::new(Exit::Refused, what));
        }
        eprintln!("semel: it could still take effect; waiting until {until}");
        tokio::time::sleep(left + WAIT_MARGIN).await;
        look_again(&args.id)?;
    }
    Err(Stop::new(Exit::Refused, "it is still too early; is the store's clock standing still?"))
}

/// Has a person look once more: what was seen before the wait says nothing of what took effect during it.
fn look_again(id: &str) -> Result<(), Stop> {
    use std::io::IsTerminal;
    eprintln!("semel: only now is it certain; what was seen at the service before does not count");
    match std::io::stdin().is_terminal() {
        true => confirm(&format!("Look again. Request {id} did not take effect, and may run.\n"), false),
        false => Ok(()),
    }
}

/// How long until then, by the store's clock.
async fn time_left(way: &Way, until: &str) -> Result<Duration, Stop> {
    let clock = way.get("/v1/clock").await?;
    let left = match (Timestamp::parse(until), Timestamp::parse(text(&clock, "now"))) {
        (Ok(until), Ok(now)) => until.millis_since(now),
        _ => return Err(Stop::new(Exit::Unreachable, "the admin API gave a time that is none")),
    };
    Ok(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
}

/// The id of the one record that is meant.
pub(super) async fn record_id(way: &Way, meant: &str) -> Result<String, Stop> {
    let found = search(way, meant).await?;
    let records = found["records"].as_array().cloned().unwrap_or_default();
    let ids: Vec<&str> = records.iter().map(|record| text(record, "id")).collect();
    match ids[..] {
        [] => Err(Stop::new(
            Exit::Refused,
            format!("no record has {meant:?} as its id, its request's id or its key"),
        )),
        [one] => Ok(one.to_owned()),
        // What is exactly an id is meant as one, also where somebody's key looks the same.
        _ if ids.contains(&meant) => Ok(meant.to_owned()),
        _ => Err(Stop::new(
            Exit::Refused,
            format!("several records have {meant:?}: say which of {} is meant", ids.join(", ")),
        )),
    }
}

fn body(args: &Args) -> Result<Value, Stop> {
    let usage = |what: &str| Stop::new(Exit::Usage, what.to_owned());
    let mut body = match args.outcome {
        Outcome::Applied => json!({"as": "applied"}),
        Outcome::NotApplied if args.status.is_some() => {
            return Err(usage(
                "--as not-applied has no answer: leave --status, --body-file and --header out",
            ));
        }
        Outcome::NotApplied => json!({"as": "not-applied"}),
    };
    if let Some(status) = args.status {
        body["status"] = json!(status);
    }
    if let Some(file) = &args.body_file {
        let read = std::fs::read(file);
        let bytes =
            read.map_err(|error| Stop::new(Exit::Io, format!("failed to read {}: {error}", file.display())))?;
        body["body_base64"] = json!(STANDARD.encode(bytes));
    }
    if !args.headers.is_empty() {
        let mut headers = Vec::new();
        for header in &args.headers {
            let (name, value) =
                header.split_once(':').ok_or_else(|| usage("--header: expected NAME:VALUE"))?;
            headers.push(json!([name.trim(), value.trim()]));
        }
        body["headers"] = Value::Array(headers);
    }
    for (name, value) in [("reason", &args.reason), ("keep", &args.keep)] {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    Ok(body)
}
