//! `semel storm`: effects are counted, duplicates are told, and what cannot be known is not called good.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use semel_gate::{GateLayer, Route};
use semel_store::memory::MemoryStore;
use serde_json::{Value, json};

fn command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel")).arg("storm").args(args).output().expect("semel runs")
}

async fn storm(args: &[&str]) -> (Option<i32>, Value, String) {
    let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
    args.extend(["--json", "--requests", "30", "--seed", "1"].map(str::to_owned));
    let run = move || command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), report, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A service that has an effect for each request: what it answers, and where it listens.
struct Service {
    effects: Arc<AtomicU64>,
    answer: fn(u64) -> Value,
}

impl Service {
    fn new(answer: fn(u64) -> Value) -> Self {
        Self { effects: Arc::default(), answer }
    }

    fn router(&self) -> Router {
        let (effects, answer) = (Arc::clone(&self.effects), self.answer);
        let create = move || {
            let effects = Arc::clone(&effects);
            // It goes on when its client has gone.
            let work = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                effects.fetch_add(1, Ordering::SeqCst)
            });
            async move { (StatusCode::CREATED, Json(answer(work.await.unwrap()))) }
        };
        let effects = Arc::clone(&self.effects);
        let read = move || async move { Json(json!({"count": effects.load(Ordering::SeqCst)})) };
        Router::new().route("/orders", post(create)).route("/effects", get(read))
    }
}

fn gate() -> GateLayer {
    let route = Route::new("create-order", "POST /orders").unwrap();
    GateLayer::builder(MemoryStore::new()).route(route).build().unwrap()
}

async fn listen(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    origin
}

fn faults(report: &Value) -> String {
    report["faults"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_duplicates_when_bare_and_does_not_through_the_gate() {
    let (code, report, stderr) = storm(&[]).await;
    assert_eq!(code, Some(0), "{report:#} {stderr}");
    let [bare, gate] = [&report["rows"][0], &report["rows"][1]];
    assert_eq!((&bare["name"], &gate["name"]), (&json!("bare"), &json!("through semel")));
    assert!(bare["effects"].as_u64() > Some(60), "{bare}");
    assert_eq!((&gate["requests"], &gate["effects"]), (&json!(30), &json!(30)));
    assert!(gate["replays"].as_u64() > Some(30), "{gate}");
    assert!(gate["overlapping_duplicates"].as_u64() > Some(30), "{gate}");
    assert!(gate["sent"].as_u64() >= Some(120), "{gate}");
    assert!(gate["p99_ms"].as_f64() >= gate["p50_ms"].as_f64());
    assert_eq!(stderr, "", "progress is quiet beside JSON");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_service_is_found_out() {
    let origin = listen(Service::new(|id| json!({"id": id})).router()).await;
    let (code, report, _) = storm(&[&origin, "--effects-url", &format!("{origin}/effects")]).await;
    assert_eq!(code, Some(1), "{report:#}");
    assert!(faults(&report).contains("effects of 30 requests"), "{report:#}");
    let (code, report, _) = storm(&[&origin]).await;
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(report["rows"][0]["effects"], Value::Null);
    assert!(faults(&report).contains("contradict"), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_answers_say_nothing_is_not_called_good_without_a_count() {
    let origin = listen(Service::new(|_| json!("ok")).router()).await;
    let (code, report, _) = storm(&[&origin]).await;
    assert_eq!(code, Some(1));
    assert!(faults(&report).contains("--effects-url"), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_behind_a_gate_passes_by_its_effects_and_by_its_answers() {
    let service = Service::new(|id| json!({"id": id}));
    let origin = listen(service.router().layer(gate())).await;
    let (code, report, _) = storm(&[&origin, "--effects-url", &format!("{origin}/effects")]).await;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["rows"][0]["effects"], 30);
    let (code, report, _) = storm(&[&origin]).await;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["rows"][0]["effects"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_loses_requests_is_found_out() {
    let effects = listen(Service::new(|id| json!(id)).router()).await;
    let origin = listen(Router::new().route("/orders", post(|| async { "done" }))).await;
    let (code, report, _) = storm(&[&origin, "--effects-url", &format!("{effects}/effects")]).await;
    assert_eq!(code, Some(1));
    assert!(faults(&report).contains("0 effects of 30 requests"), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_refuses_is_quoted() {
    let origin = listen(Router::new()).await;
    let (code, report, _) = storm(&[&origin]).await;
    assert_eq!(code, Some(1));
    assert!(faults(&report).contains("30 of 30 requests were refused, the first with: 404"), "{report:#}");
}

#[test]
fn other_peoples_machines_are_not_stormed() {
    for url in ["http://192.0.2.1/orders", "http://[2001:db8::1]/", "http://0.0.0.0/"] {
        let output = command(&[url]);
        assert_eq!(output.status.code(), Some(2), "{url}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--yes-storm-this-host"), "{url}");
    }
}

#[test]
fn a_service_that_is_not_there_is_told_apart_from_one_that_fails() {
    let output = command(&["http://127.0.0.1:1/", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("failed to reach"));
}

#[test]
fn the_table_has_both_rows_and_progress_goes_to_standard_error() {
    let output = command(&["--requests", "20"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for column in
        ["requests", "sent", "effects", "duplicates", "overlapping", "replays", "conflicts", "p50", "p99"]
    {
        assert!(text.lines().next().unwrap().contains(column), "{text}");
    }
    assert!(text.lines().any(|line| line.starts_with("bare ")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("through semel ")), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("of 20 requests"));
    let quiet = command(&["--requests", "5", "--quiet"]);
    assert!(quiet.stderr.is_empty());
}

#[test]
fn ctrl_c_ends_a_storm_without_a_panic() {
    for _ in 0..6 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["storm", "--requests", "5000", "--max-time", "1m"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The first line of progress: the storm is under way.
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        std::io::BufRead::read_line(&mut stderr, &mut said).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
        assert!(!said.contains("panicked") && said.contains("broken off"), "{said}");
    }
}
