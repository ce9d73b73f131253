//! `semel migrate`: brings the schemas of the stores of gate, outbox and relay to the version of this release, or shows what
//! that would mean.

mod delivery;

use std::io::Write;
use std::path::{Path, PathBuf};

use semel_store::postgres::{Migrations, Options, Plan, PostgresStore};
use semel_store::sqlite::{self, OpenError, SqliteStore};
use serde_json::{Value, json};

use crate::config::{Config, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::serve::{broker, outbox, relay};
use crate::store::secured;
use crate::{output_failed, store};

/// Bring the schemas of the stores to the version of this release.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --store and --part, the gate's store of the configuration is migrated, and where the file has [outbox], [relay] or [broker] \
those stores too. Records are kept. Gates and outboxes may run meanwhile: the release before keeps working on the new schema. Relays may not: \
from schema 1 to 2 of the relay the release before cannot go on, so stop the old relays first. `semel serve` does the same when it starts, unless gate.postgres or relay.postgres says migrate = false; then a role with more rights runs this, \
and the parts connect by a role that was granted semel_service. A store in a file is migrated by the process that owns it.")]
pub(crate) struct Args {
    /// The store: sqlite:PATH or postgres://… [default: the configuration's, else sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Whose store: gate, outbox, relay or broker. [default: all that the configuration speaks of; with --store, gate]
    #[arg(long, value_enum, value_name = "PART")]
    part: Option<Part>,
    /// Show what would be applied, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The configuration; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A part that keeps something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Gate,
    Outbox,
    Relay,
    Broker,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Gate => "gate",
            Part::Outbox => "outbox",
            Part::Relay => "relay",
            Part::Broker => "broker",
        }
    }
}

/// A store to migrate, and whose certificates are believed on the way to it.
struct Named {
    part: Part,
    store: Store,
    ca: Option<PathBuf>,
}

/// What there is to do, and what was done.
struct Report {
    part: Part,
    store: String,
    found: i64,
    known: i64,
    /// Numbers and names of what is missing.
    missing: Vec<(i64, String)>,
    dry_run: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let mut reports = Vec::new();
    for named in named(args)? {
        reports.push(match (&named.store, named.part) {
            (Store::Sqlite(path), Part::Gate) => in_file(path, args.dry_run)?,
            (Store::Sqlite(path), part) => delivery::in_file(part, path, args.dry_run)?,
            (Store::Postgres(url), Part::Gate) => runtime.block_on(in_database(url, &named, args.dry_run))?,
            (Store::Postgres(url), Part::Relay | Part::Broker) => {
                runtime.block_on(delivery::in_database(url, &named, args.dry_run))?
            }
            (Store::Postgres(_), Part::Outbox) => {
                let why = "an outbox keeps its messages in a file of its own, sqlite:PATH";
                return Err(Stop::new(Exit::Usage, why));
            }
        });
    }
    let text = match args.json {
        true => format!("{:#}\n", together(&reports)),
        false => reports.iter().map(Report::text).collect(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

/// The first report, with all of them under `parts`.
fn together(reports: &[Report]) -> Value {
    let mut all = reports.first().map(Report::json).unwrap_or_else(|| json!({}));
    all["parts"] = reports.iter().map(Report::json).collect();
    all
}

fn named(args: &Args) -> Result<Vec<Named>, Stop> {
    let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
    let beside = Path::new("semel.toml");
    let named = args.config.as_deref().or_else(|| variables.config().map(Path::new));
    let path = named.or_else(|| beside.exists().then_some(beside));
    let config = Config::load(path, &variables);
    if let Some(store) = &args.store {
        let store =
            Store::read(store).map_err(|error| Stop::new(Exit::Usage, format!("--store: {error}")))?;
        let part = args.part.unwrap_or(Part::Gate);
        // Only the authorities are taken from the file, and one that is broken does not matter.
        let ca = match part {
            Part::Gate => config.ok().and_then(|config| config.gate.postgres.ca),
            Part::Relay => relay_of(path).ok().and_then(|named| named.ca),
            Part::Broker => broker_of(path).ok().and_then(|named| named.ca),
            Part::Outbox => None,
        };
        return Ok(vec![Named { part, store, ca }]);
    }
    let config = config?;
    let mut all = Vec::new();
    let wants = |part: Part, is_there: bool| args.part.map_or(is_there, |wanted| wanted == part);
    if wants(Part::Gate, true) {
        all.push(Named { part: Part::Gate, store: config.store, ca: config.gate.postgres.ca });
    }
    if wants(Part::Outbox, config.speaks_of.outbox) {
        let args = outbox::Args { config: path.map(Path::to_path_buf), ..outbox::Args::default() };
        let store = outbox::config::Config::load(&args)?.store.display().to_string();
        all.push(Named { part: Part::Outbox, store: Store::Sqlite(store), ca: None });
    }
    if wants(Part::Relay, config.speaks_of.relay) {
        all.push(relay_of(path)?);
    }
    if wants(Part::Broker, config.speaks_of.broker) {
        all.push(broker_of(path)?);
    }
    Ok(all)
}

fn relay_of(path: Option<&Path>) -> Result<Named, Stop> {
    let relay = relay::config::Config::load(&relay::config::Flags { config: path, ..Default::default() })?;
    Ok(Named { part: Part::Relay, store: relay.store, ca: relay.postgres.ca })
}

fn broker_of(path: Option<&Path>) -> Result<Named, Stop> {
    let args = broker::Args { config: path.map(Path::to_path_buf), ..broker::Args::default() };
    let broker = broker::config::Config::load(&args)?;
    Ok(Named { part: Part::Broker, store: broker.store, ca: broker.postgres.ca })
}

fn in_file(path: &str, dry_run: bool) -> Result<Report, Stop> {
    let failed = |error: OpenError| {
        let more = match &error {
            OpenError::Locked { .. } => "; it migrates the file itself when it starts: restart it",
            _ => "",
        };
        Stop::new(Exit::Io, format!("failed to open the store sqlite:{path}: {error}{more}"))
    };
    if let Some(stop) = store::of_somebody_else(Path::new(path)) {
        return Err(stop);
    }
    let version = sqlite::version(Path::new(path)).map_err(failed)?;
    if !dry_run {
        drop(SqliteStore::open(Path::new(path)).map_err(failed)?);
    }
    let missing = version.missing.iter().map(|(number, name)| (*number, (*name).to_owned()));
    let store = format!("sqlite:{path}");
    let (found, known) = (version.found, version.known);
    Ok(Report { part: Part::Gate, store, found, known, missing: missing.collect(), dry_run })
}

async fn in_database(url: &str, named: &Named, dry_run: bool) -> Result<Report, Stop> {
    let failed = |error: String| {
        Stop::new(Exit::Unreachable, format!("failed to open the store {}: {error}", named.store))
    };
    let (url, tls) = secured(url, named.ca.as_deref()).map_err(failed)?;
    let planned = match &tls {
        Some(tls) => PostgresStore::migration_plan_tls(&url, tls.clone()).await,
        None => PostgresStore::migration_plan(&url).await,
    };
    let Plan { found, known, missing } = planned.map_err(|error| failed(error.to_string()))?;
    if !dry_run && !missing.is_empty() {
        let options = Options { connections: 1, migrations: Migrations::Apply, ..Options::default() };
        let opened = match tls {
            Some(tls) => PostgresStore::connect_tls(&url, options, tls).await,
            None => PostgresStore::connect(&url, options).await,
        };
        drop(opened.map_err(|error| failed(error.to_string()))?);
    }
    let missing = missing.iter().map(|step| (i64::from(step.number), step.name.to_owned())).collect();
    let (found, known) = (i64::from(found), i64::from(known));
    Ok(Report { part: Part::Gate, store: named.store.to_string(), found, known, missing, dry_run })
}

impl Report {
    fn text(&self) -> String {
        let Self { part, store, found, known, missing, dry_run } = self;
        let of = match part {
            Part::Gate => String::new(),
            part => format!("{}: ", part.name()),
        };
        if missing.is_empty() {
            return format!("{of}{store} is at version {found}; nothing to do\n");
        }
        let verb = if *dry_run { "would apply" } else { "applied" };
        let mut text = format!("{of}{store} was at version {found}, this release knows {known}\n");
        for (number, name) in missing {
            text.push_str(&format!("  {verb} {number:04} {name}\n"));
        }
        text
    }

    fn json(&self) -> Value {
        let missing: Vec<Value> =
            self.missing.iter().map(|(number, name)| json!({"number": number, "name": name})).collect();
        let applied = if self.dry_run { json!([]) } else { json!(missing) };
        json!({
            "part": self.part.name(), "store": self.store, "found": self.found, "known": self.known, "missing": missing,
            "applied": applied, "dry_run": self.dry_run,
        })
    }
}
