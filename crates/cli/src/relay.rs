//! `semel relay`: looks into a relay, resolves what is in doubt, releases and requeues what is held.

mod show;
mod way;

use std::path::PathBuf;

use semel_delivery::url::encoded;
use serde_json::{Value, json};

use crate::admin::Why;
use crate::exit::{Exit, Stop};
use crate::gate::clock_text;
use crate::outbox::read_credential;

/// Look into a relay and operate it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where the changes are: with a store in a file, the process that owns the file is asked, and its admin address is found in \
FILE.lock; where no process owns it, the file is opened. With PostgreSQL the database is asked. --admin asks the process at \
that address instead. The configuration names the store and the targets; `resolve` needs the target's.

A lane is in doubt, what now?   semel relay list --state in-doubt
                                semel relay show ID
                                semel relay resolve ID --applied | --not-applied
Dead letters?                   semel relay list --state dead
                                semel relay requeue ID          (not while the lane is in doubt)
Parked after a 401?             semel relay credentials --target NAME --principal NAME --give FILE
                                semel relay release --target NAME --principal NAME
Who changed what?               semel relay audit > trail.jsonl

Exits 5 where there is no such lane or target, or where it is refused.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List lanes.
    List(ListArgs),
    /// Show everything about a lane: what waits, what is frozen, what is held, the evidence.
    Show(LaneArgs),
    /// Say what became of a batch that is in doubt.
    Resolve(ResolveArgs),
    /// Release what a principal has parked since its credential was refused.
    Release(ReleaseArgs),
    /// Try the dead letters of a lane again, or open a lane that is blocked.
    Requeue(RequeueArgs),
    /// Give a principal's credential for a target: it is kept sealed, for every replica and every start.
    Credentials(CredentialsArgs),
    /// Show the store's clock, and confirm a jump of it.
    Clock(ClockArgs),
    /// Print the audit trail, oldest first, one JSON object on each line.
    Audit(AuditArgs),
}

/// Which relay.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The admin address of the relay, such as http://127.0.0.1:7421; without it, the store is opened or its owner asked.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// The file of the token that the admin address wants.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where the relay keeps its changes. [default: as the configuration says]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The configuration.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Who asks, for the audit trail. [default: the user's name]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only lanes that are open, blocked or in-doubt, or that have dead, parked or pending entries.
    #[arg(long, alias = "status", value_name = "STATE",
        value_parser = ["open", "blocked", "in-doubt", "dead", "parked", "pending"])]
    state: Option<String>,
    /// Only lanes of this target.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Only lanes of this name.
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// Only lanes with a change of the request that had this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only lanes with numbers below this one.
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// Only lanes with numbers above this one, the oldest first.
    #[arg(long, value_name = "ID")]
    after: Option<i64>,
    /// The oldest first, instead of the newest.
    #[arg(long)]
    oldest_first: bool,
}

#[derive(Debug, clap::Args)]
struct LaneArgs {
    /// The lane's number, as `list` shows it.
    #[arg(value_name = "ID")]
    id: i64,
}

#[derive(Debug, clap::Args)]
struct RequeueArgs {
    /// The lane's number, as `list` shows it.
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
struct ResolveArgs {
    /// The lane's number, as `list` shows it.
    #[arg(value_name = "ID")]
    id: i64,
    /// The upstream has applied it.
    #[arg(long, conflicts_with = "not_applied", required_unless_present = "not_applied")]
    applied: bool,
    /// It has not, and never will.
    #[arg(long)]
    not_applied: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// The target.
    #[arg(long, value_name = "NAME")]
    target: String,
    /// The principal.
    #[arg(long, value_name = "NAME")]
    principal: String,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, clap::Args)]
struct CredentialsArgs {
    /// A file whose first line is the credential, or - for standard input; an empty one takes it back.
    #[arg(long, value_name = "FILE")]
    give: PathBuf,
    /// The target.
    #[arg(long, value_name = "NAME")]
    target: String,
    /// The principal.
    #[arg(long, value_name = "NAME")]
    principal: String,
    /// The header that carries it; a bare token is sent as Bearer in Authorization.
    #[arg(long, value_name = "NAME", default_value = "Authorization")]
    header: String,
    #[command(flatten)]
    why: Why,
}

/// What to do with the clock.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
While a jump ahead is not confirmed, the relay goes on by the time as it ticks, and nothing is swept. Confirm it only when the \
clock of the machine (or of PostgreSQL's) is right now.")]
struct ClockArgs {
    /// Confirm that the clock is right after its jump.
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT", requires = "confirm")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct AuditArgs {
    /// Only rows after this one.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    runtime.block_on(command(args))
}

async fn command(args: &Args) -> Result<Exit, Stop> {
    let at = &args.at;
    match &args.command {
        Command::List(args) => list(args, at).await,
        Command::Show(args) => {
            let found = way::find(at).await?.get(&format!("/v1/relay/lanes/{}", args.id)).await?;
            show::print(&if at.json { show::pretty(&found) } else { show::lane(&found) })
        }
        Command::Resolve(args) => {
            let outcome = if args.applied { "applied" } else { "not-applied" };
            let path = format!("/v1/relay/lanes/{}/resolve", args.id);
            done(at, &path, args.why.beside(json!({"outcome": outcome})), "resolved").await
        }
        Command::Release(args) => {
            let whose = json!({"target": args.target, "principal": args.principal});
            done(at, "/v1/relay/release", args.why.beside(whose), "released").await
        }
        Command::Requeue(args) => {
            let path = format!("/v1/relay/lanes/{}/requeue", args.id);
            done(at, &path, args.why.beside(json!({})), "requeued").await
        }
        Command::Credentials(args) => {
            let value = read_credential(&args.give)?;
            let given = json!({
                "target": args.target, "principal": args.principal, "header": args.header, "value": value,
                "take_back": value.is_empty(),
            });
            done(at, "/v1/relay/credentials", args.why.beside(given), "released").await
        }
        Command::Clock(args) => {
            let relay = way::find(at).await?;
            let told = match args.confirm {
                true => relay.post("/v1/relay/clock/confirm", json!({"reason": args.reason})).await?,
                false => relay.get("/v1/relay/clock").await?,
            };
            show::print(&if at.json { show::pretty(&told) } else { clock_text(&told, "relay") })
        }
        Command::Audit(args) => audit(args, at).await,
    }
}

async fn list(args: &ListArgs, at: &At) -> Result<Exit, Stop> {
    let is_oldest = args.oldest_first || args.after.is_some();
    let order = if is_oldest { "oldest" } else { "newest" };
    let mut path = format!("/v1/relay/lanes?limit={}&order={order}", args.limit);
    for (name, number) in [("before", args.before), ("after", args.after)] {
        path += &number.map(|number| format!("&{name}={number}")).unwrap_or_default();
    }
    let words = [("state", &args.state), ("target", &args.target), ("lane", &args.lane), ("key", &args.key)];
    for (name, word) in words {
        path += &word.as_deref().map(|word| format!("&{name}={}", encoded(word))).unwrap_or_default();
    }
    let found = way::find(at).await?.get(&path).await?;
    show::print(&if at.json { show::pretty(&found) } else { show::table(&found) })
}

async fn done(at: &At, path: &str, body: Value, what: &str) -> Result<Exit, Stop> {
    let answer = way::find(at).await?.post(path, body).await?;
    let text = match at.json {
        true => show::pretty(&answer),
        false => format!("{what}: {}\n", show::plain(&answer[what])),
    };
    show::print(&text)
}

async fn audit(args: &AuditArgs, at: &At) -> Result<Exit, Stop> {
    let relay = way::find(at).await?;
    let mut after = args.after;
    loop {
        let found = relay.get(&format!("/v1/relay/audit?after={after}&limit=1000")).await?;
        let rows = found["rows"].as_array().cloned().unwrap_or_default();
        let Some(last) = rows.last() else { return Ok(Exit::Success) };
        after = last["id"].as_i64().unwrap_or(i64::MAX);
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        show::print(&lines)?;
    }
}
