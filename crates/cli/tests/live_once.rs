//! The scenarios of `spec/once.json`, which every library runs too, so that they cannot drift apart: on the Rust layer, and on the gateway
//! in front of a service that settles with `semel.settle`; and many requests of one key over the Rust layer and the Python library. Needs
//! the PostgreSQL and the Python of `cargo xtask test`.

#[path = "once/proxy.rs"]
mod proxy;
#[path = "once/service.rs"]
mod service;
#[path = "once/suite.rs"]
mod suite;
#[path = "../../gateway/tests/gateway/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use futures_util::FutureExt;
use proxy::Proxy;
use semel_contract::profile::presets;
use semel_store::postgres::{Options, PostgresStore};
use service::{LAYER, SERVES, SETTLING, STORE, route_name};
use suite::{Run, SUITE, Service, Started, connect, exchange, until_ready};

const SERVER: &str = "SEMEL_TEST_POSTGRES";

/// A database of its own on the tests' server, with semel's functions and the service's tables.
async fn database(name: &str) -> String {
    let server = std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
    let name = format!("once_{name}_{}", std::process::id());
    connect(&server)
        .await
        .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
        .await
        .expect("a database");
    let (place, _) = server.rsplit_once('/').expect("a URL with a database");
    let url = format!("{place}/{name}");
    drop(PostgresStore::connect(&url, Options::default()).await.expect("the store opens"));
    for statement in SUITE["schema"].as_array().expect("a list") {
        connect(&url).await.batch_execute(statement.as_str().expect("SQL")).await.expect("it runs");
    }
    url
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address").port()
}

/// This program as a service on a port.
fn child(test: &str, kind: &str, port: u16, handlers: &str, store: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).stdout(Stdio::null());
    command.env(SERVES, kind).env("PORT", port.to_string()).env("DATABASE_URL", handlers).env(STORE, store);
    command
}

/// Plays every scenario that the service can show, and says of each that failed why.
async fn play_all(service: &Service, least: usize) {
    let (mut played, mut failed) = (0, Vec::new());
    for scenario in SUITE["scenarios"].as_array().expect("a list") {
        let needs = scenario["needs"].as_array().into_iter().flatten();
        if needs.into_iter().any(|need| !service.offers.contains(&need.as_str().expect("a word"))) {
            continue;
        }
        played += 1;
        let name = scenario["name"].as_str().expect("a name");
        let run = std::panic::AssertUnwindSafe(Run::play(scenario, service)).catch_unwind().await;
        println!("{} {name}", if run.is_ok() { "ok    " } else { "FAILED" });
        if run.is_err() {
            failed.push(name);
        }
    }
    assert_eq!(failed, Vec::<&str>::new(), "of {played} scenarios");
    assert!(played >= least, "only {played} scenarios were played");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_layer_does_what_every_library_does() {
    service::serve_if_told().await;
    let url = database("layer").await;
    let (proxy, port) = (Proxy::start(&url).await, free_port());
    let test = "the_rust_layer_does_what_every_library_does";
    let command = child(test, LAYER, port, &proxy.url(&url), &url);
    let offers =
        &["proxy", "process", "header-lists", "reruns", "own-transaction", "large-answers", "tenants"];
    let service = Service::start(command, port, &url, proxy, offers).await;
    play_all(&service, 38).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_before_a_service_that_settles_does_what_every_library_does() {
    service::serve_if_told().await;
    let url = database("gateway").await;
    let (proxy, port, behind) = (Proxy::start(&url).await, free_port(), free_port());
    let test = "a_gateway_before_a_service_that_settles_does_what_every_library_does";
    let _upstream = Started::of(child(test, SETTLING, behind, &proxy.url(&url), &url));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, settings(&url, port, behind)).expect("it is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["serve", "gate", "--config"]).arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
    let service = Service::start(command, port, &url, proxy, &["proxy", "process"]).await;
    play_all(&service, 30).await;
}

/// The service of the Python library.
fn in_python(port: u16, database: &str) -> Command {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let python = std::env::var("SEMEL_TEST_PYTHON").expect("run `cargo xtask test`: SEMEL_TEST_PYTHON");
    let mut command = Command::new(python);
    command.arg(package.join("tests/service.py")).env("PYTHONPATH", package.join("src"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("DRIVER", "psycopg");
    command.env("DATABASE_URL", database).env("PORT", port.to_string());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_requests_of_one_key_over_rust_and_python_take_effect_once() {
    const REQUESTS: usize = 200;
    service::serve_if_told().await;
    let url = database("languages").await;
    let test = "two_hundred_requests_of_one_key_over_rust_and_python_take_effect_once";
    let ports = [free_port(), free_port()];
    let _rust = Started::of(child(test, LAYER, ports[0], &url, &url));
    let _python = Started::of(in_python(ports[1], &url));
    let services = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    for service in services {
        until_ready(service).await;
    }
    let client = connect(&url).await;
    client.batch_execute("CREATE SEQUENCE once_pair").await.expect("a sequence");
    // The first takes a while, so that both processes wait for it.
    let script = r#"{"run": "once_pair", "attempts": [{"effects": ["order"], "statement": "SELECT pg_sleep(0.3)",
        "answer": {"status": 201, "headers": [["content-type", "application/json"]], "body": "{\"id\": 1,  \"a\":2}"}}]}"#;
    let request = format!(
        "POST /ietf/orders/1 HTTP/1.1\r\nHost: localhost\r\nX-Once: {}\r\nX-User: alice\r\nIdempotency-Key: pair-1\r\n\
         Content-Type: application/json\r\nContent-Length: 12\r\n\r\n{{\"amount\":5}}",
        script.replace('\n', "")
    );
    let calls: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let request = request.clone();
            tokio::spawn(async move { exchange(services[n % 2], request.as_bytes()).await })
        })
        .collect();
    let (mut told, mut fresh) = (BTreeSet::new(), 0);
    for call in calls {
        let answer = call.await.expect("no call panics").expect("an answer");
        fresh += u32::from(answer.header("idempotency-replayed").is_none());
        let kind = answer.header("content-type").map(str::to_owned);
        told.insert((answer.status, kind, String::from_utf8(answer.body).expect("text")));
    }
    let kind = Some("application/json".to_owned());
    assert_eq!(told, BTreeSet::from([(201, kind, r#"{"id": 1,  "a":2}"#.to_owned())]), "200 equal answers");
    assert_eq!(fresh, 1, "one of them is the first");
    let effects = "SELECT count(*) FROM once_effect WHERE run = 'once_pair'";
    let effects: i64 = client.query_one(effects, &[]).await.expect("a count").get(0);
    assert_eq!(effects, 1, "one effect");
}

fn settings(store: &str, port: u16, behind: u16) -> String {
    let routes = presets::PRESETS.iter().map(|(name, _)| {
        let route = route_name(name);
        // The gateway's own default is an optional key.
        let key = if *name == "ietf" { "key = \"required\"\n" } else { "" };
        format!(
            "[route.{route}]\n{key}profile = \"{name}\"\nmatch = \"POST /{name}/orders/{{id}}\"\nguarantee = \"atomic\"\n\
             lease = \"1s\"\n"
        )
    });
    format!(
        "store = \"{store}\"\nidentity = \"trusted:X-User\"\n[gate]\nlisten = \"127.0.0.1:{port}\"\n\
         admin = \"127.0.0.1:{}\"\naccess_log = \"off\"\n\
         upstream = {{ url = \"http://127.0.0.1:{behind}\", host = \"upstream\" }}\n{}",
        free_port(),
        routes.collect::<String>()
    )
}
