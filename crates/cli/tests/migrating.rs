//! `semel migrate`: every store of a configuration, and only what it says.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ALL: &str = r#"
store = "sqlite:gate.db"
[outbox]
store = "sqlite:outbox.db"
[relay]
store = "sqlite:relay.db"
[broker]
store = "sqlite:broker.db"
"#;

fn migrate(folder: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("migrate").args(args).arg("--json").current_dir(folder);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_")) {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    (output.status.code(), serde_json::from_slice(&text).unwrap())
}

#[test]
fn the_stores_of_all_parts_are_migrated_together() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("semel.toml"), ALL).unwrap();
    let names = ["gate", "outbox", "relay", "broker"];
    let are_there = || names.map(|name| folder.path().join(format!("{name}.db")).exists());
    let (code, report) = migrate(folder.path(), &["--dry-run"]);
    assert_eq!((code, are_there()), (Some(0), [false; 4]), "{report}");
    let parts = |report: &Value| {
        let parts = report["parts"].as_array().unwrap().clone();
        let name = |part: &Value| part["part"].as_str().unwrap().to_owned();
        assert_eq!(parts.iter().map(name).collect::<Vec<_>>(), names);
        parts
    };
    assert!(parts(&report).iter().all(|part| part["found"] == 0 && part["known"].as_i64() > Some(0)));
    let (code, report) = migrate(folder.path(), &[]);
    assert_eq!((code, are_there()), (Some(0), [true; 4]), "{report}");
    assert!(parts(&report).iter().all(|part| !part["applied"].as_array().unwrap().is_empty()), "{report}");
    let (_, report) = migrate(folder.path(), &[]);
    assert!(parts(&report).iter().all(|part| part["found"] == part["known"]), "{report}");
    let (_, report) = migrate(folder.path(), &["--part", "relay"]);
    assert_eq!((report["part"].as_str(), report["parts"].as_array().unwrap().len()), (Some("relay"), 1));
    let (code, error) = migrate(folder.path(), &["--part", "outbox", "--store", "postgres://h/d"]);
    assert_eq!((code, error["error"].as_str()), (Some(2), Some("usage")));
}
