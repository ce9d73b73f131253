//! Handlers that end their transaction by themselves and go on, on real PostgreSQL: what they write then stands without a record,
//! and is never written twice.
#![cfg(feature = "postgres")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use deadpool_postgres::{Client, Manager, Pool};
use http_body_util::BodyExt;
use semel_contract::identity::Identity;
use semel_contract::profile::{Profile, presets};
use semel_contract::record::{Guarantee, State as RecordState};
use semel_gate::postgres::Grant;
use semel_gate::{GateLayer, Route, SettleError};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{ClaimStore, Filter};
use tokio_postgres::NoTls;
use tower::ServiceExt;

const SERVER: &str = "SEMEL_TEST_POSTGRES";

/// A service with a database of its own, whose gate is in front of it.
struct World {
    pool: Pool,
    store: Arc<PostgresStore>,
    app: Router,
}

impl World {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var(SERVER)
            .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
        let name = format!("outside_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .expect("a database");
        let (place, _) = server.rsplit_once('/').expect("a URL with a database");
        let url = format!("{place}/{name}");
        let options = Options { connections: 2, ..Options::default() };
        let store = Arc::new(PostgresStore::connect(&url, options).await.expect("the store opens"));
        let manager = Manager::new(url.parse().expect("a URL"), NoTls);
        let pool = Pool::builder(manager).max_size(4).build().expect("a pool");
        let client = pool.get().await.expect("a connection");
        client.batch_execute("CREATE TABLE public.effect (key text)").await.expect("a table");
        let gate = GateLayer::builder(Arc::clone(&store) as Arc<dyn ClaimStore>)
            .identity("trusted:X-User".parse::<Identity>().expect("an identity"))
            .route(
                Route::new("orders", "POST /{how}")
                    .expect("a pattern")
                    .profile(Profile { guarantee: Guarantee::Atomic, ..presets::ietf() }),
            );
        let gate = gate.build().expect("a safe gate");
        let app = Router::new().route("/{how}", post(handle)).with_state(pool.clone()).layer(gate);
        Self { pool, store, app }
    }

    /// Sends a request of that kind, whose name is its key: the status, the problem and what is said of the outcome.
    async fn send(&self, how: &str) -> (u16, String, String) {
        let request = Request::post(format!("/{how}")).header("x-user", "alice");
        let request = request.header("idempotency-key", how).body(Body::empty()).expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("the gate answers");
        let (parts, body) = response.into_parts();
        let outcome =
            parts.headers.get("semel-outcome").map(|value| value.to_str().expect("text").to_owned());
        let body = body.collect().await.expect("a body").to_bytes();
        let problem = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let problem = problem.and_then(|body| Some(body["type"].as_str()?.rsplit(':').next()?.to_owned()));
        (parts.status.as_u16(), problem.unwrap_or_default(), outcome.unwrap_or_default())
    }

    async fn effects(&self, key: &str) -> i64 {
        let client = self.pool.get().await.expect("a connection");
        let sql = "SELECT count(*) FROM public.effect WHERE key = $1";
        client.query_one(sql, &[&key]).await.expect("a count").get(0)
    }

    async fn unknowns(&self) -> Vec<String> {
        let filter = Filter { state: Some(RecordState::Unknown), limit: 100, ..Filter::default() };
        let entries = self.store.list(&filter).await.expect("a list");
        entries.iter().map(|entry| entry.id.key.as_str().to_owned()).collect()
    }
}

const EFFECT: &str = "INSERT INTO public.effect (key) VALUES ($1)";

/// What a handler of that name does between entering and leaving.
async fn misuse(client: &Client, how: &str) -> Result<StatusCode, SettleError> {
    client.execute(EFFECT, &[&format!("{how}, inside")]).await?;
    for (word, statement) in [
        ("rolls-back", "ROLLBACK"),
        ("commits", "COMMIT"),
        ("begins-anew", "ROLLBACK; BEGIN"),
        ("chains", "ROLLBACK AND CHAIN"),
        ("swallows", "SELECT 1 / 0"),
        ("nests", "SAVEPOINT s"),
    ] {
        if how.contains(word) {
            // It takes no notice of a refusal.
            let _ = client.batch_execute(statement).await;
        }
    }
    if how.contains("passes-on") {
        client.batch_execute("COMMIT").await?;
    }
    if how.contains("writes") {
        client.execute(EFFECT, &[&how]).await?;
    }
    if how.contains("keeps") {
        client.batch_execute("COMMIT").await?;
    }
    if how.contains("disturbed") {
        disturb(client, how).await;
    }
    match how {
        _ if how.contains("fails") => Err(SettleError::failed("no stock")),
        _ if how.contains("conflicts") => Ok(StatusCode::CONFLICT),
        _ => Ok(StatusCode::CREATED),
    }
}

/// Another process holds the key for a moment, and rolls back.
async fn disturb(client: &Client, how: &str) {
    let sql = "SELECT pg_advisory_lock(semel.lock_of(substring(sha256(scope || convert_to($1, 'UTF8')) FROM 1 FOR 16)))
        FROM public.scope";
    client.query(sql, &[&how]).await.expect("the lock is free");
}

async fn handle(State(pool): State<Pool>, Path(how): Path<String>, grant: Grant) -> Response {
    if how.contains("disturbed") {
        let client = pool.get().await.expect("a connection");
        client.batch_execute("CREATE TABLE public.scope (scope bytea)").await.expect("a table");
        let scope = grant.id().scope.as_bytes().to_vec();
        client.execute("INSERT INTO public.scope VALUES ($1)", &[&scope]).await.expect("a scope");
    }
    match how.starts_with("begun") {
        true => begun(&pool, &grant, &how).await.into_response(),
        false => {
            let done = grant.transact(&pool, |tx| {
                let how = how.clone();
                Box::pin(async move { misuse(tx, &how).await })
            });
            done.await.into_response()
        }
    }
}

async fn begun(pool: &Pool, grant: &Grant, how: &str) -> Result<Response, SettleError> {
    let mut connection = pool.get().await?;
    match how.contains("tokio") {
        true => {
            let tx = grant.enter(connection.transaction().await?).await?;
            tx.batch_execute("ROLLBACK").await?;
            tx.execute(EFFECT, &[&how]).await?;
            grant.commit(tx, StatusCode::CREATED).await
        }
        false => {
            let tx = grant.begin(&mut connection).await?;
            let status = misuse(&tx, how).await?;
            grant.commit(tx, status).await
        }
    }
}

fn refused() -> (u16, String, String) {
    (500, "not-settled".to_owned(), "unknown".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_writes_outside_of_its_transaction_is_unknown_and_never_written_twice() {
    let world = World::new().await;
    let ways = [
        "rolls-back-writes",
        "commits-writes",
        "rolls-back-writes-fails",
        "commits-writes-fails",
        "rolls-back-writes-conflicts",
        "begins-anew-writes-keeps",
        "begins-anew-writes-keeps-fails",
        "begun-rolls-back-writes",
        "begun-commits-writes",
        "begun-rolls-back-writes-conflicts",
        "begun-tokio",
    ];
    for how in ways {
        assert_eq!(world.send(how).await, refused(), "{how}");
        let again = world.send(how).await;
        assert_eq!((again.0, again.1.as_str()), (409, "outcome-unknown"), "{how}");
        assert_eq!(
            (world.effects(how).await, world.effects(&format!("{how}, inside")).await),
            (1, 0),
            "{how}"
        );
    }
    let mut unknowns = world.unknowns().await;
    unknowns.sort();
    let mut ways = ways.map(str::to_owned);
    ways.sort();
    assert_eq!(unknowns, ways, "an operator finds each of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_only_ends_its_transaction_is_taken_for_one_that_wrote() {
    let world = World::new().await;
    for how in ["rolls-back", "commits", "chains", "begins-anew-writes", "passes-on", "rolls-back-fails"] {
        assert_eq!(world.send(how).await, refused(), "{how}");
        assert_eq!(world.send(how).await.1, "outcome-unknown", "{how}");
        assert_eq!(world.effects(how).await, 0, "{how}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_left_its_transaction_frees_the_key() {
    let world = World::new().await;
    for (how, status) in [
        ("swallows", 500),
        ("nests", 500),
        ("fails", 500),
        ("conflicts", 409),
        ("swallows-fails", 500),
        ("begun-swallows", 500),
        ("begun-nests", 500),
        ("begun-conflicts", 409),
    ] {
        for _ in 0..2 {
            let (seen, problem, outcome) = world.send(how).await;
            assert_eq!((seen, outcome.as_str()), (status, ""), "{how}");
            assert_ne!(problem, "outcome-unknown", "{how}");
        }
        assert_eq!(world.effects(&format!("{how}, inside")).await, 0, "{how}");
    }
    assert!(world.unknowns().await.is_empty());
}

/// While another process has the key, nothing can be marked: it is tried again until that one is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_process_enters_meanwhile_is_marked_once_that_one_rolls_back() {
    let world = World::new().await;
    let how = "begun-rolls-back-writes-disturbed";
    let release = async {
        let client = world.pool.get().await.expect("a connection");
        let holders = "FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let held = format!(
            "SELECT {holders} AND granted AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'transactionid')"
        );
        while client.query(&held, &[]).await.expect("a list").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Longer than the first tries.
        tokio::time::sleep(Duration::from_millis(600)).await;
        client.execute(&format!("SELECT pg_terminate_backend(pid) {holders}"), &[]).await.expect("it ends");
    };
    let (told, ()) = tokio::join!(world.send(how), release);
    assert_eq!(told, refused());
    let again = world.send(how).await;
    assert_eq!((again.0, again.1.as_str(), world.effects(how).await), (409, "outcome-unknown", 1));
}
