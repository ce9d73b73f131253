//! `semel outbox send`: a request as one would write it for curl.

use serde_json::{Map, Value, json};

use super::call::{Call, Caller};
use super::{Which, refused, show};
use crate::exit::{Exit, Stop};

/// Put a request into the outbox; takes curl's -X, -H and -d. Or publish to a topic or a member.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Absolute, or a path under the outbox's upstream; with --topic or --to the body, where -d gives none.
    #[arg(value_name = "URL", required_unless_present_any = ["topic", "to"])]
    url: Option<String>,
    /// Publish to a topic of the mesh that [outbox] names.
    #[arg(long, value_name = "TOPIC", conflicts_with_all = ["to", "method", "headers"])]
    topic: Option<String>,
    /// Send to one member of that mesh.
    #[arg(long, value_name = "MEMBER", conflicts_with_all = ["method", "headers"])]
    to: Option<String>,
    /// Mention a member; may be given several times.
    #[arg(long, value_name = "MEMBER")]
    mention: Vec<String>,
    /// The method. [default: GET, or POST with -d]
    #[arg(short = 'X', long = "request", value_name = "METHOD")]
    method: Option<String>,
    /// A header, as `Name: value`.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The body, or @FILE; JSON is sent as such, anything else as a form unless a Content-Type says otherwise.
    #[arg(short = 'd', long = "data", value_name = "DATA")]
    data: Vec<String>,
    /// The message's id, which is also the idempotency key; without one, it is minted.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The queue: one message at a time, in order.
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// On whose behalf it is sent.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// The action that it stands for: while one waits, a second one is the same.
    #[arg(long, value_name = "KEY")]
    logical_key: Option<String>,
    /// A profile other than the outbox's.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Wait so many seconds for the delivery.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Where a path leads, when no daemon runs.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
}

pub(super) async fn run(args: &Args, which: &Which) -> Result<Exit, Stop> {
    let envelope = envelope(args)?;
    let caller = Caller::find(which, args.upstream.as_deref()).await?;
    let prefer = args.wait.map(|seconds| format!("wait={seconds}"));
    let (status, told) = caller.call(Call::text("/v1/send".to_owned(), envelope, prefer)).await?;
    if !(200..300).contains(&status) {
        if which.json {
            show::print(true, &told, show::line)?;
        }
        return Err(refused(status, &told));
    }
    if !caller.is_daemon() {
        eprintln!("semel: no daemon owns this outbox: it is queued, and `semel serve outbox` sends it");
    }
    show::print(which.json, &told, show::line)?;
    match (told["status"].as_str(), args.wait) {
        (Some("dead" | "aborted"), _) => Ok(Exit::Found),
        (Some("done"), _) | (_, None) => Ok(Exit::Success),
        (_, Some(seconds)) => {
            let why =
                told["waits_for"].as_str().map(|why| format!(": it waits for {why}")).unwrap_or_default();
            let what = format!("it is on disk, and was not delivered within {seconds} s{why}");
            Err(Stop::new(Exit::NotYet, what))
        }
    }
}

/// The body of `POST /v1/send`. A JSON body goes in as it was written, byte for byte.
fn envelope(args: &Args) -> Result<String, Stop> {
    let usage = |message: String| Stop::new(Exit::Usage, message);
    let to = match (&args.topic, &args.to) {
        (Some(topic), _) => Some(json!({"topic": topic})),
        (None, Some(member)) => Some(json!({"member": member})),
        (None, None) if !args.mention.is_empty() => {
            return Err(usage("--mention goes with --topic or --to".to_owned()));
        }
        (None, None) => None,
    };
    let what = match to {
        Some(to) => message(args, &to)?,
        None => request(args)?,
    };
    let mut text = format!("{{{what}");
    let fields = [
        ("client_message_id", &args.id),
        ("lane", &args.lane),
        ("principal", &args.principal),
        ("logical_key", &args.logical_key),
        ("profile", &args.profile),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            text.push_str(&format!(",\"{name}\":{}", json!(value)));
        }
    }
    text.push('}');
    Ok(text)
}

/// A message for a topic or a member. What is no JSON is sent as a JSON text.
fn message(args: &Args, to: &Value) -> Result<String, Stop> {
    let usage = |message: &str| Stop::new(Exit::Usage, message);
    let body = match (&args.url, data(args)?) {
        (Some(_), Some(_)) => return Err(usage("the body is given twice: as the last word, or with -d")),
        (Some(body), None) => body.clone(),
        (None, Some(body)) => body,
        (None, None) => return Err(usage("there is no body: semel outbox send --topic TOPIC JSON")),
    };
    let body = if is_json(&body) { body } else { json!(body).to_string() };
    let mentions = if args.mention.is_empty() {
        String::new()
    } else {
        format!(",\"mentions\":{}", json!(args.mention))
    };
    Ok(format!("\"to\":{to},\"body\":{body}{mentions}"))
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}

/// What `-d` says, with files read.
fn data(args: &Args) -> Result<Option<String>, Stop> {
    let mut parts = Vec::new();
    for data in &args.data {
        parts.push(match data.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Stop::new(Exit::Io, format!("failed to read {path}: {error}")))?,
            None => data.clone(),
        });
    }
    Ok((!parts.is_empty()).then(|| parts.join("&")))
}

/// A request, as one would write it for curl.
fn request(args: &Args) -> Result<String, Stop> {
    let usage = |message: String| Stop::new(Exit::Usage, message);
    let mut headers = Map::new();
    for line in &args.headers {
        let (name, value) =
            line.split_once(':').ok_or_else(|| usage(format!("-H {line:?}: expected Name: value")))?;
        let name = name.trim().to_owned();
        match headers.get_mut(&name) {
            Some(Value::Array(values)) => values.push(json!(value.trim())),
            Some(_) | None => {
                headers.insert(name, json!([value.trim()]));
            }
        }
    }
    let data = data(args)?;
    let has_type = headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
    let is_json = data.as_deref().is_some_and(is_json);
    if data.is_some() && !has_type {
        let usual = if is_json { "application/json" } else { "application/x-www-form-urlencoded" };
        headers.insert("content-type".to_owned(), json!(usual));
    }
    let method = args.method.as_deref().unwrap_or(if data.is_some() { "POST" } else { "GET" });
    let mut request = json!({"method": method, "url": args.url, "headers": headers}).to_string();
    if let Some(data) = data {
        request.pop();
        let body = if is_json { data } else { json!(data).to_string() };
        request.push_str(&format!(",\"{}\":{body}}}", if is_json { "body" } else { "body_text" }));
    }
    Ok(format!("\"request\":{request}"))
}
