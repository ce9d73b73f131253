//! `semel inbox`: what the outbox received. Talks to the daemon that owns the file, or opens the file when none runs.

use std::io::Write as _;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use semel_delivery::url::encoded;
use serde_json::{Value, json};

use crate::admin::Why;
use crate::exit::{Exit, Stop};
use crate::gate::table::table_of_sentences;
use crate::outbox::call::{Call, Caller};
use crate::outbox::{Which, ask, refused, show};
use crate::{client, output_failed};

/// Characters of a body that a list shows.
const BODY_SHOWN: usize = 60;
/// How soon a daemon that went away is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Look at what the outbox received, and acknowledge it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is received is said in semel.toml:

  [[outbox.receive]]
  broker = \"http://127.0.0.1:7430\"
  mesh = \"team\"
  topics = [\"news\"]
  direct = true
  credential = \"file:alice.token\"

`semel serve outbox` keeps each message once, and tells the broker when it is on disk. It is listed until it is acknowledged:
  semel inbox ack alice 01JQ8Z…")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List what nobody acknowledged, the oldest first, and how the lines fare.
    List(ListArgs),
    /// Show a message, acknowledged or not.
    Show(MessageArgs),
    /// Print what nobody acknowledged, and what comes, until it is stopped.
    Tail(TailArgs),
    /// Acknowledge a message: it is listed no more, and never received again.
    Ack(AckArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only messages with numbers above this one.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: i64,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Where there is none yet, wait so many seconds for one.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct TailArgs {
    /// Only messages with numbers above this one.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: i64,
}

#[derive(Debug, clap::Args)]
struct MessageArgs {
    /// Who sent it.
    #[arg(value_name = "SENDER")]
    sender: String,
    /// The sender's id of it, which is its client_message_id.
    #[arg(value_name = "ID")]
    id: String,
    /// The mesh, where senders of this name in several meshes used the id.
    #[arg(long, value_name = "MESH")]
    mesh: Option<String>,
}

#[derive(Debug, clap::Args)]
struct AckArgs {
    #[command(flatten)]
    message: MessageArgs,
    #[command(flatten)]
    why: Why,
}

impl MessageArgs {
    fn path(&self, what: &str) -> String {
        let mesh = self.mesh.as_ref().map(|mesh| format!("?mesh={}", encoded(mesh))).unwrap_or_default();
        format!("/v1/inbox/{}/{}{what}{mesh}", encoded(&self.sender), encoded(&self.id))
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    client::block_on(command(args))
}

async fn command(args: &Args) -> Result<Exit, Stop> {
    let which = &args.which;
    match &args.command {
        Command::List(list) => show::print(which.json, &look(which, list).await?, listed),
        Command::Show(message) => {
            let told = ask(which, Call::get(message.path(""))).await?;
            show::print(which.json, &told, in_full)
        }
        Command::Ack(args) => {
            let body = args.why.beside(json!({}));
            let told = ask(which, Call::post(args.message.path("/ack"), &body)).await?;
            show::print(which.json, &told, acknowledged)
        }
        Command::Tail(tail) => follow(which, tail.after).await,
    }
}

/// What nobody acknowledged; waited for where that is wanted.
async fn look(which: &Which, list: &ListArgs) -> Result<Value, Stop> {
    let until = tokio::time::Instant::now() + Duration::from_secs(list.wait.unwrap_or(0));
    loop {
        let path = format!("/v1/inbox?after={}&limit={}", list.after, list.limit);
        let told = ask(which, Call::get(path)).await?;
        let is_empty = told["messages"].as_array().is_none_or(Vec::is_empty);
        if !is_empty || tokio::time::Instant::now() >= until {
            return Ok(told);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The body of a message, in a line.
fn body(message: &Value) -> String {
    match (&message["body"], message["body_base64"].as_str()) {
        (Value::Null, Some(base64)) => format!("base64:{base64}"),
        (Value::Null, None) if message["moderated"] == true => "(hidden by a moderator)".to_owned(),
        (Value::Null, None) => "-".to_owned(),
        (json, _) => crate::gate::table::plain(&json.to_string()),
    }
}

fn shortened(text: &str) -> String {
    semel_delivery::limits::shorten(text, BODY_SHOWN)
}

fn listed(told: &Value) -> String {
    let messages = told["messages"].as_array().cloned().unwrap_or_default();
    let mut lines = trouble(told);
    if messages.is_empty() {
        return lines + "nothing waits to be acknowledged\n";
    }
    let row = |message: &Value| {
        let mut row: Vec<String> = ["number", "mesh", "line", "sender", "id"]
            .iter()
            .map(|name| show::text(&message[*name]))
            .collect();
        row.push(shortened(&body(message)));
        row
    };
    let heads = ["NUMBER", "MESH", "LINE", "SENDER", "ID", "BODY"];
    lines += &table_of_sentences(&heads, &messages.iter().map(row).collect::<Vec<_>>());
    if let Some(after) = told["next_after"].as_i64() {
        lines += &format!("more: the same with --after {after}\n");
    }
    lines
}

/// Lines that are not live, and what cannot be had.
fn trouble(told: &Value) -> String {
    let mut text = String::new();
    for line in told["lines"].as_array().into_iter().flatten().filter(|line| line["state"] != "live") {
        let [name, mesh, state, why] = ["line", "mesh", "state", "why"].map(|name| show::text(&line[name]));
        text += &format!("{name} of {mesh} is {state}: {why}\n");
    }
    for gap in told["gaps"].as_array().into_iter().flatten() {
        let [line, mesh, from, oldest, reason] =
            ["line", "mesh", "from", "oldest", "reason"].map(|name| show::text(&gap[name]));
        text += &format!(
            "{line} of {mesh} has a gap: nothing between {from} and {oldest} can be had ({reason})\n"
        );
    }
    text
}

fn in_full(told: &Value) -> String {
    let names = [
        "number",
        "id",
        "sender",
        "mesh",
        "line",
        "event_id",
        "broker_message_id",
        "client_tx_id",
        "supersedes",
        "content_type",
        "created_at",
        "received_at",
        "acknowledged_at",
    ];
    let shown = names.iter().filter(|name| !told[**name].is_null());
    let mut text: String = shown.map(|name| format!("{name:<20} {}\n", show::text(&told[*name]))).collect();
    if told["acknowledged_at"].is_null() {
        text += &format!("{:<20} {}\n", "body", body(told));
    }
    text
}

fn acknowledged(told: &Value) -> String {
    let before = if told["duplicate"] == true { ", and was before" } else { "" };
    format!("{} of {} is acknowledged{before}\n", show::text(&told["id"]), show::text(&told["sender"]))
}

/// One message as it comes.
fn came(as_json: bool, message: &Value) -> String {
    if as_json {
        return format!("{message}\n");
    }
    let [number, line, sender, id] =
        ["number", "line", "sender", "id"].map(|name| show::text(&message[name]));
    format!("{number} {line} {sender} {id} {}\n", body(message))
}

/// Prints what there is and what comes. A daemon that goes away is waited for.
async fn follow(which: &Which, mut after: i64) -> Result<Exit, Stop> {
    let caller = Caller::existing(which).await?;
    if !caller.is_daemon() {
        return all_there_is(&caller, which, after).await;
    }
    let mut has_begun = false;
    loop {
        match caller.open(Call::get(format!("/v1/inbox/events?after={after}"))).await {
            Ok(response) if response.status().is_success() => {
                has_begun = true;
                read(response.into_body(), which.json, &mut after).await?;
            }
            Ok(response) => {
                let status = response.status().as_u16();
                let bytes =
                    response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                return Err(refused(status, &serde_json::from_slice(&bytes).unwrap_or_default()));
            }
            Err(stop) if !has_begun => return Err(stop),
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Reads one stream to its end.
async fn read(mut body: Body, as_json: bool, after: &mut i64) -> Result<(), Stop> {
    let mut bytes: Vec<u8> = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend(frame.into_data().unwrap_or_default());
        while let Some(end) = bytes.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = bytes.drain(..end + 2).collect();
            print_event(&String::from_utf8_lossy(&event), as_json, after)?;
        }
    }
    Ok(())
}

fn print_event(event: &str, as_json: bool, after: &mut i64) -> Result<(), Stop> {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let Some(data) = field("data:").and_then(|data| serde_json::from_str::<Value>(data).ok()) else {
        return Ok(());
    };
    let text = match field("event:") {
        None => came(as_json, &data),
        Some("reset") => {
            *after = 0;
            return Ok(());
        }
        Some(kind) if as_json => format!("{}\n", json!({"event": kind, "data": data})),
        Some(_) => trouble(&json!({"gaps": [data]})),
    };
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| output_failed(&error))?;
    if let Some(number) = field("id:").and_then(|id| id.parse().ok()) {
        *after = number;
    }
    Ok(())
}

/// Without a daemon nothing comes.
async fn all_there_is(caller: &Caller, which: &Which, mut after: i64) -> Result<Exit, Stop> {
    loop {
        let (status, told) = caller.call(Call::get(format!("/v1/inbox?after={after}&limit=1000"))).await?;
        if !(200..300).contains(&status) {
            return Err(refused(status, &told));
        }
        for message in told["messages"].as_array().into_iter().flatten() {
            show::print(false, message, |message| came(which.json, message))?;
        }
        match told["next_after"].as_i64() {
            Some(next) => after = next,
            None => break,
        }
    }
    eprintln!("semel: no daemon owns this outbox: nothing more comes until `semel serve outbox` runs");
    Ok(Exit::Success)
}
