//! `semel relay`: looks into a relay, resolves what is in doubt, releases and requeues what is held.

mod show;
mod way;

use std::path::PathBuf;

use serde_json::{Value, json};

use self::way::Way;
use crate::exit::{Exit, Stop};

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
Parked after a 401?             semel relay release --target NAME --principal NAME
Who changed what?               semel relay audit > trail.jsonl

Exits 5 where there is no such lane or target, or where it is refused.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
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
    Requeue(LaneArgs),
    /// Print the audit trail, oldest first, one JSON object on each line.
    Audit(AuditArgs),
}

/// Which relay.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The admin address of the relay, such as http://127.0.0.1:7421; without it, the store is opened or its owner asked.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// The file of the token that the admin address wants.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where the relay keeps its changes. [default: as the configuration says]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Who asks, for the audit trail. [default: the user's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only lanes that are open, blocked or in-doubt, or that have dead, parked or pending entries.
    #[arg(long, value_name = "STATE", value_parser = ["open", "blocked", "in-doubt", "dead", "parked", "pending"])]
    state: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only lanes with numbers above this one.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    #[command(flatten)]
    at: At,
}

#[derive(Debug, clap::Args)]
struct LaneArgs {
    /// The lane's number, as `list` shows it.
    #[arg(value_name = "ID")]
    id: i64,
    #[command(flatten)]
    at: At,
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
    at: At,
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
    at: At,
}

#[derive(Debug, clap::Args)]
struct AuditArgs {
    /// Only rows after this one.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    #[command(flatten)]
    at: At,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    runtime.block_on(async {
        match &args.command {
            Command::List(args) => list(args).await,
            Command::Show(args) => {
                let found = Way::find(&args.at).await?.get(&format!("/v1/relay/lanes/{}", args.id)).await?;
                show::print(&if args.at.json { show::pretty(&found) } else { show::lane(&found) })
            }
            Command::Resolve(args) => {
                let outcome = if args.applied { "applied" } else { "not-applied" };
                let path = format!("/v1/relay/lanes/{}/resolve", args.id);
                done(&args.at, &path, json!({"outcome": outcome}), "resolved").await
            }
            Command::Release(args) => {
                let whose = json!({"target": args.target, "principal": args.principal});
                done(&args.at, "/v1/relay/release", whose, "released").await
            }
            Command::Requeue(args) => {
                done(&args.at, &format!("/v1/relay/lanes/{}/requeue", args.id), json!({}), "requeued").await
            }
            Command::Audit(args) => audit(args).await,
        }
    })
}

async fn list(args: &ListArgs) -> Result<Exit, Stop> {
    let state = args
        .state
        .as_ref()
        .map_or_else(String::new, |state| format!("&state={}", semel_delivery::url::encoded(state)));
    let path = format!("/v1/relay/lanes?after={}&limit={}{state}", args.after, args.limit);
    let found = Way::find(&args.at).await?.get(&path).await?;
    show::print(&if args.at.json { show::pretty(&found) } else { show::table(&found) })
}

async fn done(at: &At, path: &str, body: Value, what: &str) -> Result<Exit, Stop> {
    let answer = Way::find(at).await?.post(path, &body).await?;
    let text = match at.json {
        true => show::pretty(&answer),
        false => format!("{what}: {}\n", show::plain(&answer[what])),
    };
    show::print(&text)
}

async fn audit(args: &AuditArgs) -> Result<Exit, Stop> {
    let way = Way::find(&args.at).await?;
    let mut after = args.after;
    loop {
        let found = way.get(&format!("/v1/relay/audit?after={after}&limit=1000")).await?;
        let rows = found["rows"].as_array().cloned().unwrap_or_default();
        let Some(last) = rows.last() else { return Ok(Exit::Success) };
        after = last["id"].as_i64().unwrap_or(i64::MAX);
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        show::print(&lines)?;
    }
}
