//! `semel broker`: makes meshes, members, topics, subscriptions and webhooks, publishes, and looks after what a broker keeps.

mod way;

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use semel_contract::hex::hex;
use semel_delivery::url::encoded;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::admin::Why;
use crate::client;
use crate::exit::{Exit, Stop};
use crate::gate::clock_text;
use crate::outbox::AuditArgs;
use crate::output_failed;

/// Events of one page of a history.
const PAGE: usize = 200;
/// How often `tail` looks for more.
const TAIL_PAUSE: Duration = Duration::from_millis(500);

/// Make meshes and look after a broker.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The broker is asked at its admin address: --admin, else what FILE.lock beside its store says, else as the configuration says. \
With a store in a file that no process owns, the file is opened.

A mesh from nothing:
  semel broker meshes add team
  semel broker members add alice --mesh team --role owner        (prints her token, once)
  semel broker topics add news --mesh team
  semel broker subscriptions add alice --mesh team --topic news
Beside its old tokens:       semel broker members add alice --mesh team
Without its old tokens:      semel broker members add alice --mesh team --token-sha256 HEX    (of those that stay)
Is anything lost?            semel broker orphans                (exits 1 where something is)
After a restored backup:     semel broker restored
After a jump of the clock:   semel broker clock --confirm --reason TEXT")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    at: At,
}

/// Which broker.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The admin address, such as http://127.0.0.1:7431.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// The file of the token that the admin address wants. [default: broker.admin_token_file of the configuration]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Where the broker keeps its messages. [default: as the configuration says]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The configuration.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Closed groups of members.
    #[command(subcommand)]
    Meshes(Meshes),
    /// Who belongs to a mesh, and by which tokens.
    #[command(subcommand)]
    Members(Members),
    /// The topics of a mesh.
    #[command(subcommand)]
    Topics(Topics),
    /// Who gets what is published to a topic.
    #[command(subcommand)]
    Subscriptions(Subscriptions),
    /// Addresses to which a topic is sent.
    #[command(subcommand)]
    Webhooks(Webhooks),
    /// Publish a message as a member, with its token.
    Publish(Publish),
    /// Print what a topic has, oldest first, one JSON object on each line.
    History(History),
    /// Print what a topic has, and what comes, until it is stopped.
    Tail(History),
    /// Look whether any single row is missing. Exits 1 where one is.
    Orphans(Why),
    /// Remove messages and ids whose time is over, now.
    Sweep(Why),
    /// Take the body of a message out of the history; its id stays used.
    Moderate {
        /// The message: its client_message_id.
        id: String,
        #[command(flatten)]
        of: In,
        /// Why.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Show the store's clock, and confirm a jump of it.
    Clock(ClockArgs),
    /// Write search, audit and telemetry again from what is kept.
    Rebuild(Why),
    /// Say that the store was restored from a backup: a new epoch begins, and readers are told of the gap.
    Restored(Why),
    /// Show what operators and owners did by hand, and why, the latest first.
    Audit(AuditArgs),
}

/// What to do with the clock.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
While a jump ahead is not confirmed, the broker goes on by the time as it ticks, and nothing expires or is swept. Confirm it \
only when the clock of the machine (or of PostgreSQL's) is right now.")]
struct ClockArgs {
    /// Confirm that the clock is right after its jump.
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// Why; stands in the audit log.
    #[arg(long, value_name = "TEXT", requires = "confirm")]
    reason: Option<String>,
}

/// In which mesh.
#[derive(Debug, clap::Args)]
struct In {
    /// The mesh.
    #[arg(long, value_name = "MESH")]
    mesh: String,
}

#[derive(Debug, clap::Subcommand)]
enum Meshes {
    /// Make a mesh, or change its settings.
    Add {
        /// Its name.
        mesh: String,
        /// Bytes that its messages may take.
        #[arg(long, value_name = "SIZE", value_parser = crate::config::bytes)]
        max_bytes: Option<u64>,
        /// Keep no search index of its messages.
        #[arg(long)]
        no_search: bool,
        #[command(flatten)]
        why: Why,
    },
    /// List meshes.
    List,
    /// Remove a mesh with everything in it.
    Remove {
        /// Its name.
        mesh: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Members {
    /// Make a member with a new token, which is printed once. One that is there gets it beside those that it has.
    Add {
        /// Its name.
        member: String,
        #[command(flatten)]
        of: In,
        /// What it may do: publish and receive, or manage the mesh too. [default: what it is; of a new one, member]
        #[arg(long, value_name = "ROLE", value_parser = ["owner", "member"])]
        role: Option<String>,
        /// The SHA-256 of a token, in hex: those that are named stay live beside the new one, and no others.
        #[arg(long, value_name = "HEX")]
        token_sha256: Vec<String>,
        /// Make no new token: only those that are named are live, and without any none is.
        #[arg(long)]
        no_token: bool,
        #[command(flatten)]
        why: Why,
    },
    /// List members.
    List(In),
    /// Remove a member; its open streams end within a second.
    Remove {
        /// Its name.
        member: String,
        #[command(flatten)]
        of: In,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Topics {
    /// Make a topic, or change who may publish to it.
    Add {
        /// Its name.
        topic: String,
        #[command(flatten)]
        of: In,
        /// Who may publish to it.
        #[arg(long, value_name = "WHO", default_value = "subscribers", value_parser = ["subscribers", "members"])]
        publish: String,
        #[command(flatten)]
        why: Why,
    },
    /// List topics.
    List(In),
    /// Remove a topic.
    Remove {
        /// Its name.
        topic: String,
        #[command(flatten)]
        of: In,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Subscriptions {
    /// Subscribe a member, from the next message on.
    Add {
        /// The member.
        member: String,
        #[command(flatten)]
        of: In,
        /// The topic.
        #[arg(long, value_name = "TOPIC")]
        topic: String,
        #[command(flatten)]
        why: Why,
    },
    /// List who is subscribed to a topic.
    List {
        #[command(flatten)]
        of: In,
        /// The topic.
        #[arg(long, value_name = "TOPIC")]
        topic: String,
    },
    /// End a subscription, before the next message.
    Remove {
        /// The member.
        member: String,
        #[command(flatten)]
        of: In,
        /// The topic.
        #[arg(long, value_name = "TOPIC")]
        topic: String,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Webhooks {
    /// Make a webhook, or change it.
    Add {
        /// Its name.
        name: String,
        #[command(flatten)]
        of: In,
        /// Where messages are sent.
        #[arg(long, value_name = "URL")]
        url: String,
        /// The topic whose messages are sent.
        #[arg(long, value_name = "TOPIC")]
        topic: String,
        /// A file of the secrets that sign them, whsec_…, one on each line; two are live during a rotation.
        #[arg(long, value_name = "FILE")]
        secrets_file: PathBuf,
        /// A message that cannot be delivered holds the others up no longer than its own tries.
        #[arg(long)]
        unordered: bool,
        #[command(flatten)]
        why: Why,
    },
    /// List webhooks, with what waits and what was given up.
    List(In),
    /// Remove a webhook.
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        of: In,
        #[command(flatten)]
        why: Why,
    },
    /// Send what was given up again.
    Requeue {
        /// Its name.
        name: String,
        #[command(flatten)]
        of: In,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, clap::Args)]
struct Publish {
    #[command(flatten)]
    of: In,
    /// The topic.
    #[arg(long, value_name = "TOPIC", conflicts_with = "to", required_unless_present = "to")]
    topic: Option<String>,
    /// The one member.
    #[arg(long, value_name = "MEMBER")]
    to: Option<String>,
    /// The body as JSON, or - for standard input.
    #[arg(value_name = "JSON")]
    body: String,
    /// The message's id; the same id is one message. [default: a new one]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Where members connect. [default: as the configuration says]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The file of the member's token.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

#[derive(Debug, clap::Args)]
struct History {
    #[command(flatten)]
    of: In,
    /// The topic.
    #[arg(long, value_name = "TOPIC")]
    topic: String,
    /// Only what comes after this event; 0 is from the first one kept.
    #[arg(long, value_name = "EVENT_ID", default_value = "0")]
    after: String,
    /// At most so many.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    client::block_on(command(args))
}

async fn command(args: &Args) -> Result<Exit, Stop> {
    let at = &args.at;
    match &args.command {
        Command::Meshes(command) => meshes(command, at).await,
        Command::Members(command) => members(command, at).await,
        Command::Topics(command) => match command {
            Topics::Add { topic, of, publish, why } => {
                let body = why.beside(json!({"publish": publish}));
                put(at, &path(of, &["topics", topic]), body).await
            }
            Topics::List(of) => list(at, &path(of, &["topics"]), "topics").await,
            Topics::Remove { topic, of, why } => remove(at, &path(of, &["topics", topic]), why).await,
        },
        Command::Subscriptions(command) => match command {
            Subscriptions::Add { member, of, topic, why } => {
                let path = path(of, &["topics", topic, "subscriptions", member]);
                put(at, &path, why.beside(json!({}))).await
            }
            Subscriptions::List { of, topic } => {
                list(at, &path(of, &["topics", topic, "subscriptions"]), "subscriptions").await
            }
            Subscriptions::Remove { member, of, topic, why } => {
                remove(at, &path(of, &["topics", topic, "subscriptions", member]), why).await
            }
        },
        Command::Webhooks(command) => webhooks(command, at).await,
        Command::Publish(args) => publish(args, at).await,
        Command::History(args) => history(args, at, false).await,
        Command::Tail(args) => history(args, at, true).await,
        Command::Orphans(why) => orphans(at, why).await,
        Command::Sweep(why) => post(at, "/v1/sweep", why).await,
        Command::Moderate { id, of, reason } => {
            moderate(at, &path(of, &["messages", id, "moderation"]), reason).await
        }
        Command::Clock(args) => clock(args, at).await,
        Command::Rebuild(why) => post(at, "/v1/rebuild", why).await,
        Command::Restored(why) => post(at, "/v1/restored", why).await,
        Command::Audit(args) => audit(args, at).await,
    }
}

async fn meshes(command: &Meshes, at: &At) -> Result<Exit, Stop> {
    match command {
        Meshes::Add { mesh, max_bytes, no_search, why } => {
            let mut body = json!({"search": !no_search});
            if let Some(bytes) = max_bytes {
                body["limits"] = json!({"bytes": bytes});
            }
            put(at, &format!("/v1/meshes/{}", encoded(mesh)), why.beside(body)).await
        }
        Meshes::List => list(at, "/v1/meshes", "meshes").await,
        Meshes::Remove { mesh, yes, why } => {
            if !yes && !is_agreed(&format!("Remove the mesh {mesh} with all its messages?"))? {
                return Err(Stop::new(Exit::Refused, "nothing was removed"));
            }
            remove(at, &format!("/v1/meshes/{}", encoded(mesh)), why).await
        }
    }
}

/// Asks on the terminal. Without one, `--yes` says it.
fn is_agreed(question: &str) -> Result<bool, Stop> {
    if !std::io::stdin().is_terminal() {
        return Err(Stop::new(Exit::Usage, "say --yes: there is no terminal to ask on"));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| Stop::new(Exit::Io, error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn members(command: &Members, at: &At) -> Result<Exit, Stop> {
    match command {
        Members::Add { member, of, role, token_sha256, no_token, why } => {
            let token = (!no_token).then(new_token).transpose()?;
            let own = token.iter().map(|token| hex(&Sha256::digest(token)));
            let hashes: Vec<String> = own.chain(token_sha256.iter().cloned()).collect();
            let names_all = *no_token || !token_sha256.is_empty();
            let mut body = why.beside(if names_all {
                json!({"token_sha256": hashes})
            } else {
                json!({"add_token_sha256": hashes})
            });
            if let Some(role) = role {
                body["role"] = json!(role);
            }
            let mut answer = way::find(at).await?.put(&path(of, &["members", member]), body).await?;
            match (at.json, token) {
                (true, token) => {
                    answer["token"] = json!(token);
                    print(&format!("{answer:#}\n"))
                }
                (false, Some(token)) => print(&format!("{token}\n")),
                (false, None) => print(&plain(&answer)),
            }
        }
        Members::List(of) => list(at, &path(of, &["members"]), "members").await,
        Members::Remove { member, of, why } => remove(at, &path(of, &["members", member]), why).await,
    }
}

/// A token of 256 random bits. The broker is sent its hash alone.
pub(crate) fn new_token() -> Result<String, Stop> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to get random numbers: {error}")))?;
    Ok(format!("smb_{}", hex(&bytes)))
}

async fn webhooks(command: &Webhooks, at: &At) -> Result<Exit, Stop> {
    match command {
        Webhooks::Add { name, of, url, topic, secrets_file, unordered, why } => {
            let text = std::fs::read_to_string(secrets_file)
                .map_err(|error| Stop::new(Exit::Io, format!("{}: {error}", secrets_file.display())))?;
            let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let body = json!({"url": url, "topic": topic, "secrets": secrets, "ordered": !unordered});
            put(at, &path(of, &["webhooks", name]), why.beside(body)).await
        }
        Webhooks::List(of) => list(at, &path(of, &["webhooks"]), "webhooks").await,
        Webhooks::Remove { name, of, why } => remove(at, &path(of, &["webhooks", name]), why).await,
        Webhooks::Requeue { name, of, why } => post(at, &path(of, &["webhooks", name, "requeue"]), why).await,
    }
}

/// A path below a mesh.
fn path(of: &In, below: &[&str]) -> String {
    let below: String = below.iter().map(|part| format!("/{}", encoded(part))).collect();
    format!("/v1/meshes/{}{below}", encoded(&of.mesh))
}

async fn put(at: &At, path: &str, body: Value) -> Result<Exit, Stop> {
    say(at, &way::find(at).await?.put(path, body).await?)
}

async fn post(at: &At, path: &str, why: &Why) -> Result<Exit, Stop> {
    say(at, &way::find(at).await?.post(path, why.beside(json!({}))).await?)
}

async fn moderate(at: &At, path: &str, reason: &str) -> Result<Exit, Stop> {
    say(at, &way::find(at).await?.post(path, json!({"reason": reason})).await?)
}

async fn remove(at: &At, path: &str, why: &Why) -> Result<Exit, Stop> {
    way::find(at).await?.delete(&why.below(path)).await?;
    say(at, &json!({"removed": true}))
}

/// What was done by hand.
async fn audit(args: &AuditArgs, at: &At) -> Result<Exit, Stop> {
    let found = way::find(at).await?.get(&args.path()).await?;
    let names = ["number", "at", "actor", "action", "mesh", "subject", "detail", "reason"];
    match at.json {
        true => print(&format!("{found:#}\n")),
        false => print(&crate::gate::history::rows(&found, "audit", &names)),
    }
}

async fn list(at: &At, path: &str, name: &str) -> Result<Exit, Stop> {
    let found = way::find(at).await?.get(path).await?;
    if at.json {
        return print(&format!("{found:#}\n"));
    }
    let rows = found[name].as_array().cloned().unwrap_or_default();
    print(&rows.iter().map(plain).collect::<String>())
}

async fn clock(args: &ClockArgs, at: &At) -> Result<Exit, Stop> {
    let broker = way::find(at).await?;
    let told = match args.confirm {
        true => broker.post("/v1/clock/confirm", json!({"reason": args.reason})).await?,
        false => broker.get("/v1/clock").await?,
    };
    print(&if at.json { format!("{told:#}\n") } else { clock_text(&told, "broker") })
}

async fn orphans(at: &At, why: &Why) -> Result<Exit, Stop> {
    let found = way::find(at).await?.post("/v1/orphans", why.beside(json!({}))).await?;
    say(at, &found)?;
    Ok(if found["orphans"].as_u64() == Some(0) { Exit::Success } else { Exit::Found })
}

async fn publish(args: &Publish, at: &At) -> Result<Exit, Stop> {
    let text = match args.body.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| Stop::new(Exit::Io, error.to_string()))?;
            text
        }
        text => text.to_owned(),
    };
    let body: Value = serde_json::from_str(&text).map_err(|error| {
        Stop::new(Exit::Usage, format!("the body is not JSON: {error}; quote a text: '\"hello\"'"))
    })?;
    let to = match (&args.topic, &args.to) {
        (Some(topic), _) => json!({"topic": topic}),
        (None, Some(member)) => json!({"member": member}),
        (None, None) => return Err(Stop::new(Exit::Usage, "say --topic TOPIC or --to MEMBER")),
    };
    let id = args.id.clone().map_or_else(client::uuid, Ok)?;
    let message = json!({"to": to, "body": body, "client_message_id": id});
    let broker = way::of_member(args.url.as_deref(), &args.token_file, at)?;
    say(at, &broker.post(&path(&args.of, &["messages"]), message).await?)
}

async fn history(args: &History, at: &At, follows: bool) -> Result<Exit, Stop> {
    let broker = way::find(at).await?;
    let path = path(&args.of, &["topics", &args.topic, "history"]);
    let (mut after, mut left) = (args.after.clone(), args.limit.unwrap_or(usize::MAX));
    while left > 0 {
        let found = broker.get(&format!("{path}?after={}&limit={}", encoded(&after), left.min(PAGE))).await?;
        let messages = found["messages"].as_array().cloned().unwrap_or_default();
        let lines: String = messages.iter().map(|message| format!("{message}\n")).collect();
        print(&lines)?;
        let _ = std::io::stdout().flush();
        left -= messages.len().min(left);
        if let Some(last) = messages.last().and_then(|message| message["id"].as_str()) {
            after = last.to_owned();
        }
        match (follows, found["next_after"].is_null() || messages.is_empty()) {
            (_, false) => {}
            (true, true) => tokio::time::sleep(TAIL_PAUSE).await,
            (false, true) => break,
        }
    }
    Ok(Exit::Success)
}

fn say(at: &At, value: &Value) -> Result<Exit, Stop> {
    print(&if at.json { format!("{value:#}\n") } else { plain(value) })
}

/// An object on one line. Control characters of others' texts do nothing here.
fn plain(value: &Value) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        other => other.to_string(),
    };
    let members = value.as_object().into_iter().flatten();
    let words: Vec<String> = members.map(|(name, value)| format!("{name} {}", shown(value))).collect();
    format!("{}\n", words.join("  "))
}

fn print(text: &str) -> Result<Exit, Stop> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}
