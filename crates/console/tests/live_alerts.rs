//! The rules for Prometheus ring when they should: `promtool`, which `cargo xtask test` installs, runs their tests.

use std::path::Path;
use std::process::Command;

fn promtool(args: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations");
    let output = Command::new("promtool").args(args).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| {
        panic!("promtool: {error}; `cargo xtask test` installs it (Debian's package prometheus)")
    });
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn the_rules_are_rules() {
    promtool(&["check", "rules", "alerts.yml"]);
}

#[test]
fn every_rule_rings_when_it_should_and_is_tested() {
    promtool(&["test", "rules", "alerts.test.yml"]);
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    let (rules, tests) = (read("alerts.yml"), read("alerts.test.yml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}
