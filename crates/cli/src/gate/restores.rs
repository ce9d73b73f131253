//! `semel gate restored` and `semel gate restores`: says that a store was restored from a backup, and shows what that does.

use std::time::Duration;

use semel_contract::time::Timestamp;
use serde_json::json;

use super::confirm::confirm;
use super::history::rows;
use super::way::Way;
use super::{Said, text};
use crate::exit::{Exit, Stop};

/// How long other processes may go by what they knew of restores.
const KNOWN_EVERYWHERE: Duration = Duration::from_millis(1200);

/// What was restored.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Call it after the restore and before the gates are started. From then on a key without a record runs only where it \
surely is new: its client says (Idempotency-First-Sent, or the time in a UUIDv7) that it was first sent after the restore. \
All others are unknown, until the lost records would have expired. Keys whose client gives no time are unknown as well; \
--trust-undated runs them, at the risk of a second effect. Calling it again for the same backup changes that. \
Atomic routes are not affected: effect and record were restored together.

`semel gate restores` shows whether such a restore is in force; so do /readyz, the metric semel_store_restored and a \
warning at the start of a gate.")]
pub(crate) struct Args {
    /// When the backup was made, such as 2026-01-31T08:30:00Z.
    #[arg(long, value_name = "TIME")]
    backup_time: String,
    /// Run keys whose client does not say when they were first sent.
    #[arg(long)]
    trust_undated: bool,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do it without asking.
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Says that the store was restored.
pub(crate) async fn restored(way: &Way, args: &Args) -> Result<Said, Stop> {
    let backup_at = Timestamp::parse(&args.backup_time)
        .map_err(|error| Stop::new(Exit::Usage, format!("--backup-time {:?}: {error}", args.backup_time)))?;
    let clock = way.get("/v1/clock").await?;
    let now = text(&clock, "now");
    if Timestamp::parse(now).is_ok_and(|now| backup_at > now) {
        let why = format!("--backup-time {backup_at} lies in the future; the store's time is {now}");
        return Err(Stop::new(Exit::Usage, why));
    }
    let undated = match args.trust_undated {
        true => "keys without a time are run, at the risk of a second effect",
        false => "keys without a time, such as every UUIDv4, are unknown too",
    };
    confirm(
        &format!(
            "This says that the store was restored from a backup of {backup_at}.\n\
             From {now} on, keys without a record that were first sent before are answered 409 outcome-unknown, until what was \
             lost would have expired; {undated}.\n\
             It cannot be taken back.\n"
        ),
        args.yes,
    )?;
    let mut body = json!({"backup_time": args.backup_time, "trust_undated": args.trust_undated});
    if let Some(reason) = &args.reason {
        body["reason"] = json!(reason);
    }
    let value = way.post("/v1/restored", body).await?;
    if way.is_shared() {
        // Every process has looked again by then: what this says holds everywhere.
        tokio::time::sleep(KNOWN_EVERYWHERE).await;
    }
    let undated = match text(&value, "undated") {
        "trusted" => "keys without a time are run",
        _ => "keys without a time are unknown too; --trust-undated runs them",
    };
    let shown = format!(
        "keys without a record that were first sent before {} are unknown, until what was lost would have expired; {undated}\n\
         they are listed as they arrive: semel gate list --state unknown\n",
        text(&value, "restored_at"),
    );
    Ok(Said { text: shown, value })
}

/// Lists restores.
pub(crate) async fn restores(way: &Way) -> Result<Said, Stop> {
    let value = way.get("/v1/restores").await?;
    let mut shown = match value["restores"].as_array().is_none_or(Vec::is_empty) {
        true => "the store was not restored from a backup\n".to_owned(),
        false => rows(&value, "restores", &["backup_time", "restored_at", "undated"]),
    };
    match text(&value, "in_force_until") {
        "" => {}
        until => shown.push_str(&format!("in force until {until}: keys without a record may be unknown\n")),
    }
    Ok(Said { text: shown, value })
}
