//! Keeping a store in order by hand.

use std::time::Duration;

use semel_contract::time::{Timestamp, format_duration};
use serde_json::json;

use super::door::Door;
use super::resolve::record_id;
use super::{Said, text};
use crate::exit::{Exit, Stop};

/// How long other processes may go by what they knew of restores.
const KNOWN_EVERYWHERE: Duration = Duration::from_millis(1200);

/// Which key to cancel.
#[derive(Debug, clap::Args)]
pub(crate) struct SealArgs {
    /// The record: its id, its request's id or its key.
    #[arg(value_name = "ID")]
    id: String,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// What to sweep.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Only what has been expired for so long.
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Whom to forget.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Erases what is settled, unkept, released or sealed, and the principal's counts. Claims and unknown outcomes stay: erase \
again once they are settled. The audit trail says how many records were erased, and not whose.")]
pub(crate) struct ForgetArgs {
    /// The principal, as `semel gate list` shows it.
    #[arg(value_name = "PRINCIPAL", required_unless_present = "named")]
    principal: Option<String>,
    /// The same, as an option.
    #[arg(long = "principal", value_name = "PRINCIPAL", conflicts_with = "principal")]
    named: Option<String>,
    /// The principal's tenant, where identities have one; without it, the principal of that name without a tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

/// What was restored.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Call it after the restore and before the gates are started. From then on a key without a record runs only where it \
surely is new: its client says (Idempotency-First-Sent, or the time in a UUIDv7) that it was first sent after the restore. \
All others are unknown, until the lost records would have expired. Keys whose client gives no time are unknown as well; \
--trust-undated runs them, at the risk of a second effect. Calling it again for the same backup changes that. \
Atomic routes are not affected: effect and record were restored together.")]
pub(crate) struct RestoredArgs {
    /// When the backup was made, such as 2026-01-31T08:30:00Z.
    #[arg(long, value_name = "TIME")]
    backup_time: String,
    /// Run keys whose client does not say when they were first sent.
    #[arg(long)]
    trust_undated: bool,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// What to do with the clock.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
While a jump ahead is not confirmed, the store goes on by the time as it ticks, and nothing expires or is swept. Confirm \
it only when the clock of the machine (or of PostgreSQL's) is right now.")]
pub(crate) struct ClockArgs {
    /// Confirm that the clock is right after its jump.
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT", requires = "confirm")]
    reason: Option<String>,
}

/// Cancels a key.
pub(crate) async fn seal(door: &Door, args: &SealArgs) -> Result<Said, Stop> {
    let id = record_id(door, &args.id).await?;
    let value = door.post(&format!("/v1/records/{id}/seal"), json!({"reason": args.reason})).await?;
    Ok(Said { text: format!("sealed; it is record {} now\n", text(&value, "id")), value })
}

/// Sweeps.
pub(crate) async fn sweep(door: &Door, args: &SweepArgs) -> Result<Said, Stop> {
    let mut body = json!({});
    for (name, value) in [("grace", &args.grace), ("reason", &args.reason)] {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    let value = door.post("/v1/sweep", body).await?;
    let count = |name: &str| value[name].as_u64().unwrap_or(0);
    let mut shown = format!(
        "removed {} expired records, marked {} lapsed claims unknown, freed {} abandoned ones\n",
        count("removed"),
        count("unknown"),
        count("released")
    );
    if value["clock_frozen"] == true {
        shown.push_str("the clock jumped and nothing expires until that is confirmed: semel gate clock\n");
    }
    Ok(Said { text: shown, value })
}

/// Forgets.
pub(crate) async fn forget(door: &Door, args: &ForgetArgs) -> Result<Said, Stop> {
    let principal = args.principal.as_ref().or(args.named.as_ref());
    let value = door.post("/v1/forget", json!({"principal": principal, "tenant": args.tenant})).await?;
    let count = |name: &str| value[name].as_u64().unwrap_or(0);
    let mut shown = format!("erased {} records\n", count("forgotten"));
    if count("left") > 0 {
        shown.push_str(&format!(
            "{} are claimed or unknown and stay; forget again once they are settled\n",
            count("left")
        ));
    }
    Ok(Said { text: shown, value })
}

/// Says that the store was restored.
pub(crate) async fn restored(door: &Door, args: &RestoredArgs) -> Result<Said, Stop> {
    if let Err(error) = Timestamp::parse(&args.backup_time) {
        return Err(Stop::new(Exit::Usage, format!("--backup-time {:?}: {error}", args.backup_time)));
    }
    let mut body = json!({"backup_time": args.backup_time, "trust_undated": args.trust_undated});
    if let Some(reason) = &args.reason {
        body["reason"] = json!(reason);
    }
    let value = door.post("/v1/restored", body).await?;
    if door.is_shared() {
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

/// Shows or confirms the clock.
pub(crate) async fn clock(door: &Door, args: &ClockArgs) -> Result<Said, Stop> {
    let value = match args.confirm {
        true => door.post("/v1/clock/confirm", json!({"reason": args.reason})).await?,
        false => door.get("/v1/clock").await?,
    };
    let mut shown = format!("the store's time is {}\n", text(&value, "now"));
    if let Some(jump) = value["jump_ms"].as_u64() {
        shown.push_str(&format!(
            "the clock beneath it jumped ahead by {}, and nothing expires until that is confirmed:\n\
             \x20 semel gate clock --confirm --reason TEXT\n",
            format_duration(Duration::from_secs(jump / 1000)),
        ));
    }
    Ok(Said { text: shown, value })
}
