//! Looking at what was done.

use serde_json::Value;

use super::resolve::record_id;
use super::show::query;
use super::table::table;
use super::way::Way;
use super::{Said, text};
use crate::exit::Stop;

/// Which rows of the trail.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Only what was done to this record.
    #[arg(long, value_name = "ID")]
    record: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

/// Which page.
#[derive(Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Go on before this number.
    #[arg(long, value_name = "NUMBER")]
    before: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

/// Whose counts.
#[derive(Debug, clap::Args)]
pub(crate) struct StaleArgs {
    /// Only this principal's.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Go on after this place, which the page before names.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

/// A table of some members of each row.
pub(crate) fn rows(value: &Value, list: &str, names: &[&str]) -> String {
    rows_on(value, list, names, "--before")
}

/// The same, whose next page is asked for with this flag.
fn rows_on(value: &Value, list: &str, names: &[&str], flag: &str) -> String {
    let found = value[list].as_array().cloned().unwrap_or_default();
    if found.is_empty() {
        return "nothing\n".to_owned();
    }
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let cells: Vec<Vec<String>> =
        found.iter().map(|row| names.iter().map(|name| cell(row, name)).collect()).collect();
    let heads: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let more = value["next"].as_str().map(|next| format!("more: the same with {flag} {next}\n"));
    table(&heads, &cells) + &more.unwrap_or_default()
}

/// The audit trail.
pub(crate) async fn audit(way: &Way, args: &AuditArgs) -> Result<Said, Stop> {
    let record = match &args.record {
        Some(meant) => Some(record_id(way, meant).await?),
        None => None,
    };
    let limit = args.page.limit.to_string();
    let values =
        [("record", record.as_deref()), ("before", args.page.before.as_deref()), ("limit", Some(&*limit))];
    let value = way.get(&query("/v1/audit", &values)).await?;
    let names = ["number", "at", "action", "actor", "record", "count", "reason"];
    Ok(Said { text: rows(&value, "audit", &names), value })
}

/// The cleanup log.
pub(crate) async fn cleanups(way: &Way, args: &PageArgs) -> Result<Said, Stop> {
    let limit = args.limit.to_string();
    let values = [("before", args.before.as_deref()), ("limit", Some(&*limit))];
    let value = way.get(&query("/v1/cleanups", &values)).await?;
    let names = ["number", "at", "table", "removed", "unknown", "released", "took_ms"];
    Ok(Said { text: rows(&value, "cleanups", &names), value })
}

/// Counts of stale actions.
pub(crate) async fn stale(way: &Way, args: &StaleArgs) -> Result<Said, Stop> {
    let limit = args.limit.to_string();
    let values = [
        ("principal", args.principal.as_deref()),
        ("after", args.after.as_deref()),
        ("limit", Some(&*limit)),
    ];
    let value = way.get(&query("/v1/stale", &values)).await?;
    let names = ["principal", "tenant", "count", "first_at", "last_at"];
    debug_assert!(text(&value, "code").is_empty(), "a refusal does not come here");
    let text = rows_on(&value, "stale", &names, "--after");
    Ok(Said { text, value })
}
