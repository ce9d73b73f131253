//! What is installed beside the binary speaks of the binary as it is.

use std::path::Path;
use std::process::Command;

fn semel(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(args).output().expect("semel runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

fn packaged(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    path.display().to_string()
}

#[test]
fn shells_learn_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, text) = semel(&["completions", shell]);
        assert_eq!(code, 0);
        for command in ["serve", "up", "storm", "conform", "check"] {
            assert!(text.contains(command), "{shell} does not know {command}");
        }
    }
    assert_eq!(semel(&["completions", "cmd"]).0, 2);
}

#[test]
fn the_packaged_configuration_is_safe() {
    let (code, text) = semel(&["check", "--config", &packaged("semel.toml")]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn the_units_start_what_exists() {
    for part in ["gate", "outbox", "relay"] {
        let unit = std::fs::read_to_string(packaged(&format!("systemd/semel-{part}.service")))
            .expect("the unit is there");
        let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/semel "));
        let command = command.expect("a command");
        assert!(command.starts_with(&format!("serve {part} ")), "{command}");
        let mut words: Vec<&str> = command.split_whitespace().collect();
        words.push("--help");
        assert_eq!(semel(&words).0, 0, "{command}");
        assert!(unit.contains("Type=notify"), "{part}");
    }
}
