//! The one program of semel: reads the command line, wires the parts together, turns outcomes into exit codes.

mod admin;
mod broker;
mod check;
mod client;
mod completions;
mod config;
mod conform;
mod demo;
mod exit;
mod explain;
mod gate;
mod inbox;
mod logging;
mod man;
mod migrate;
mod outbox;
mod problems;
mod relay;
mod serve;
mod store;
mod storm;
mod style;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use exit::{Exit, Stop};

/// Requests are made of many short-lived pieces of memory; the system's allocator spends a tenth of a gateway's time on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes a request take effect once, however often it is sent.
#[derive(Debug, Parser)]
#[command(name = "semel", version, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what semel makes of a request, without running it.
    Explain(Box<explain::Args>),
    /// Check a configuration and show the retention arithmetic.
    Check(check::Args),
    /// Look into a gate's records and resolve what is unknown.
    Gate(gate::Args),
    /// Send by the outbox, look into it and operate it.
    Outbox(outbox::Args),
    /// Look at what the outbox received, and acknowledge it.
    Inbox(inbox::Args),
    /// Look into a relay, resolve what is in doubt, release and requeue what is held.
    Relay(relay::Args),
    /// Make meshes, members, topics and webhooks, publish, and look after a broker.
    Broker(broker::Args),
    /// Bring the schema of a store to the version of this release.
    Migrate(migrate::Args),
    /// Run a part of semel until it is told to stop.
    Serve(serve::Args),
    /// Examine any server by the Idempotency-Key draft, from outside.
    Conform(Box<conform::Args>),
    /// Send a bounded retry storm and count the effects; without URL, to the demo, bare and then through the gate.
    Storm(Box<storm::Args>),
    /// Start everything in one command: a demo shop, the gate before it, and a page that shows what happens.
    Up(up::Args),
    /// Print completions for a shell.
    Completions(completions::Args),
    /// Print the manual page.
    Man(man::Args),
}

fn main() -> ExitCode {
    let wants_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) if wants_json && error.use_stderr() => {
            let text = error.render().to_string();
            let message = text.trim().trim_start_matches("error: ");
            return stopped(&Stop::new(Exit::Usage, message), true);
        }
        Err(error) => error.exit(),
    };
    let outcome = match command {
        Command::Explain(args) => explain::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Outbox(args) => outbox::run(&args),
        Command::Inbox(args) => inbox::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Broker(args) => broker::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Conform(args) => conform::run(&args),
        Command::Storm(args) => storm::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    logging::flush();
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(stop) => stopped(&stop, wants_json),
    }
}

/// Says on standard error why a command stopped: in words, or where JSON was asked for as one JSON object.
fn stopped(stop: &Stop, wants_json: bool) -> ExitCode {
    let Stop { exit, message } = stop;
    let message = config::without_passwords(message);
    let text = match wants_json {
        true => {
            let code = *exit as u8;
            serde_json::json!({"error": exit.name(), "message": message, "exit": code}).to_string()
        }
        false => format!("semel: {message}"),
    };
    // Nothing more can be done when standard error is gone as well.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{text}\n"));
    ExitCode::from(*exit as u8)
}

/// A write to standard output that failed. A closed pipe is how `head` says that it has seen enough.
fn output_failed(error: &std::io::Error) -> Stop {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => std::process::exit(Exit::Success as i32),
        _ => Stop::new(Exit::Io, format!("failed to write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use semel_console::ACTIONS;
    use semel_console::part::Sheet;

    use super::Cli;
    use super::serve::{broker, outbox, relay};

    /// Commands that only look, or that send something new: they change no stored record.
    const OTHERS: &[&str] = &[
        "gate list",
        "gate show",
        "gate restores",
        "gate audit",
        "gate cleanups",
        "gate stale",
        "outbox send",
        "outbox list",
        "outbox show",
        "outbox lanes",
        "outbox audit",
        "relay list",
        "relay show",
        "relay audit",
        "broker audit",
        "broker meshes list",
        "broker members list",
        "broker topics list",
        "broker subscriptions list",
        "broker webhooks list",
        "broker publish",
        "broker history",
        "broker tail",
        "inbox list",
        "inbox show",
        "inbox tail",
    ];

    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let mut is_leaf = true;
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            is_leaf = false;
            let name = inner.get_name();
            leaves(inner, &if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }, found);
        }
        if is_leaf {
            found.push(path.to_owned());
        }
    }

    #[test]
    fn what_commands_do_to_records_the_console_does_and_the_other_way_round() {
        let mut found = Vec::new();
        let cli = Cli::command();
        for part in ["gate", "outbox", "inbox", "relay", "broker"] {
            leaves(cli.find_subcommand(part).unwrap(), part, &mut found);
        }
        let of_table: Vec<&str> = ACTIONS.iter().filter_map(|action| action.command).collect();
        let is_known = |path: &String| of_table.contains(&path.as_str()) || OTHERS.contains(&path.as_str());
        let unknown: Vec<&String> = found.iter().filter(|path| !is_known(path)).collect();
        assert!(
            unknown.is_empty(),
            "neither in the table of actions nor known to change nothing: {unknown:?}"
        );
        for command in of_table {
            assert!(
                found.iter().any(|path| path == command),
                "the table names {command:?}, which is no command"
            );
        }
        assert!(ACTIONS.iter().all(|action| action.command.is_some()), "every action has a command");
    }

    /// Fields of forms that commands know by another name, since a flag is said otherwise than a choice, and a secret comes
    /// from a file. What is in `token_sha256` a command makes by itself as well.
    const OTHERWISE: &[(&str, &str)] = &[
        ("as", "outcome"),
        ("body", "body_file"),
        ("outcome", "applied"),
        ("patch_body_base64", "patch_payload"),
        ("limits.bytes", "max_bytes"),
        ("search", "no_search"),
        ("ordered", "unordered"),
        ("secrets", "secrets_file"),
        ("webhook", "name"),
        ("lane", "name"),
        ("headers", "give"),
        ("value", "give"),
        // An empty credential takes the one that was given back.
        ("take_back", "give"),
    ];

    #[test]
    fn commands_take_what_forms_ask_for_and_why() {
        let cli = Cli::command();
        let mut missing = Vec::new();
        for action in ACTIONS {
            let path = action.command.unwrap();
            let command = path.split(' ').fold(&cli, |command, name| command.find_subcommand(name).unwrap());
            let takes = |name: &str| command.get_arguments().any(|arg| arg.get_id() == name);
            if !takes("reason") {
                missing.push(format!("semel {path}: --reason"));
            }
            for field in action.fields {
                let otherwise = OTHERWISE.iter().filter(|(name, _)| *name == field.name);
                let names: Vec<&str> = otherwise.map(|(_, flag)| *flag).chain([field.name]).collect();
                if !names.iter().any(|name| takes(name)) {
                    missing.push(format!("semel {path}: one of {names:?}"));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// The pages of the parts beside the gate, each with what its numbers are made of.
    fn sheets() -> [(&'static Sheet, &'static str); 3] {
        [
            (&outbox::sheet::SHEET, include_str!("../../delivery/src/outbox/meters.rs")),
            (&relay::sheet::SHEET, include_str!("serve/relay/numbers.rs")),
            (&broker::sheet::SHEET, include_str!("../../broker/src/broker/metrics.rs")),
        ]
    }

    #[test]
    fn every_action_is_offered_on_a_page_of_its_part() {
        for action in ACTIONS.iter().filter(|action| action.part != "gate") {
            let (sheet, _) = sheets().into_iter().find(|(sheet, _)| sheet.name == action.part).unwrap();
            let name = format!("{} {}", action.part, action.name);
            assert!(sheet.views.iter().any(|view| view.on == action.on), "{name} is offered nowhere");
            let page = action.page.split('?').next().unwrap_or_default();
            assert!(sheet.views.iter().any(|view| view.path == page), "{name} leads to no page: {page}");
        }
    }

    #[test]
    fn every_number_that_a_page_shows_is_counted() {
        for (sheet, counted) in sheets() {
            let drawn = sheet.charts.iter().flat_map(|chart| chart.lines).map(|line| line.metric);
            let metrics = sheet.tiles.iter().map(|tile| tile.metric).chain(drawn);
            let noticed = sheet.notices.iter().map(|notice| notice.at).filter(|at| !at.starts_with('/'));
            for metric in metrics.chain(noticed) {
                assert!(counted.contains(metric), "{} counts no {metric}", sheet.name);
            }
            assert!(!sheet.charts.is_empty() && !sheet.notices.is_empty(), "{}", sheet.name);
        }
    }

    #[test]
    fn names_of_actions_are_unique_in_their_part() {
        for action in ACTIONS {
            let same =
                ACTIONS.iter().filter(|other| (other.part, other.name) == (action.part, action.name)).count();
            assert_eq!(same, 1, "{} {}", action.part, action.name);
        }
    }
}
