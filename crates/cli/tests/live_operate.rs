//! `semel gate …` and `semel migrate` on a PostgreSQL that others use at the same time: the database is asked directly.
//! Needs the server of `cargo xtask test`: without it these tests fail, and never skip.

use std::process::{Command, Output};
use std::time::Duration;

use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::Guarantee;
use semel_contract::scope::Scope;
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{About, ClaimOutcome, ClaimRequest, ClaimStore, Id, Settlement};
use serde_json::{Value, json};

/// A database of this test's own.
struct Database {
    name: String,
    url: String,
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

impl Database {
    async fn create(purpose: &str) -> Self {
        let server = std::env::var("SEMEL_TEST_POSTGRES")
            .expect("SEMEL_TEST_POSTGRES is not set: run `cargo xtask test`");
        let name = format!("semel_{purpose}_{}", std::process::id());
        let admin = client(&server).await;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await.expect("an old one goes");
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database");
        let authority = server.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a URL");
        Self { url: format!("postgres://{authority}/{name}"), name }
    }

    async fn drop(self) {
        let server = std::env::var("SEMEL_TEST_POSTGRES").expect("it was set");
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        client(&server).await.batch_execute(&sql).await.expect("the database goes");
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(args)
            .args(["--store", &self.url])
            .env("USER", "carol")
            .current_dir(std::env::temp_dir());
        command.output().expect("semel runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// Leaves an unknown outcome behind, and says its record's id.
async fn unknown(store: &PostgresStore, key: &str) -> String {
    let id = Id {
        scope: Scope::of(None, Some("alice"), Some("pay")),
        key: Key::parse(&Format::Printable255, key).expect("a key"),
    };
    let request = ClaimRequest {
        id: id.clone(),
        how: Claim::New,
        replaces: None,
        nonce: 7,
        lease: Duration::from_secs(30),
        late: Duration::from_secs(60),
        guarantee: Guarantee::Fenced,
        fingerprint: None,
        payload_hash: None,
        rotation: None,
        about: About { endpoint: "pay".to_owned(), principal: "alice".to_owned(), ..About::default() }.into(),
        terms: None,
    };
    let ClaimOutcome::Won { fence, .. } = store.claim(request).await.expect("the store answers") else {
        panic!("expected to win")
    };
    let lifetime = presets::ietf().lifetime;
    store.settle(&id, fence, Settlement::Unknown, &lifetime).await.expect("the store answers");
    fence.number.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_migrated_looked_into_and_resolved_while_a_gate_uses_it() {
    let database = Database::create("operate").await;
    let plan = database.json(&["migrate", "--dry-run"]);
    assert_eq!((&plan["found"], plan["missing"].as_array().map(Vec::len)), (&json!(0), Some(17)));
    let output = database.run(&["gate", "list"]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(6), "{why}");
    assert!(why.contains("semel migrate"), "it says what to do: {why}");
    assert_eq!(database.json(&["migrate"])["applied"][4]["name"], "operating");
    assert_eq!(database.json(&["migrate"])["missing"], json!([]));

    let gate = PostgresStore::connect(&database.url, Options::default()).await.expect("the store opens");
    let id = unknown(&gate, "k").await;
    let listed = database.json(&["gate", "list", "--state", "unknown", "--principal", "alice"]);
    assert_eq!(listed["records"][0]["id"], json!(id));
    let early = database.run(&["gate", "resolve", &id, "--as", "not-applied", "--reason", "x"]);
    assert_eq!(early.status.code(), Some(5));
    let resolved = database.json(&["gate", "resolve", "k", "--as", "applied", "--status", "201"]);
    assert_eq!((&resolved["state"], &resolved["answer"]["status"]), (&json!("settled"), &json!(201)));
    assert_eq!(database.json(&["gate", "show", &id])["records"][0]["state"], "settled", "by its old id");
    assert_eq!(database.json(&["gate", "audit"])["audit"][0]["actor"], "carol (command line)");

    assert_eq!(gate.restores().await.expect("the store answers"), []);
    database.json(&["gate", "restored", "--backup-time", "2026-01-01T00:00:00Z", "--yes"]);
    let known = gate.restores().await.expect("the store answers");
    assert_eq!(known.len(), 1, "once the command has ended, every process knows");
    drop(gate);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_is_not_ready_while_its_database_is_away() {
    use tower::ServiceExt;
    let database = Database::create("away").await;
    let store = PostgresStore::connect(&database.url, Options::default()).await.expect("the store opens");
    let access = semel_console::Access::within_process();
    let router = semel_console::Console::on(std::sync::Arc::new(store), access).router();
    let ready = async || {
        let request = http::Request::get("/readyz").body(axum::body::Body::empty()).expect("a request");
        router.clone().oneshot(request).await.expect("the router answers").status().as_u16()
    };
    assert_eq!(ready().await, 200);
    let server = client(&std::env::var("SEMEL_TEST_POSTGRES").expect("it was set")).await;
    let allow = async |allowed: bool| {
        let sql = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allowed}", database.name);
        server.batch_execute(&sql).await.expect("the server may be told so");
    };
    allow(false).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    server.execute(end, &[&database.name]).await.expect("sessions can be ended");
    assert_eq!(ready().await, 503);
    allow(true).await;
    let mut status = 0;
    for _ in 0..50 {
        status = ready().await;
        if status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status, 200, "it is back by itself");
    drop(router);
    database.drop().await;
}
