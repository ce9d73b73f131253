//! `semel gate`: what operators do with records. Every command asks the admin API: that of the process which owns the
//! store, or its own over a store that it opened itself. Owns the words of the command line; what they do is the API's.

mod confirm;
mod forget;
pub(crate) mod history;
mod resolve;
mod restores;
mod show;
mod sweeping;
pub(crate) mod table;
mod upkeep;
mod way;

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use crate::config::redacted;
use crate::exit::{Exit, Stop};
use crate::output_failed;
pub(crate) use upkeep::clock_text;
use way::Way;

/// Look into a gate's records and resolve what is unknown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Where the records are: with a store in a file, the process that owns the file is asked, and its admin address is found \
in FILE.lock; where no process owns it, the file is opened. With PostgreSQL the database is asked. --admin asks the \
process at that address instead.

A key is unknown, what now?  semel gate list --state unknown
                             semel gate show ID")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    at: At,
}

/// Where the records are, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct At {
    /// The admin address to ask, such as http://127.0.0.1:7401.
    #[arg(long, global = true, value_name = "URL")]
    admin: Option<String>,
    /// The store: sqlite:PATH or postgres://… [default: the configuration's, else sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "admin")]
    store: Option<String>,
    /// The file of the token that the admin address asks for. [default: gate.admin_token_file of the configuration]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The configuration; without one, what SEMEL_CONFIG names, or ./semel.toml if it is there.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Who acts, for the audit trail. [default: the user of this shell]
    #[arg(long, global = true, value_name = "NAME")]
    by: Option<String>,
    /// Print JSON, as the admin API gives it.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List records.
    List(show::ListArgs),
    /// Show a record with its timeline and what can be done about it.
    Show(show::ShowArgs),
    /// Say what became of an unknown outcome.
    Resolve(resolve::Args),
    /// Cancel the key of a released or expired record, so that a late arrival is refused.
    Seal(upkeep::SealArgs),
    /// Remove expired records now.
    Sweep(upkeep::SweepArgs),
    /// Erase the finished records of a principal.
    #[command(visible_alias = "erase")]
    Forget(forget::Args),
    /// Say that the store was restored from a backup: what may have been lost becomes unknown.
    Restored(restores::Args),
    /// Show the restores that were reported, and whether one is in force.
    Restores,
    /// Show the store's clock, and confirm a jump of it.
    Clock(upkeep::ClockArgs),
    /// Show who did what by hand, the latest first.
    Audit(history::AuditArgs),
    /// Show the runs of the sweeper, the latest first.
    Cleanups(history::PageArgs),
    /// Show how many stale actions of each principal were put on record.
    Stale(history::StaleArgs),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Io, format!("failed to start: {error}")))?;
    let outcome = runtime.block_on(async {
        if let Command::Sweep(sweep) = &args.command
            && let Some(when) = sweep.when
        {
            return sweeping::sweep_for_ever(&args.at, sweep, when).await;
        }
        let way = Way::find(&args.at).await?;
        args.command.run(&way, &args.at).await
    });
    let Said { value, text } = outcome?;
    let printed = if args.at.json { format!("{value:#}\n") } else { text };
    std::io::stdout().write_all(printed.as_bytes()).map_err(|error| output_failed(&error))?;
    Ok(Exit::Success)
}

/// What a command has to say, in both forms.
#[derive(Debug)]
pub(crate) struct Said {
    /// As the API gave it.
    value: Value,
    /// For people.
    text: String,
}

impl Command {
    async fn run(&self, way: &Way, at: &At) -> Result<Said, Stop> {
        match self {
            Command::List(args) => show::list(way, args, at).await,
            Command::Show(args) => show::show(way, args, at).await,
            Command::Resolve(args) => resolve::resolve(way, args, at).await,
            Command::Seal(args) => upkeep::seal(way, args).await,
            Command::Sweep(args) => upkeep::sweep(way, args).await,
            Command::Forget(args) => forget::forget(way, args).await,
            Command::Restored(args) => restores::restored(way, args).await,
            Command::Restores => restores::restores(way).await,
            Command::Clock(args) => upkeep::clock(way, args).await,
            Command::Audit(args) => history::audit(way, args).await,
            Command::Cleanups(args) => history::cleanups(way, args).await,
            Command::Stale(args) => history::stale(way, args).await,
        }
    }
}

impl At {
    /// The options that lead to the same records, to be repeated in a command.
    fn repeated(&self) -> String {
        let path = |path: &PathBuf| quoted(&path.display().to_string());
        let options = [
            self.admin.as_ref().map(|url| format!(" --admin {}", quoted(url))),
            self.store.as_ref().map(|url| format!(" --store {}", quoted(&redacted(url)))),
            self.token_file.as_ref().map(|file| format!(" --token-file {}", path(file))),
            self.config.as_ref().map(|file| format!(" --config {}", path(file))),
        ];
        options.into_iter().flatten().collect()
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A text of the answer; empty where there is none.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_repeat_holds_no_password() {
        let store = Some("postgres://postgres:hunter2@db/shop".to_owned());
        let at = At { admin: None, store, token_file: None, config: None, by: None, json: false };
        assert_eq!(at.repeated(), " --store postgres://postgres@db/shop");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("sqlite:/var/lib/semel.db"), "sqlite:/var/lib/semel.db");
        assert_eq!(quoted("it's mine"), r"'it'\''s mine'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$(reboot)"), "'$(reboot)'");
    }
}
