//! The scenarios of `spec/once.json`, which every library runs too, so that they cannot drift apart: on the Rust layer, and on the gateway
//! in front of a service that settles with `semel.settle`. Needs the PostgreSQL of `cargo xtask test`.

#[path = "once/proxy.rs"]
mod proxy;
#[path = "once/service.rs"]
mod service;
#[path = "once/suite.rs"]
mod suite;
#[path = "../../gateway/tests/gateway/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

use futures_util::FutureExt;
use proxy::Proxy;
use semel_contract::profile::presets;
use semel_store::postgres::{Options, PostgresStore};
use service::{LAYER, SERVES, SETTLING, STORE, route_name};
use suite::{Run, SUITE, Service, Started, connect};

const SERVER: &str = "SEMEL_TEST_POSTGRES";

/// A database of its own on the tests' server, with semel's functions and the service's tables.
async fn database(name: &str) -> String {
    let server = std::env::var(SERVER)
        .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
    let name = format!("once_{name}_{}", std::process::id());
    connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
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
    play_all(&service, 39).await;
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
