//! `semel migrate`: brings the schema of a store to the version of this release, or shows what that would mean.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_store::clock::SystemClock;
use semel_store::postgres::{Migrations, Options, Plan, PostgresStore};
use semel_store::sqlite::{self, OpenError, SqliteStore};
use serde_json::{Value, json};

use crate::config::{Config, Setting, Store, Variables};
use crate::exit::{Exit, Stop};
use crate::{output_failed, store};

/// Bring the schema of a store to the version of this release.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Records are kept, and the release before keeps working on the new schema: gates may run meanwhile. `semel serve` does the \
same when it starts, unless gate.postgres says migrate = false; then a role with more rights runs this. A store in a file \
is migrated by the process that owns it.")]
pub(crate) struct Args {
    /// The store: sqlite:PATH or postgres://… [default: the configuration's, else sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
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

/// What there is to do, and what was done.
struct Report {
    store: String,
    found: i64,
    known: i64,
    /// Numbers and names of what is missing.
    missing: Vec<(i64, String)>,
    dry_run: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let named = named(args)?;
    let report = match &named {
        Store::Sqlite(path) => in_file(path, args.dry_run)?,
        Store::Postgres(url) => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
            runtime.block_on(in_database(url, &named, args.dry_run))?
        }
    };
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.text() };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

fn named(args: &Args) -> Result<Store, Stop> {
    if let Some(store) = &args.store {
        return Store::read(store).map_err(|error| Stop::new(Exit::Usage, format!("--store: {error}")));
    }
    let variables = Variables::read().map_err(|message| Stop::new(Exit::Config, message))?;
    let beside = Path::new("semel.toml");
    let named = args.config.as_deref().or_else(|| variables.config().map(Path::new));
    let path = named.or_else(|| beside.exists().then_some(beside));
    Ok(Config::load(path, &variables)?.store)
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
        drop(SqliteStore::open(Path::new(path), Arc::new(SystemClock)).map_err(failed)?);
    }
    let missing = version.missing.iter().map(|(number, name)| (*number, (*name).to_owned()));
    let store = format!("sqlite:{path}");
    Ok(Report { store, found: version.found, known: version.known, missing: missing.collect(), dry_run })
}

async fn in_database(url: &str, store: &Store, dry_run: bool) -> Result<Report, Stop> {
    let failed = |error| Stop::new(Exit::Unreachable, format!("failed to open the store {store}: {error}"));
    let Plan { found, known, missing } = PostgresStore::migration_plan(url).await.map_err(failed)?;
    if !dry_run && !missing.is_empty() {
        let options = Options { connections: 1, migrations: Migrations::Apply, ..Options::default() };
        drop(PostgresStore::connect(url, options).await.map_err(failed)?);
    }
    let missing = missing.iter().map(|step| (i64::from(step.number), step.name.to_owned())).collect();
    let (found, known) = (i64::from(found), i64::from(known));
    Ok(Report { store: store.to_string(), found, known, missing, dry_run })
}

impl Report {
    fn text(&self) -> String {
        let Self { store, found, known, missing, dry_run } = self;
        if missing.is_empty() {
            return format!("{store} is at version {found}; nothing to do\n");
        }
        let verb = if *dry_run { "would apply" } else { "applied" };
        let mut text = format!("{store} was at version {found}, this release knows {known}\n");
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
            "store": self.store, "found": self.found, "known": self.known, "missing": missing,
            "applied": applied, "dry_run": self.dry_run,
        })
    }
}
