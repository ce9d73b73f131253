//! Keeping a store in order by hand.

use std::time::Duration;

use semel_contract::profile::SweepWhen;
use semel_contract::time::format_duration;
use serde_json::{Value, json};

use super::confirm::counted;
use super::resolve::record_id;
use super::way::Way;
use super::{Said, text};
use crate::config::Setting;
use crate::exit::Stop;

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
#[command(after_help = "\
A service that uses semel's SQL functions or a library of them has no gate that sweeps for it. Beside it runs:

  semel gate sweep --store postgres://… --when 'every 6h'

It goes on until it is ended, also while the store is away, and writes a line for each run. `every` begins with a run at once.")]
pub(crate) struct SweepArgs {
    /// Only what has been expired for so long.
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    /// Why; stands in the audit trail.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Go on sweeping: `every 6h`, or `daily 03:00` (UTC).
    #[arg(long, value_name = "WHEN", value_parser = SweepWhen::read)]
    pub(super) when: Option<SweepWhen>,
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
pub(crate) async fn seal(way: &Way, args: &SealArgs) -> Result<Said, Stop> {
    let id = record_id(way, &args.id).await?;
    let value = way.post(&format!("/v1/records/{id}/seal"), json!({"reason": args.reason})).await?;
    Ok(Said { text: format!("sealed; it is record {} now\n", text(&value, "id")), value })
}

/// Sweeps.
pub(crate) async fn sweep(way: &Way, args: &SweepArgs) -> Result<Said, Stop> {
    let mut body = json!({});
    for (name, value) in [("grace", &args.grace), ("reason", &args.reason)] {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    let value = way.post("/v1/sweep", body).await?;
    let count = |name: &str| value[name].as_u64().unwrap_or(0);
    let mut shown = format!(
        "removed {}, marked {} unknown, freed {} abandoned\n",
        counted(count("removed"), "expired record"),
        counted(count("unknown"), "lapsed claim"),
        count("released")
    );
    if value["clock_frozen"] == true {
        shown.push_str("the clock jumped and nothing expires until that is confirmed: semel gate clock\n");
    }
    Ok(Said { text: shown, value })
}

/// Shows or confirms the clock.
pub(crate) async fn clock(way: &Way, args: &ClockArgs) -> Result<Said, Stop> {
    let value = match args.confirm {
        true => way.post("/v1/clock/confirm", json!({"reason": args.reason})).await?,
        false => way.get("/v1/clock").await?,
    };
    Ok(Said { text: clock_text(&value, "gate"), value })
}

/// What is said of a clock, by every part that has one.
pub(crate) fn clock_text(value: &Value, part: &str) -> String {
    let mut shown = format!("the store's time is {}\n", text(value, "now"));
    if let Some(jump) = value["jump_ms"].as_u64() {
        shown.push_str(&format!(
            "the clock beneath it jumped ahead by {}, and nothing expires until that is confirmed:\n\
             \x20 semel {part} clock --confirm --reason TEXT\n",
            format_duration(Duration::from_secs(jump / 1000)),
        ));
    }
    shown
}
