//! `semel gate …` and `semel migrate` by the real program: on a file that nobody owns, and on one that a running gate owns.

#[path = "operate/alone.rs"]
mod alone;
#[path = "operate/owned.rs"]
mod owned;
#[path = "operate/runbook.rs"]
mod runbook;
#[path = "operate/seed.rs"]
mod seed;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program, in a folder of its own and without the variables of this shell.
fn semel(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir(folder).env("USER", "carol");
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    semel(folder, args).output().expect("semel runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command prints; it must end well.
fn says(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// What a command prints with `--json`.
fn json(folder: &Path, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let text = says(folder, &args);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The exit code and the message of a command that is refused.
fn refused(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = run(folder, args);
    let code = output.status.code().expect("it ends by itself");
    assert_ne!(code, 0, "{args:?} was not refused: {}", stdout(&output));
    (code, stderr(&output))
}

fn ids(listed: &Value) -> Vec<String> {
    let records = listed["records"].as_array().cloned().unwrap_or_default();
    records.iter().map(|record| record["id"].as_str().unwrap_or_default().to_owned()).collect()
}
