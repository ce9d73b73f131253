//! A new user's first ten minutes, step by step, with the real program and the commands that it prints. In no step may a
//! request with a key run unprotected without an error or a warning on the screen.

#[path = "../../gateway/tests/gateway/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "serve_gate/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../gateway/tests/gateway/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use std::process::Command;

use client::{keyed, post};
use process::{Folder, Process};
use upstream::{Reply, Upstream};

async fn shop() -> Upstream {
    Upstream::start(|_, before| Reply::status(201, "", &format!("order {before}"))).await
}

/// The command that the gate printed under `try`.
fn printed(gate: &Process) -> String {
    let line =
        gate.said.lines().find_map(|line| line.trim_start().strip_prefix("try")).expect("a `try` line");
    line.trim().to_owned()
}

/// Runs a command as a person pastes it into a shell without `uuidgen`, and gives what it printed.
async fn paste(line: &str) -> String {
    let line = line.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        Command::new("sh").args(["-c", &line]).env("PATH", "/usr/bin:/bin").output().expect("a shell")
    });
    let output = output.await.expect("the shell ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).to_lowercase()
}

/// Pastes the printed command twice: one effect, and the second answer is the first one again.
async fn try_twice(gate: &Process, upstream: &Upstream) {
    let (line, before) = (printed(gate), upstream.count());
    assert!(!line.contains('$'), "everything is written out: {line}");
    let (first, second) = (paste(&line).await, paste(&line).await);
    assert!(first.contains("http/1.1 201") && first.contains("semel-guarantee: fenced"), "{line}\n{first}");
    assert!(second.contains("idempotency-replayed: true"), "{line}\n{second}");
    assert_eq!(upstream.count(), before + 1, "{line}");
}

#[tokio::test]
async fn minute_one_without_a_file_the_printed_command_shows_a_replay() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let gate = folder.start(&["--upstream", &upstream.url()]);
    assert!(gate.said.contains("config     none"), "{}", gate.said);
    try_twice(&gate, &upstream).await;
}

#[tokio::test]
async fn minute_three_a_file_for_another_part_does_not_switch_the_gate_off() {
    let (folder, upstream) = (Folder::new(), shop().await);
    for text in [
        "[outbox]\nupstream = \"http://127.0.0.1:13000\"\n",
        "[gate]\nadmin = \"127.0.0.1:0\"\n",
        "[defaults]\nretry_window = \"7d\"\n",
        "",
    ] {
        let path = folder.write("semel.toml", text);
        let gate = folder.start(&["--upstream", &upstream.url()]);
        let named = path.canonicalize().unwrap().display().to_string();
        assert!(gate.said.contains(&named), "the banner names the file: {}", gate.said);
        assert!(gate.said.contains("protects   every method but GET"), "{}", gate.said);
        try_twice(&gate, &upstream).await;
    }
}

#[tokio::test]
async fn minute_four_a_file_does_not_start_to_demand_keys() {
    let (folder, upstream) = (Folder::new(), shop().await);
    let login = || post("/login", "", "{}");
    for text in ["", "[route.all]\nmatch = \"* /{path*}\"\n", "[defaults]\nprofile = \"ietf\"\n"] {
        folder.write("semel.toml", text);
        let gate = folder.start(&["--upstream", &upstream.url()]);
        let answer = gate.ask(login()).await;
        assert_eq!((answer.status, answer.header("semel-guarantee")), (201, Some("none")), "{text}");
    }
    folder.write("semel.toml", "[defaults]\nkey = \"required\"\n");
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let refused = gate.ask(post("/login", "Authorization: a\r\n", "{}")).await;
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[tokio::test]
async fn minute_five_every_profile_prints_a_command_that_its_route_keys() {
    let (folder, upstream) = (Folder::new(), shop().await);
    for profile in ["ietf", "stripe", "agents", "scores", "feed", "mesh"] {
        let route = format!("[route.r]\nmatch = \"POST /r/{{id}}\"\nprofile = \"{profile}\"\n");
        folder.write("semel.toml", &route);
        let gate = folder.start(&["--upstream", &upstream.url()]);
        let (line, before) = (printed(&gate), upstream.count());
        let first = paste(&line).await;
        assert!(first.contains("semel-guarantee: fenced"), "{profile}: {line}\n{first}");
        paste(&line).await;
        assert_eq!(upstream.count(), before + 1, "{profile}: {line}");
    }
}

#[tokio::test]
async fn minute_six_a_key_in_another_header_is_read_or_refused_but_never_ignored() {
    let (folder, upstream) = (Folder::new(), shop().await);
    for (profile, header, wanted) in [
        ("agents", "Idempotency-Key", "X-Idempotency-Key"),
        ("scores", "Idempotency-Key", "X-Idempotency-Key"),
        ("ietf", "X-Idempotency-Key", "Idempotency-Key"),
    ] {
        folder.write("semel.toml", &format!("[route.r]\nmatch = \"POST /r\"\nprofile = \"{profile}\"\n"));
        let gate = folder.start(&["--upstream", &upstream.url()]);
        let before = upstream.count();
        let refused = gate.ask(post("/r", &format!("Authorization: a\r\n{header}: k1\r\n"), "{}")).await;
        assert_eq!((refused.status, upstream.count()), (400, before), "{profile}: {refused:?}");
        assert!(refused.body.contains(&format!("the {wanted} header")), "it names the header: {refused:?}");
    }
    // Where the key stands in the body, the headers are read as well.
    folder.write("semel.toml", "[route.r]\nmatch = \"POST /r\"\nprofile = \"mesh\"\n");
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let before = upstream.count();
    let ask = |body: &str| gate.ask(post("/r", "Authorization: a\r\nIdempotency-Key: k1\r\n", body));
    assert_eq!(ask("{}").await.header("semel-guarantee"), Some("fenced"));
    assert_eq!((ask("{}").await.status, upstream.count()), (200, before + 1));
    assert_eq!(ask("{\"client_message_id\":\"another\"}").await.status, 400, "two different keys");
}

#[tokio::test]
async fn minute_eight_a_key_that_no_route_covers_is_warned_of() {
    let (folder, upstream) = (Folder::new(), shop().await);
    folder.write("semel.toml", "[route.orders]\nmatch = \"POST /orders\"\n");
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let passed = gate.ask(keyed("/refunds", "k1", "{}")).await;
    assert_eq!((passed.status, passed.header("semel-guarantee")), (201, Some("none")));
    gate.until_said("passed unprotected").await;
    assert!(gate.errors().contains("/refunds"), "{}", gate.errors());
    let metrics = gate.admin("/metrics").await.body;
    assert!(metrics.contains("semel_gate_unprotected_total 1"), "{metrics}");
}

#[tokio::test]
async fn minute_nine_observing_says_that_nothing_is_protected() {
    let (folder, upstream) = (Folder::new(), shop().await);
    folder.write("semel.toml", "[gate]\nmode = \"observe\"\n");
    let gate = folder.start(&["--upstream", &upstream.url()]);
    assert!(gate.said.contains("protects   nothing"), "{}", gate.said);
    for _ in 0..2 {
        assert_eq!(gate.ask(keyed("/orders", "k1", "{}")).await.status, 201);
    }
    gate.until_said("a duplicate passed").await;
    gate.until_said("nothing is protected").await;
}

#[tokio::test]
async fn every_counter_is_there_before_anything_happened() {
    let (folder, upstream) = (Folder::new(), shop().await);
    folder.write("semel.toml", "[route.orders]\nmatch = \"POST /orders\"\n");
    let gate = folder.start(&["--upstream", &upstream.url()]);
    let metrics = gate.admin("/metrics").await.body;
    for series in [
        "semel_gate_answers_total{answer=\"executed\",route=\"orders\"} 0",
        "semel_gate_unknown_total{route=\"orders\"} 0",
        "semel_gate_expired_access_total{route=\"orders\"} 0",
        "semel_gate_store_errors_total{call=\"look-up\"} 0",
        "semel_gate_sweeps_total ",
        "semel_gate_unprotected_total 0",
        "semel_build_info{version=",
    ] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    let problem = metrics
        .lines()
        .find(|line| line.starts_with("semel_gate_problems_total") && line.contains("outcome-unknown"));
    assert!(problem.is_some_and(|line| line.ends_with(" 0")), "{metrics}");
}
