//! Sees the commands from outside: what is typed, what is printed, and the exit code. Starts no server.

use std::process::{Command, Output};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().expect("xtask starts")
}

#[test]
fn help_names_every_command_and_succeeds() {
    let output = xtask(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for name in ["ci", "test", "tidy", "mutate-decide"] {
        assert!(text.contains(name), "{name} is not in:\n{text}");
    }
}

#[test]
fn each_command_explains_itself() {
    for name in ["ci", "test", "tidy"] {
        let output = xtask(&[name, "--help"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(&format!("cargo xtask {name}")), "{name}: {text}");
    }
}

#[test]
fn an_unknown_flag_or_command_exits_with_2_and_names_it() {
    for args in [&["test", "--quick"][..], &["tidy", "--quick"], &["ci", "--quick"], &["--quick"], &[]] {
        let output = xtask(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(args.last().is_none_or(|word| text.contains(word)), "{args:?}: {text}");
    }
}
