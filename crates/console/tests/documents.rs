//! What the documents, the alerts and the dashboard say about metrics is what the code counts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use semel_console::NAMES;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every name in a text that begins like a metric of semel.
fn names(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("semel_") {
        let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        let name: String = text[at..].chars().take_while(|char| is_part(*char)).collect();
        let prefixes = ["semel_build_", "semel_gate_", "semel_gateway_", "semel_store_", "semel_metrics_"];
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            found.insert(of_histogram.unwrap_or(&name).to_owned());
        }
    }
    found
}

/// The names that the code of every crate counts under, and those that are read from the store when they are asked for.
fn counted() -> BTreeSet<String> {
    let mut found = names(&read("crates/console/src/health.rs"));
    found.insert("semel_metrics_dropped_total".to_owned());
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.ends_with("tests") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|kind| kind == "rs") {
                found.extend(in_calls(&std::fs::read_to_string(entry).unwrap()));
            }
        }
    }
    found
}

/// The names in calls such as `counter!("name"`.
fn in_calls(code: &str) -> Vec<String> {
    let calls = ["counter!(", "gauge!(", "histogram!("];
    let after = calls.iter().flat_map(|call| code.split(call).skip(1));
    let name = |text: &str| Some(text.trim_start().strip_prefix('"')?.split('"').next()?.to_owned());
    after.filter_map(name).collect()
}

#[test]
fn everything_that_is_counted_is_described_and_nothing_else() {
    let described: BTreeSet<String> = NAMES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(described, counted());
    assert_eq!(names(&read("docs/operations/README.md")), counted(), "the table of the documents");
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_counted() {
    for path in ["docs/operations/alerts.yml", "docs/operations/grafana.json", "docs/runbook.md"] {
        let asked = names(&read(path));
        assert!(!asked.is_empty(), "{path} asks for nothing");
        let unknown: Vec<&String> = asked.iter().filter(|name| !counted().contains(*name)).collect();
        assert_eq!(unknown, [] as [&String; 0], "{path} asks for what nobody counts");
    }
    let board: serde_json::Value = serde_json::from_str(&read("docs/operations/grafana.json")).unwrap();
    assert!(board["panels"].as_array().is_some_and(|panels| panels.len() >= 10));
}

/// The other parts name what they count where they write it.
#[test]
fn alerts_and_dashboard_ask_for_what_broker_outbox_and_relay_count() {
    let code: String = [
        "crates/broker/src/broker/metrics.rs",
        "crates/delivery/src/receive/meters.rs",
        "crates/delivery/src/outbox/meters.rs",
        "crates/cli/src/serve/relay/numbers.rs",
        "crates/cli/src/serve/relay/admin.rs",
        "crates/delivery/src/relay/meters.rs",
    ]
    .map(read)
    .concat();
    for path in ["docs/operations/alerts.yml", "docs/operations/grafana.json", "docs/operations/README.md"] {
        let text = read(path);
        let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        for prefix in ["semel_broker_", "semel_inbox_", "semel_outbox_", "cm_broker_"] {
            for (at, _) in text.match_indices(prefix) {
                let name: String = text[at..].chars().take_while(|char| is_part(*char)).collect();
                assert!(code.contains(&name), "{path} asks for {name}, which nobody counts");
            }
        }
    }
}

#[test]
fn every_alert_leads_to_a_part_of_the_runbook() {
    let (alerts, runbook) = (read("docs/operations/alerts.yml"), read("docs/runbook.md"));
    let parts: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook: \"")).collect();
    assert_eq!(parts.len(), alerts.matches("- alert:").count());
    for part in parts {
        let heading = format!("## {}\n", part.trim_end_matches('"'));
        assert!(runbook.contains(&heading), "{heading} is not in the runbook");
    }
}
