//! `semel conform`: a server that keeps the draft passes, one that breaks a clause fails exactly that clause, and semel
//! passes its own examination.

#[path = "conform/server.rs"]
mod server;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use semel_gate::{GateLayer, Route};
use semel_store::memory::MemoryStore;
use serde_json::{Value, json};
use server::{Fault, serve};

async fn conform(args: Vec<String>) -> Output {
    let run = move || Command::new(env!("CARGO_BIN_EXE_semel")).arg("conform").args(args).output();
    tokio::task::spawn_blocking(run).await.unwrap().expect("semel runs")
}

/// The examination's exit code and the clauses with this result.
async fn examined(url: &str, flags: &[&str]) -> (Option<i32>, Value) {
    let args = [&[url, "--json"], flags].concat().into_iter().map(str::to_owned).collect();
    let output = conform(args).await;
    let report = serde_json::from_slice(&output.stdout);
    (output.status.code(), report.unwrap_or_else(|_| json!(String::from_utf8_lossy(&output.stderr))))
}

fn with_result(report: &Value, result: &str) -> Vec<String> {
    let clauses = report["clauses"].as_array().unwrap_or_else(|| panic!("no clauses in {report}"));
    let names = clauses.iter().filter(|clause| clause["result"] == result);
    names.map(|clause| clause["clause"].as_str().unwrap().to_owned()).collect()
}

/// Examines a server with one fault, with and without a count of its effects.
async fn fails_only(fault: Option<Fault>, clauses: &[&str]) {
    let origin = serve(fault).await;
    let effects = format!("{origin}/effects");
    for flags in [vec![], vec!["--effects-url", effects.as_str()]] {
        let (code, report) = examined(&origin, &flags).await;
        assert_eq!(with_result(&report, "fail"), clauses, "{fault:?} with {flags:?}: {report:#}");
        assert_eq!(code, Some(i32::from(!clauses.is_empty())), "{fault:?}");
        if clauses != ["first"] {
            assert!(with_result(&report, "skipped").is_empty(), "{report:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_the_draft_passes() {
    fails_only(None, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_waits_instead_of_answering_409_passes() {
    fails_only(Some(Fault::NoneButWaits), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_quoted_keys_fails_the_first_clause() {
    fails_only(Some(Fault::RefusesQuotes), &["first"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_runs_requests_without_a_key_fails_presence() {
    fails_only(Some(Fault::NeedsNoKey), &["presence"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_any_text_for_a_key_fails_syntax() {
    fails_only(Some(Fault::TakesAnyKey), &["syntax"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_looks_at_the_quotes_fails_syntax_when_it_is_examined_strictly() {
    let origin = serve(Some(Fault::LooksAtQuotes)).await;
    let (code, report) = examined(&origin, &[]).await;
    assert_eq!(code, Some(0), "{report:#}");
    assert!(report["clauses"][2]["why"].as_str().unwrap().contains("two header lines"), "{report:#}");
    let (code, report) = examined(&origin, &["--strict"]).await;
    assert_eq!((code, with_result(&report, "fail")), (Some(1), vec!["syntax".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_runs_retries_fails_replay() {
    fails_only(Some(Fault::RunsRetries), &["replay"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_replays_to_another_payload_fails_mismatch() {
    fails_only(Some(Fault::IgnoresPayloads), &["mismatch"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_runs_requests_at_once_fails_concurrency() {
    fails_only(Some(Fault::RunsTogether), &["concurrency"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_errors_say_nothing_fails_the_error_format() {
    fails_only(Some(Fault::PlainErrors), &["error-format"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shares_keys_among_callers_fails_scope() {
    fails_only(Some(Fault::SharesKeys), &["scope"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_another_name_for_the_header_is_examined_under_that_name() {
    let origin = serve(Some(Fault::OtherHeader)).await;
    let (code, report) = examined(&origin, &["--key-header", "X-Request-Key"]).await;
    assert_eq!(code, Some(0), "{report:#}");
    let (code, _) = examined(&origin, &[]).await;
    assert_eq!(code, Some(1), "its keys are not seen under the usual name");
}

#[tokio::test(flavor = "multi_thread")]
async fn semel_passes_its_own_examination() {
    let effects = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&effects);
    let create = move || {
        let id = effects.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            (axum::http::StatusCode::CREATED, Json(json!({"id": id})))
        }
    };
    let gate = GateLayer::builder(MemoryStore::new())
        .route(Route::new("create-order", "POST /orders").unwrap())
        .build()
        .unwrap();
    let read = move || async move { Json(json!(count.load(Ordering::SeqCst))) };
    let router = Router::new().route("/orders", post(create)).route("/effects", get(read)).layer(gate);
    let origin = server::listen(router).await;
    let (code, report) =
        examined(&origin, &["--effects-url", &format!("{origin}/effects"), "--strict"]).await;
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(with_result(&report, "pass").len(), 8, "{report:#}");
    assert_eq!(report["draft"], "draft-ietf-httpapi-idempotency-key-header-07");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_passes_before_a_service_that_knows_nothing_of_keys() {
    let count = Arc::new(AtomicU64::new(0));
    let (create, read) = (Arc::clone(&count), Arc::clone(&count));
    let create = move || {
        let id = create.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Json(json!({"id": id}))
        }
    };
    let read = move || async move { Json(json!(read.load(Ordering::SeqCst))) };
    let bare = Router::new().route("/orders", post(create)).route("/effects", get(read));
    let upstream = server::listen(bare).await;
    let effects = format!("{upstream}/effects");
    for (flags, skipped) in [(vec!["--require-key"], vec![]), (vec![], vec!["presence"])] {
        let gate = Gateway::start(&upstream, &flags);
        let (code, report) = examined(&gate.url, &["--effects-url", &effects, "--strict"]).await;
        assert_eq!(code, Some(0), "{report:#}");
        assert_eq!(with_result(&report, "skipped"), skipped, "{report:#}");
        assert_eq!(with_result(&report, "pass").len(), 8 - skipped.len());
    }
}

/// A `semel serve gate` of its own.
struct Gateway {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Gateway {
    fn start(upstream: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["serve", "gate", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--upstream", upstream]).args(flags).current_dir(folder.path());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("semel runs");
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.trim().strip_prefix("listening")?.trim().to_owned()));
        Self { process, url: url.expect("it says where it listens"), _folder: folder }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_tls_is_examined_and_an_unknown_authority_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca.pem");
    let origin = server::serve_tls(None, &authority).await;
    let run = |believed: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["conform", &origin, "--json"]).env_remove("SSL_CERT_FILE");
        if believed {
            command.env("SSL_CERT_FILE", &authority);
        }
        tokio::task::spawn_blocking(move || command.output().expect("semel runs"))
    };
    let output = run(true).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(false).await.unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("TLS"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clause_is_one_line_with_its_section_and_its_level() {
    let origin = serve(Some(Fault::NeedsNoKey)).await;
    let output = conform(vec![origin.clone()]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("presence")).unwrap();
    for word in ["FAIL", "section 2.7", "SHOULD", "answered 201"] {
        assert!(line.contains(word), "{line}");
    }
    let output = conform(vec![origin, "--skip".to_owned(), "presence".to_owned()]).await;
    assert_eq!(output.status.code(), Some(0), "what is not asked for does not fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_told_apart_from_one_that_fails() {
    let (code, message) = examined("http://127.0.0.1:1", &[]).await;
    assert_eq!(code, Some(4), "{message}");
    let (code, message) = examined("ftp://127.0.0.1", &[]).await;
    assert_eq!(code, Some(2), "{message}");
}
