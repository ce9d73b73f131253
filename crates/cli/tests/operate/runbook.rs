//! The commands of the runbook are commands: each is run on a store with an unknown outcome in it, or on an outbox with a
//! message. Those of the relay and the broker are read with the other documented commands.

use std::process::Command;
use std::time::Duration;

use super::seed::Seed;

/// Every `semel` command in the code blocks of a document.
fn commands(document: &str) -> Vec<String> {
    let mut in_block = false;
    let mut found = Vec::new();
    for line in document.lines().map(str::trim) {
        if line.starts_with("```") {
            in_block = line == "```sh";
        } else if in_block
            && line.starts_with("semel ")
            && !["semel relay ", "semel broker "].iter().any(|command| line.starts_with(command))
        {
            found.push(line.to_owned());
        }
    }
    found
}

#[test]
fn every_command_of_the_runbook_works() {
    let document = include_str!("../../../../docs/runbook.md");
    let commands = commands(document);
    assert!(commands.len() >= 15, "{commands:?}");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().to_owned();
    for command in commands {
        let folder = tempfile::tempdir().unwrap();
        let seed = Seed::at(&folder.path().join("semel.db"));
        let id = seed.unknown("alice", "k", Duration::ZERO);
        drop(seed);
        std::fs::write(folder.path().join("answer.json"), "{}").unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SEMEL_"))
        {
            shell.env_remove(name);
        }
        let line = command.replace(" ID", &format!(" {id}"));
        let line = match line.starts_with("semel outbox ") || line.starts_with("semel inbox ") {
            true => format!("semel outbox send http://127.0.0.1:9/x -d '{{}}' --id {id} && {line}"),
            false => line,
        };
        let output = shell.args(["-c", &line]).current_dir(folder.path()).env("PATH", path).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        match (output.status.code(), line.contains("clock --confirm")) {
            (Some(0), false) => {}
            // The clock of this machine has not jumped.
            (Some(5), true) => assert!(error.contains("nothing to confirm"), "{error}"),
            (code, _) => panic!("{line} ended with {code:?}: {error}"),
        }
    }
}
