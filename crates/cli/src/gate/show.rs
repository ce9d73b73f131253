//! Looking at records: lists, and one in full with the commands that fit it.

use std::time::Duration;

use semel_contract::time::{Timestamp, format_duration};
use serde_json::{Value, json};

use super::table::{plain, summary, table};
use super::way::Way;
use super::{At, Said, quoted, text};
use crate::exit::{Exit, Stop};

/// Which records to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only in this state.
    #[arg(long, value_name = "STATE", value_parser = ["claimed", "settled", "unkept", "released", "unknown", "sealed"])]
    state: Option<String>,
    /// Only with this key.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["after", "principal", "route", "older_than", "state"])]
    key: Option<String>,
    /// Only this principal's.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only of this route (endpoint).
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// Only created longer ago, such as 15m, 24h or 7d.
    #[arg(long, value_name = "AGE", visible_alias = "age")]
    older_than: Option<String>,
    /// Go on after this record.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// At most so many, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

/// What to show.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// A record's id, a request's id or a key.
    #[arg(value_name = "ID")]
    id: String,
}

/// A query of the names that have a value.
pub(super) fn query(path: &str, values: &[(&str, Option<&str>)]) -> String {
    let encoded = |text: &str| -> String {
        let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let encode =
            |byte: u8| if unreserved(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") };
        text.bytes().map(encode).collect()
    };
    let given = values.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

/// Lists records.
pub(crate) async fn list(way: &Way, args: &ListArgs, at: &At) -> Result<Said, Stop> {
    let limit = args.limit.to_string();
    let path = query(
        "/v1/records",
        &[
            ("state", args.state.as_deref()),
            ("principal", args.principal.as_deref()),
            ("route", args.route.as_deref()),
            ("older_than", args.older_than.as_deref()),
            ("after", args.after.as_deref()),
            ("limit", Some(&limit)),
        ],
    );
    let value = match &args.key {
        Some(key) => with_key(way, key).await?,
        None => way.get(&path).await?,
    };
    let now = text(&value, "now").to_owned();
    let records = value["records"].as_array().cloned().unwrap_or_default();
    let row = |record: &Value| {
        ["id", "standing", "age", "route", "principal", "key", "request_id"]
            .map(|name| match name {
                "age" => age(text(record, "created_at"), &now),
                name => text(record, name).to_owned(),
            })
            .to_vec()
    };
    let rows: Vec<Vec<String>> = records.iter().map(row).collect();
    let heads = ["ID", "STATE", "AGE", "ROUTE", "PRINCIPAL", "KEY", "REQUEST"];
    let mut shown = if rows.is_empty() { "no records\n".to_owned() } else { table(&heads, &rows) };
    if let Some(next) = value["next"].as_str() {
        shown.push_str(&format!("more: the same with --after {next}{}\n", at.repeated()));
    }
    if !records.is_empty() {
        shown.push_str(&summary(&records, "standing", "record"));
    }
    Ok(Said { text: shown, value })
}

/// The pause before a search that could not reach all records is made again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Whatever has this text as its id, its request's id or its key. Soon after a start the keys of older records are still being
/// read: then it asks again until all were searched.
pub(super) async fn search(way: &Way, text: &str) -> Result<Value, Stop> {
    let path = query("/v1/search", &[("q", Some(text))]);
    let mut is_told = false;
    loop {
        let found = way.get(&path).await?;
        if found["reading"] != Value::Bool(true) {
            return Ok(found);
        }
        if !is_told {
            eprintln!("semel: the keys of this store are still being read, since it was opened a moment ago");
            is_told = true;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// The records whose key this is, whoever they belong to.
async fn with_key(way: &Way, key: &str) -> Result<Value, Stop> {
    let mut value = search(way, key).await?;
    if let Some(records) = value["records"].as_array_mut() {
        records.retain(|record| text(record, "key") == key);
    }
    Ok(value)
}

/// How long ago something was.
fn age(then: &str, now: &str) -> String {
    match (Timestamp::parse(then), Timestamp::parse(now)) {
        (Ok(then), Ok(now)) => {
            let seconds = u64::try_from(now.millis_since(then) / 1000).unwrap_or(0);
            // To the two largest units: nobody needs the seconds of a week.
            let rounded = match seconds {
                0..3600 => seconds,
                3600..86_400 => seconds / 60 * 60,
                _ => seconds / 3600 * 3600,
            };
            format_duration(Duration::from_secs(rounded))
        }
        _ => String::new(),
    }
}

/// Shows whatever has this text as its id, its request's id or its key.
pub(crate) async fn show(way: &Way, args: &ShowArgs, at: &At) -> Result<Said, Stop> {
    let mut value = search(way, &args.id).await?;
    for record in value["records"].as_array_mut().into_iter().flatten() {
        if is_open(record) {
            record["commands"] = Commands::of(record, at).json();
        }
    }
    let records = value["records"].as_array().cloned().unwrap_or_default();
    if records.is_empty() {
        let what = format!("no record has {:?} as its id, its request's id or its key", args.id);
        return Err(Stop::new(Exit::Refused, what));
    }
    let shown: Vec<String> = records.iter().map(|record| in_full(record, at)).collect();
    Ok(Said { text: shown.join("\n"), value })
}

/// One record in full.
pub(super) fn in_full(record: &Value, at: &At) -> String {
    let mut shown = format!("record {}, {}\n", text(record, "id"), text(record, "standing"));
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            shown.push_str(&format!("  {name:<12}{}\n", plain(value)));
        }
    };
    line("key", text(record, "key"));
    line("route", text(record, "route"));
    line("principal", text(record, "principal"));
    line("tenant", text(record, "tenant"));
    line("request", text(record, "request_id"));
    line("guarantee", text(record, "guarantee"));
    if let Some(status) = record["answer"]["status"].as_u64() {
        let bytes = record["answer"]["body_bytes"].as_u64().unwrap_or(0);
        line("answer", &format!("{status}, {bytes} bytes"));
    }
    shown.push_str("\ntimeline\n");
    for event in record["timeline"].as_array().into_iter().flatten() {
        let mark = if event["past"].as_bool() == Some(false) { "(to come) " } else { "" };
        shown.push_str(&format!("  {:<26}{mark}{}\n", text(event, "at"), plain(text(event, "what"))));
    }
    if is_open(record) {
        shown.push_str(&what_now(record, at));
    }
    shown
}

/// Whether a person may say what became of it: it is unknown, or a failure was kept that does not tell.
fn is_open(record: &Value) -> bool {
    text(record, "standing") == "unknown" || is_kept_failure(record)
}

fn is_kept_failure(record: &Value) -> bool {
    text(record, "standing") == "settled" && record["answer"]["outcome_unknown"] == true
}

/// The commands that fit an unknown outcome.
struct Commands {
    applied_with_answer: String,
    applied: String,
    not_applied: String,
    /// Until when the last is refused.
    late_until: Option<String>,
}

impl Commands {
    fn of(record: &Value, at: &At) -> Self {
        let (id, options) = (quoted(text(record, "id")), at.repeated());
        let late_until = text(record, "late_until");
        let is_to_come = |event: &Value| text(event, "at") == late_until && event["past"] == false;
        let is_early = record["timeline"].as_array().into_iter().flatten().any(is_to_come);
        let resolve = format!("semel gate resolve {id}");
        Self {
            applied_with_answer: format!("{resolve} --as applied --status 201 --body-file FILE{options}"),
            applied: format!("{resolve} --as applied{options}"),
            not_applied: format!("{resolve} --as not-applied --reason TEXT{options}"),
            late_until: is_early.then(|| late_until.to_owned()),
        }
    }

    fn json(&self) -> Value {
        json!([self.applied_with_answer, self.applied, self.not_applied])
    }
}

fn what_now(record: &Value, at: &At) -> String {
    let commands = Commands::of(record, at);
    let hint = commands
        .late_until
        .map(|until| format!(": look after {until}, since it could take effect until then"))
        .unwrap_or_default();
    let kept = match is_kept_failure(record) {
        true => format!(
            "\nNobody knows whether it took effect, and every retry gets this {} until it expires.",
            record["answer"]["status"]
        ),
        false => String::new(),
    };
    format!(
        "{kept}\nFind out at the service whether request {} took effect; then say so:\n\
         \x20 it did, and this is its answer\n\
         \x20   {}\n\
         \x20 it did, and nobody knows its answer\n\
         \x20   {}\n\
         \x20 it did not, and may run when it is sent again{hint}\n\
         \x20   {}\n",
        plain(text(record, "request_id")),
        commands.applied_with_answer,
        commands.applied,
        commands.not_applied,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let path = query("/v1/search", &[("q", Some("a b&c=ü/")), ("no", None)]);
        assert_eq!(path, "/v1/search?q=a%20b%26c%3D%C3%BC%2F");
        assert_eq!(query("/v1/records", &[("state", None)]), "/v1/records");
    }

    #[test]
    fn ages_are_short() {
        let now = "2026-01-08T00:00:30Z";
        assert_eq!(age("2026-01-08T00:00:00Z", now), "30s");
        assert_eq!(age("2026-01-07T22:29:29Z", now), "1h31m");
        assert_eq!(age("2026-01-01T00:00:00Z", now), "7d");
    }
}
