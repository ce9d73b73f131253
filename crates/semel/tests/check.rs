//! `semel check`: the settings in force, the arithmetic, and what is refused.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The file of the documents' example.
const SHOP: &str = r#"
store    = "postgres://semel:secret@db/shop"
identity = "jwt:/etc/semel/jwks.json"

[gate]
listen   = "127.0.0.1:7400"
admin    = "127.0.0.1:7401"
upstream = "http://127.0.0.1:3000"
mode     = "enforce"

[defaults]
profile      = "ietf"
key          = "optional"
retry_window = "24h"
in_flight    = "wait 25s"
on_unknown   = "hold"
on_error     = "replay"

[route.create-order]
match      = "POST /orders"
guarantee  = "atomic"

[route.refund]
match      = "POST /orders/{id}/refund"
on_unknown = { probe = "http://127.0.0.1:3000/refunds/{key}" }
"#;

fn check_with(config: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("semel.toml"), config).unwrap();
    run(folder.path(), args, variables)
}

fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("check").args(args).current_dir(folder);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SEMEL_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("semel runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(config: &str, variables: &[(&str, &str)]) -> (Option<i32>, Value) {
    let output = check_with(config, &["--json"], variables);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or(Value::String(stderr(&output))))
}

#[test]
fn the_example_of_the_documents_is_accepted() {
    let (code, report) = report(SHOP, &[]);
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["safe"], true);
    assert_eq!(report["identity"], "jwt:/etc/semel/jwks.json");
    assert_eq!(report["profiles"]["route.create-order"]["settings"]["guarantee"], "atomic");
    assert_eq!(report["profiles"]["route.refund"]["settings"]["on_unknown"], "probe");
    assert!(!report.to_string().contains("secret"), "passwords are never shown");
    let text = stdout(&check_with(SHOP, &[], &[]));
    assert!(text.contains("retry_window 1d + 2 × skew 5m + margin 1h"), "{text}");
}

#[test]
fn without_a_file_the_defaults_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(
        text.contains("sqlite:semel.db")
            && text.contains("127.0.0.1:7400")
            && text.contains("warning: identity authorization")
    );
}

#[test]
fn unknown_fields_are_errors_with_their_line() {
    for (config, line, word) in [
        ("[defaults]\nretry_windw = \"1h\"\n", "line 2", "retry_windw"),
        ("stroe = \"sqlite:a\"\n", "line 1", "stroe"),
        ("\n\n[gate]\nlisten = \"here\"\n", "line 4", "here"),
        ("[route.a]\nmatch = \"POST /a\"\nretry_window = \"1 day\"\n", "line 3", "1h30m"),
    ] {
        let output = check_with(config, &[], &[]);
        assert_eq!(output.status.code(), Some(3), "{config}");
        let text = stderr(&output);
        assert!(text.contains(line) && text.contains(word), "{text}");
    }
}

#[test]
fn unsafe_settings_are_refused_with_the_number_to_change() {
    for (config, setting) in [
        ("[route.a]\nmatch = \"POST /a\"\nrecord_lifetime = \"1h\"\n", "record_lifetime"),
        ("[route.a]\nmatch = \"POST /a\"\nmax_age = \"2d\"\n", "max_age"),
        ("[route.a]\nmatch = \"POST /a\"\nprofile = \"mesh\"\nretry_window = \"5d\"\n", "retry_window"),
        (
            "[route.a]\nmatch = \"POST /a\"\nprofile = \"walker\"\nrecord_lifetime = \"7d\"\n",
            "record_lifetime",
        ),
        ("[route.a]\nmatch = \"POST /a\"\nscope = [\"endpoint\"]\n", "scope"),
        ("[route.a]\nmatch = \"POST /a\"\nfingerprint = \"none\"\n", "fingerprint"),
        ("[route.a]\nmatch = \"POST /a\"\nin_flight = \"wait 11m\"\n", "in_flight"),
    ] {
        let (code, report) = report(config, &[]);
        assert_eq!(code, Some(1), "{config} {report}");
        let settings: Vec<&Value> = report["profiles"]["route.a"]["unsafe"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| &found["setting"])
            .collect();
        assert!(settings.contains(&&json!(setting)), "{settings:?}");
    }
}

#[test]
fn variables_override_the_file() {
    let (code, found) = report(
        SHOP,
        &[
            ("SEMEL_STORE", "sqlite:other.db"),
            ("SEMEL_DEFAULTS_RETRY_WINDOW", "7d"),
            ("SEMEL_GATE_MODE", "observe"),
        ],
    );
    assert_eq!(code, Some(0));
    assert_eq!((&found["store"], &found["gate"]["mode"]), (&json!("sqlite:other.db"), &json!("observe")));
    assert_eq!(found["profiles"]["route.refund"]["settings"]["retry_window"], "7d");
    assert_eq!(found["profiles"]["route.refund"]["settings"]["kept for"], "8d10m");
    let (code, bad) = report(SHOP, &[("SEMEL_GATE_LISTEN", "nowhere")]);
    assert_eq!(code, Some(3));
    assert!(bad.as_str().unwrap().contains("SEMEL_GATE_LISTEN"));
    let (_, warned) = report(SHOP, &[("SEMEL_STOER", "x")]);
    assert!(warned["warnings"].to_string().contains("SEMEL_STOER"));
}

#[test]
fn routes_that_cannot_be_told_apart_are_refused() {
    let clash = "[route.a]\nmatch = \"POST /a/{x}\"\n[route.b]\nmatch = \"POST|PUT /a/{y}\"\n";
    let (code, error) = report(clash, &[]);
    assert_eq!(code, Some(3));
    assert!(error.as_str().unwrap().contains("routes a and b"));
    let (code, error) = report("[route.a]\nprofile = \"ietf\"\n", &[]);
    assert_eq!(code, Some(3));
    assert!(error.as_str().unwrap().contains("`match` is missing"));
}

#[test]
fn every_knob_of_a_route_is_read() {
    let config = r#"
        [route.a]
        match = "PUT|POST /a/{id}"
        was = ["old-a"]
        profile = "feed"
        guarantee = "fenced"
        key = "required"
        key_sources = ["header:X-Key", "json:/key"]
        key_syntax = "bare"
        key_format = "regex:[a-z]+"
        require_headers = [{ name = "X-Client-Tx-Id", format = "token255" }]
        scope = ["tenant", "principal"]
        fingerprint = { inputs = ["method", "route", "params", "query", "body"], exclude = ["/sentAt"] }
        mismatch = { status = 409, reveal = "payload-hashes" }
        in_flight = "reject 2s"
        on_unknown = "forward"
        on_error = "release"
        failed_key = "sealed"
        errors = "envelope"
        retry_window = "12h"
        skew = "1m"
        margin = "30m"
        released_lifetime = "1d"
        lifetime_from = "created"
        sweep_grace = "1h"
        request_limit = { rate = "100/1s", refuses = "all" }
        admission_limit = "1000/1h"
        max_body = "64KiB"
        max_response = "2MiB"
        guard = { generated_at = "/at", cap = "6h", grace = "1h" }
        age = "uuid7"
        [route.b]
        match = "* /b/{rest*}"
        mismatch = "ignore"
        fingerprint = "none"
        request_limit = "all"
        on_unknown = "rerun"
    "#;
    let (code, report) = report(config, &[]);
    assert_eq!(code, Some(0), "{report}");
    assert!(report["warnings"].to_string().contains("at least once"));
}
