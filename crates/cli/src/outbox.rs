//! `semel outbox`: sends by the outbox, looks into it and operates it. Talks to the daemon that owns the file, or opens the
//! file when none runs.

pub(crate) mod answer;
pub(crate) mod api;
mod audit;
pub(crate) mod body;
pub(crate) mod call;
mod credentials;
mod envelope;
pub(crate) mod front;
#[cfg(test)]
mod fuzz;
mod inbox;
pub(crate) mod mesh;
mod openapi;
mod place;
mod send;
pub(crate) mod show;

use std::path::PathBuf;

use base64::Engine as _;
use semel_delivery::url::encoded;
use serde_json::{Value, json};

pub(crate) use self::call::store_path;
use self::call::{Call, Caller};
use crate::admin::Why;
use crate::exit::{Exit, Stop};

/// Send by the outbox, look into it and operate it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Put a request into the outbox; takes curl's -X, -H and -d.
    Send(Box<send::Args>),
    /// List messages.
    List(ListArgs),
    /// Show a message, its attempts and the chain of its requeues.
    Show(ShowArgs),
    /// Put a new message, under a new id, in the place of one that waits or was given up.
    Requeue(RequeueArgs),
    /// Take a message back.
    Abort(AbortArgs),
    /// List lanes with something waiting, paused or blocked, and what their first messages wait for.
    Lanes,
    /// Send no more from a lane.
    Pause(LaneArgs),
    /// Send from a lane again, past a dead head as well.
    Resume(LaneArgs),
    /// Show which origins refuse whose credentials; with --give, give the daemon another credential.
    Credentials(CredentialsArgs),
    /// Try messages again that are held because a credential was refused, under the same credential.
    Release(ReleaseArgs),
    /// Show the outbox's clock, and confirm a jump of it.
    Clock(ClockArgs),
    /// Show what was done by hand, by whom and why, the latest first.
    Audit(AuditArgs),
}

/// Which outbox.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Which {
    /// The outbox's file. [default: as the configuration says, else sqlite:outbox.db]
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    /// The configuration, whose table `outbox` names the file; without one, what SEMEL_CONFIG names, or ./semel.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The token, where the daemon listens on TCP; by default the one that the daemon was started with.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only messages in this state.
    #[arg(long, alias = "status", value_name = "STATE",
        value_parser = ["pending", "inflight", "held", "done", "dead", "aborted"])]
    state: Option<String>,
    /// Only messages of this lane.
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// Only the message with this key, which is its client_message_id.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only messages with numbers below this one.
    #[arg(long, value_name = "ROW")]
    before: Option<i64>,
    /// Only messages with numbers above this one, the oldest first.
    #[arg(long, value_name = "ROW")]
    after: Option<i64>,
    /// The oldest first, instead of the newest.
    #[arg(long)]
    oldest_first: bool,
}

impl ListArgs {
    /// What to ask for, by names that outbox and relay share.
    fn query(&self) -> String {
        let is_oldest = self.oldest_first || self.after.is_some();
        let numbers = [("before", self.before), ("after", self.after)]
            .map(|(name, number)| (name, number.map(|n| n.to_string())));
        let words = [("state", &self.state), ("lane", &self.lane), ("key", &self.key)]
            .map(|(name, word)| (name, word.clone()));
        let mut query = format!("limit={}&order={}", self.limit, if is_oldest { "oldest" } else { "newest" });
        for (name, value) in numbers.into_iter().chain(words) {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", encoded(&value)));
            }
        }
        query
    }
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The message: its client_message_id, or the number of its row.
    #[arg(value_name = "ID", required_unless_present = "named")]
    id: Option<String>,
    /// The same.
    #[arg(long = "id", value_name = "ID", id = "named", conflicts_with = "id")]
    named: Option<String>,
}

impl ShowArgs {
    fn name(&self) -> &str {
        self.id.as_deref().or(self.named.as_deref()).unwrap_or_default()
    }
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct AbortArgs {
    #[command(flatten)]
    which: ShowArgs,
    #[command(flatten)]
    why: Why,
}

/// Which rows of the trail.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Go on before this number.
    #[arg(long, value_name = "NUMBER")]
    before: Option<i64>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

impl AuditArgs {
    /// Where it is asked for.
    pub(crate) fn path(&self) -> String {
        let before = self.before.map(|number| format!("&before={number}")).unwrap_or_default();
        format!("/v1/audit?limit={}{before}", self.limit)
    }
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct RequeueArgs {
    /// The message: its client_message_id, or the number of its row. Its id is never free again.
    #[arg(value_name = "ID", required_unless_present = "named")]
    id: Option<String>,
    /// The same.
    #[arg(long = "id", value_name = "ID", id = "named", conflicts_with = "id")]
    named: Option<String>,
    /// The new message's id.
    #[arg(long, value_name = "ID", conflicts_with = "auto")]
    new_client_id: Option<String>,
    /// Mint an id for the new message, a ULID, or a random UUID where the old one was a UUID; so also without either.
    #[arg(long)]
    auto: bool,
    /// A file with the new message's body.
    #[arg(long, value_name = "FILE")]
    patch_payload: Option<PathBuf>,
    /// Go on although the old message may have been delivered; it is then said to be possibly delivered.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct LaneArgs {
    /// The lane.
    #[arg(value_name = "LANE", required_unless_present = "lane")]
    name: Option<String>,
    /// The same.
    #[arg(long, value_name = "LANE", conflicts_with = "name")]
    lane: Option<String>,
    /// Also a lane in which there never was a message.
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    why: Why,
}

impl LaneArgs {
    fn lane(&self) -> &str {
        self.name.as_deref().or(self.lane.as_deref()).unwrap_or_default()
    }
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct CredentialsArgs {
    /// A file whose first line is the credential, or - for standard input; an empty one takes it back.
    #[arg(long, value_name = "FILE")]
    give: Option<PathBuf>,
    /// For whom. [default: default]
    #[arg(long, value_name = "NAME", requires = "give")]
    principal: Option<String>,
    /// For which origin. [default: the outbox's upstream]
    #[arg(long, value_name = "URL", requires = "give")]
    origin: Option<String>,
    /// The header that carries it; a bare token is sent as Bearer in Authorization.
    #[arg(long, value_name = "NAME", requires = "give", default_value = "Authorization")]
    header: String,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct ReleaseArgs {
    /// Whose messages. [default: default]
    #[arg(value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// Only those to this origin.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    #[command(flatten)]
    why: Why,
}

/// What to do with the clock.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
While a jump ahead is not confirmed, the outbox goes on by the time as it ticks: nothing expires, and what may be too old is \
not sent. Confirm it only when the clock of the machine is right now.")]
struct ClockArgs {
    /// Confirm that the clock is right after its jump.
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// Why; stands among the events and in the audit trail.
    #[arg(long, value_name = "TEXT", requires = "confirm")]
    reason: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let ended = runtime.block_on(command(args));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}

async fn command(args: &Args) -> Result<Exit, Stop> {
    let which = &args.which;
    match &args.command {
        Command::Send(args) => send::run(args, which).await,
        Command::List(args) => {
            let told = ask(which, Call::get(format!("/v1/messages?{}", args.query()))).await?;
            show::print(which.json, &told, show::list)
        }
        Command::Show(args) => {
            let told = ask(which, Call::get(format!("/v1/messages/{}", encoded(args.name())))).await?;
            show::print(which.json, &told, show::message)
        }
        Command::Abort(args) => {
            let path = format!("/v1/messages/{}/abort", encoded(args.which.name()));
            let told = ask(which, Call::post(path, &args.why.beside(json!({})))).await?;
            show::print(which.json, &told, show::line)
        }
        Command::Requeue(args) => {
            let patch = match &args.patch_payload {
                None => Value::Null,
                Some(path) => {
                    let bytes = std::fs::read(path).map_err(|error| {
                        Stop::new(Exit::Io, format!("failed to read {}: {error}", path.display()))
                    })?;
                    json!(base64::engine::general_purpose::STANDARD.encode(bytes))
                }
            };
            let body = json!({
                "new_client_id": args.new_client_id,
                "auto": args.auto,
                "patch_body_base64": patch,
                "force": args.force,
            });
            let body = args.why.beside(body);
            let path = format!(
                "/v1/messages/{}/requeue",
                encoded(args.id.as_deref().or(args.named.as_deref()).unwrap_or_default())
            );
            let told = ask(which, Call::post(path, &body)).await?;
            show::print(which.json, &told, show::requeued)
        }
        Command::Lanes => {
            let told = ask(which, Call::get("/v1/lanes".to_owned())).await?;
            show::print(which.json, &told, show::lanes)
        }
        Command::Pause(args) => set_lane(args, which, "pause").await,
        Command::Resume(args) => set_lane(args, which, "resume").await,
        Command::Credentials(args) => credentials(args, which).await,
        Command::Release(args) => {
            let body = args.why.beside(json!({"principal": args.principal, "origin": args.origin}));
            let told = ask(which, Call::post("/v1/release".to_owned(), &body)).await?;
            show::print(which.json, &told, show::released)
        }
        Command::Clock(args) => {
            let call = match args.confirm {
                true => Call::post("/v1/clock/confirm".to_owned(), &json!({"reason": args.reason})),
                false => Call::get("/v1/clock".to_owned()),
            };
            let told = ask(which, call).await?;
            show::print(which.json, &told, |told| crate::gate::clock_text(told, "outbox"))
        }
        Command::Audit(args) => {
            let told = ask(which, Call::get(args.path())).await?;
            show::print(which.json, &told, audited)
        }
    }
}

/// What was done by hand.
fn audited(told: &Value) -> String {
    let names = ["number", "at", "actor", "action", "subject", "detail", "reason"];
    crate::gate::history::rows(told, "audit", &names)
}

/// Pauses or resumes a lane. A name that no message ever had is most likely misspelt.
async fn set_lane(args: &LaneArgs, which: &Which, what: &str) -> Result<Exit, Stop> {
    let lane = args.lane();
    if !args.new {
        let lanes = ask(which, Call::get("/v1/lanes".to_owned())).await?;
        let lanes: Vec<&str> = lanes["lanes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|lane| lane["lane"].as_str())
            .collect();
        let messages = format!("/v1/messages?limit=1&lane={}", encoded(lane));
        if !lanes.contains(&lane)
            && ask(which, Call::get(messages)).await?["messages"].as_array().is_none_or(Vec::is_empty)
        {
            let known = match lanes.is_empty() {
                true => "no lane has anything waiting".to_owned(),
                false => format!("lanes with something waiting: {}", lanes.join(", ")),
            };
            let what =
                format!("there never was a message in lane {lane:?}; {known}; --new means it all the same");
            return Err(Stop::new(Exit::Refused, what));
        }
    }
    let path = format!("/v1/lanes/{}/{what}", encoded(lane));
    let told = ask(which, Call::post(path, &args.why.beside(json!({})))).await?;
    show::print(which.json, &told, show::lane)
}

/// Shows what is held and for whom credentials were given, or gives one.
async fn credentials(args: &CredentialsArgs, which: &Which) -> Result<Exit, Stop> {
    let caller = Caller::existing(which).await?;
    if !caller.is_daemon() {
        let what = "no daemon owns this outbox, and credentials live in a daemon's memory: start semel serve outbox, \
                    with --credential file:PATH or command:COMMAND";
        return Err(Stop::new(Exit::Refused, what));
    }
    if let Some(file) = &args.give {
        let value = read_credential(file)?;
        let headers = match value.is_empty() {
            true => json!({}),
            false => {
                let given = semel_delivery::credentials::Credential::line(&args.header, &value);
                given.headers.into_iter().map(|(name, value)| (name, json!(value))).collect()
            }
        };
        let body = json!({"principal": args.principal, "origin": args.origin, "headers": headers});
        let body = args.why.beside(body);
        let (status, told) = caller.call(Call::post("/v1/credentials".to_owned(), &body)).await?;
        if !(200..300).contains(&status) {
            return Err(refused(status, &told));
        }
    }
    let (status, told) = caller.call(Call::get("/v1/credentials".to_owned())).await?;
    match status {
        200..=299 => show::print(which.json, &told, show::credentials),
        _ => Err(refused(status, &told)),
    }
}

pub(crate) fn read_credential(file: &std::path::Path) -> Result<String, Stop> {
    let failed =
        |error: std::io::Error| Stop::new(Exit::Io, format!("failed to read {}: {error}", file.display()));
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()).map_err(failed)?,
        Some(_) | None => std::fs::read_to_string(file).map_err(failed)?,
    };
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Asks the outbox; a refusal ends the command.
pub(crate) async fn ask(which: &Which, call: Call) -> Result<Value, Stop> {
    let caller = Caller::existing(which).await?;
    let (status, told) = caller.call(call).await?;
    match status {
        200..=299 => Ok(told),
        _ => Err(refused(status, &told)),
    }
}

/// A refusal of the outbox as the end of a command.
pub(crate) fn refused(status: u16, told: &Value) -> Stop {
    let word = told["conflict"].as_str().or_else(|| told["error"].as_str()).unwrap_or("refused");
    let message = told["message"].as_str().unwrap_or_default();
    let exit = match status {
        503 | 507 => Exit::Io,
        _ => Exit::Refused,
    };
    Stop::new(exit, format!("{word} ({status}): {message}"))
}
