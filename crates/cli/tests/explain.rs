//! `semel explain`, as a person and as a script use it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn semel(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(args)
        .env_remove("SEMEL_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("semel starts");
    // A command that does not read its input closes it early, which is its right.
    let _ = child.stdin.take().expect("it has an input").write_all(input.as_bytes());
    child.wait_with_output().expect("semel ends")
}

fn explained(args: &[&str]) -> Value {
    let output = semel(&[&["explain", "--json"], args].concat(), "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn lines(requests: &[Value]) -> Vec<Value> {
    let input: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let output = semel(&["explain", "--jsonl"], &input);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

const KEY: &str = "Idempotency-Key: \"abc\"";
const AUTH: &str = "Authorization: Bearer a";

#[test]
fn a_request_is_explained_in_full() {
    let body = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(body.path(), r#"{ "b" : 1.0, "a" : [ true ] }"#).unwrap();
    let path = body.path().to_str().unwrap();
    let found = explained(&[
        "--method",
        "POST",
        "--path",
        "/orders?x=1",
        "--header",
        KEY,
        "--header",
        AUTH,
        "--body-file",
        path,
    ]);
    assert_eq!(found["key"], "abc");
    assert_eq!(found["key_source"], "header:Idempotency-Key");
    assert_eq!(found["key_syntax"], "sf-string");
    assert_eq!(found["canonical"], r#"{"a":[true],"b":1}"#);
    assert_eq!(found["route"], "POST /orders");
    assert_eq!(found["profile"], "ietf");
    assert_eq!(found["problem"], Value::Null);
    for hash in ["scope", "fingerprint", "payload_hash"] {
        let text = found[hash].as_str().unwrap();
        assert!(text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()), "{hash}");
    }
    let text = String::from_utf8(semel(&["explain", "--path", "/orders", "-H", KEY, "-H", AUTH], "").stdout)
        .unwrap();
    for word in ["route", "POST /orders", "ietf", "abc", "sf-string", "fingerprint", "scope"] {
        assert!(text.contains(word), "{word} is missing from\n{text}");
    }
}

#[test]
fn bare_and_quoted_forms_are_one_key_and_other_queries_other_fingerprints() {
    let with = |path, key| explained(&["--path", path, "-H", key, "-H", AUTH]);
    let (quoted, bare) = (with("/o?x=1", KEY), with("/o?x=1", "Idempotency-Key: abc"));
    assert_eq!(
        (&quoted["key"], &quoted["scope"], &quoted["fingerprint"]),
        (&bare["key"], &bare["scope"], &bare["fingerprint"])
    );
    assert_ne!(quoted["fingerprint"], with("/o?x=2", KEY)["fingerprint"]);
    assert_ne!(quoted["scope"], with("/p?x=1", KEY)["scope"]);
}

#[test]
fn problems_are_those_that_would_be_answered() {
    let auth = json!(["Authorization", "Bearer a"]);
    let request =
        |headers: Vec<Value>| json!({"method": "POST", "path": "/o", "headers": headers, "body": "{}"});
    let key = |value: &str| json!(["Idempotency-Key", value]);
    let found = lines(&[
        request(vec![key("k"), auth.clone()]),
        request(vec![key(""), auth.clone()]),
        request(vec![key(&"x".repeat(256)), auth.clone()]),
        request(vec![key("a\u{1}b"), auth.clone()]),
        request(vec![key("\"a\" b"), auth.clone()]),
        request(vec![key("a"), key("a"), auth.clone()]),
        request(vec![key("k")]),
        json!("not a request"),
        request(vec![auth]),
    ]);
    let problems: Vec<(u64, &str)> = found
        .iter()
        .map(|line| match &line["problem"] {
            Value::Null => (0, ""),
            problem => (
                problem["status"].as_u64().unwrap(),
                problem["type"].as_str().unwrap().rsplit(':').next().unwrap(),
            ),
        })
        .collect();
    let expected = [
        (0, ""),
        (400, "key-invalid"),
        (400, "key-invalid"),
        (400, "key-invalid"),
        (400, "key-invalid"),
        (400, "key-ambiguous"),
        (401, "identity-missing"),
        (400, "request-malformed"),
        (0, ""),
    ];
    assert_eq!(problems, expected);
    assert!(found[6]["note"].as_str().unwrap().contains("--identity"));
    for line in &found {
        for field in ["key", "key_source", "key_syntax", "scope", "fingerprint", "canonical", "problem"] {
            assert!(line.get(field).is_some(), "{field} is missing from {line}");
        }
    }
}

#[test]
fn malformed_lines_do_not_stop_the_rest() {
    let good = r#"{"method":"POST","path":"/o","headers":[["Idempotency-Key","k"],["Authorization","x"]],"body_base64":"eyJhIjoxfQ=="}"#;
    let long = "x".repeat(17 << 20);
    let input = format!("{{\n\u{0}\n{long}\n\n{good}\n{}", good.replace("/o", "o"));
    let output = semel(&["explain", "--jsonl"], &input);
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<&Value> = found.iter().map(|line| &line["problem"]["status"]).collect();
    let bad = &json!(400);
    assert_eq!(
        statuses,
        [bad, bad, bad, bad, &Value::Null, bad],
        "an answer for every line, also for a blank one"
    );
    assert_eq!(found[4]["canonical"], r#"{"a":1}"#);
}

#[test]
fn answers_are_one_line_each_for_every_reader() {
    let request = json!({"method": "POST", "path": "/o", "headers": [["Authorization", "x"]], "body": "\"\u{85}\u{2028}\u{2029}\""});
    let output = semel(&["explain", "--jsonl"], &format!("{request}\n"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(['\u{85}', '\u{2028}', '\u{2029}']));
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["canonical"], "\"\u{85}\u{2028}\u{2029}\"");
}

#[test]
fn a_line_is_answered_before_the_next_is_written() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["explain", "--jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("semel starts");
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for path in ["/a", "/b"] {
        writeln!(input, r#"{{"method":"POST","path":"{path}"}}"#).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.contains(path), "{line}");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn every_preset_gives_a_scope() {
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    let keys = [format!("Idempotency-Key: {uuid}"), format!("X-Idempotency-Key: {uuid}")];
    for name in ["ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"] {
        let body = format!(r#"{{"client_message_id":"{uuid}"}}"#);
        let found = explained(&[
            "--profile",
            name,
            "--path",
            "/o",
            "-H",
            &keys[0],
            "-H",
            &keys[1],
            "-H",
            AUTH,
            "-H",
            "X-Client-Tx-Id: t",
            "--body",
            &body,
        ]);
        assert_eq!((&found["problem"], &found["key"]), (&Value::Null, &json!(uuid)), "{name}");
        assert_eq!(found["scope"].as_str().map(str::len), Some(64), "{name}");
    }
}

#[test]
fn presets_and_identities_can_be_chosen() {
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    let key = format!("Idempotency-Key: {uuid}");
    let walker = explained(&[
        "--profile",
        "walker",
        "--path",
        "/tree/allocate",
        "-H",
        &key,
        "-H",
        AUTH,
        "--body",
        r#"{"a":1,"clientSubmittedAt":"x"}"#,
    ]);
    assert_eq!(walker["canonical"], r#"{"a":1}"#);
    let missing = explained(&["--profile", "walker", "--path", "/tree/allocate", "-H", AUTH]);
    assert_eq!(missing["problem"]["type"], "urn:semel:problem:key-missing");
    let shared = explained(&["--identity", "shared:all", "--path", "/o", "-H", KEY]);
    assert_eq!(shared["problem"]["type"], "urn:semel:problem:key-too-weak");
    assert_eq!(
        explained(&["--identity", "shared:all", "--path", "/o", "-H", &key])["principal"],
        "shared:all"
    );
    let jwt = explained(&["--identity", "jwt:keys.json", "--path", "/o", "-H", KEY]);
    assert_eq!(jwt["scope"], Value::Null);
    let verified = explained(&[
        "--identity",
        "jwt:keys.json",
        "--principal",
        "alice",
        "--tenant",
        "t",
        "--path",
        "/o",
        "-H",
        KEY,
    ]);
    assert_eq!((&verified["principal"], verified["scope"].is_string()), (&json!("alice"), true));
}

#[test]
fn wrong_usage_is_told_apart_from_wrong_requests() {
    for args in [
        vec!["explain"],
        vec!["explain", "--path", "/o", "--profile", "nope"],
        vec!["explain", "--path", "/o", "--identity", "nobody"],
        vec!["explain", "--path", "/o", "--header", "no colon"],
        vec!["explain", "--path", "/o", "--tenant", "t"],
        vec!["explain", "--path", "/o", "--principal", "shared:all"],
        vec!["explain", "--jsonl", "--path", "/o"],
    ] {
        assert_eq!(semel(&args, "").status.code(), Some(2), "{args:?}");
    }
    assert_eq!(
        semel(&["explain", "--path", "/o", "--body-file", "/no/such/file"], "").status.code(),
        Some(4)
    );
    assert_eq!(semel(&["explain", "--path", "/o", "--config", "/no/such/file"], "").status.code(), Some(3));
}

#[test]
fn a_route_with_an_identity_of_its_own_is_explained_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, include_str!("../../../examples/agents/semel.toml")).unwrap();
    std::fs::write(folder.path().join("world.secret"), "a secret of more than thirty-two bytes").unwrap();
    let key = "X-Idempotency-Key: 8f14e45f-ceea-467f-a8d2-6b2f3d9c1a11";
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["explain", "--path", "/api/auth/agent", "-H", key, "--body", "{}", "--json"])
        .current_dir(folder.path())
        .env_remove("SEMEL_CONFIG")
        .output()
        .unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["problem"], serde_json::Value::Null, "{said:#}");
    assert_eq!((said["route"].as_str(), said["guarantee"].as_str()), (Some("register"), Some("fenced")));
    assert_eq!(said["identity"], "shared:registration");
}
