//! The gate on real PostgreSQL: two processes, small pools, killed processes, and a database that is away.
#![cfg(all(feature = "failpoints", feature = "postgres"))]

mod crash;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use crash::{Found, RUNS, Task, building, gate, generated_at, judge, key, send};
use deadpool_postgres::{Manager, Pool};
use semel_contract::record::{Guarantee, State as RecordState};
use semel_gate::postgres::Grant;
use semel_gate::{SettleError, Step};
use semel_store::postgres::{Options, PostgresStore};
use semel_store::{ClaimStore, Filter};
use tokio_postgres::NoTls;

const SERVER: &str = "SEMEL_TEST_POSTGRES";

/// A database of its own on the tests' server.
struct Shop {
    url: String,
    pool: Pool,
}

fn failed(error: impl std::fmt::Display) -> SettleError {
    SettleError::failed(error.to_string())
}

impl Shop {
    async fn create(name: &str) -> Self {
        let server = std::env::var(SERVER)
            .unwrap_or_else(|_| panic!("run `cargo xtask test`, which starts PostgreSQL, or set {SERVER}"));
        let name = format!("gate_{name}_{}", std::process::id());
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        client
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .expect("a database");
        let (place, _) = server.rsplit_once('/').expect("a URL with a database");
        let shop = Self::at(&format!("{place}/{name}"), 16);
        drop(shop.store(4).await);
        shop.sql("CREATE TABLE public.effect (key text NOT NULL)").await;
        shop
    }

    fn at(url: &str, connections: usize) -> Self {
        let manager = Manager::new(url.parse().expect("a URL"), NoTls);
        let pool = Pool::builder(manager).max_size(connections).build().expect("a pool");
        Self { url: url.to_owned(), pool }
    }

    async fn store(&self, connections: usize) -> Arc<PostgresStore> {
        let options = Options { connections, ..Options::default() };
        Arc::new(PostgresStore::connect(&self.url, options).await.expect("the store opens"))
    }

    async fn sql(&self, sql: &str) {
        self.pool.get().await.expect("a connection").batch_execute(sql).await.expect("it runs");
    }

    async fn effects(&self, key: &str) -> u32 {
        let client = self.pool.get().await.expect("a connection");
        let row = client
            .query_one("SELECT count(*) FROM public.effect WHERE key = $1", &[&key])
            .await
            .expect("a count");
        u32::try_from(row.get::<_, i64>(0)).expect("a small count")
    }

    fn app(&self, store: &Arc<PostgresStore>, guarantee: Guarantee) -> Router {
        let handler = match guarantee {
            Guarantee::Atomic => post(atomic),
            Guarantee::Fenced | Guarantee::None => post(fenced),
        };
        let gate = gate(Arc::clone(store) as _, guarantee);
        Router::new().route("/orders", handler).with_state(self.pool.clone()).layer(gate)
    }
}

const EFFECT: &str = "INSERT INTO public.effect (key) VALUES ($1)";

async fn insert(client: &tokio_postgres::Client, key: &str) -> Result<(), SettleError> {
    client.execute(EFFECT, &[&key]).await.map_err(failed)?;
    Ok(())
}

/// Keys that begin so are run by a closure, others by BEGIN and COMMIT.
const BY_CLOSURE: char = 'c';

async fn atomic(state: State<Pool>, grant: Grant) -> Response {
    if grant.id().key.as_str().starts_with(BY_CLOSURE) {
        return transacts(state, grant).await;
    }
    let State(pool) = state;
    let work = async || {
        let mut connection = pool.get().await.map_err(failed)?;
        let tx = grant.begin(&mut connection).await?;
        insert(&tx, grant.id().key.as_str()).await?;
        grant.commit(tx, (StatusCode::CREATED, "done")).await
    };
    work().await.into_response()
}

async fn fenced(State(pool): State<Pool>, grant: Grant) -> Response {
    let client = pool.get().await.expect("a connection");
    client
        .execute("INSERT INTO public.effect (key) VALUES ($1)", &[&grant.id().key.as_str()])
        .await
        .expect("an effect");
    (StatusCode::CREATED, "done").into_response()
}

/// Sends so many requests with one key at once.
async fn storm(app: &Router, key: &str, count: usize) -> Vec<(u16, String)> {
    let at = generated_at();
    let calls: Vec<_> = (0..count)
        .map(|_| {
            let (app, key, at) = (app.clone(), key.to_owned(), at.clone());
            tokio::spawn(async move { send(app, &key, &at).await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.expect("no call panics"));
    }
    answers
}

const OTHER: &str = "SEMEL_TEST_OTHER_PROCESS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_over_two_processes_takes_effect_once() {
    if let Ok(url) = std::env::var(OTHER) {
        let (url, key) = url.split_once('|').expect("a URL and a key");
        let shop = Shop::at(url, 8);
        let store = shop.store(4).await;
        for (status, body) in storm(&shop.app(&store, Guarantee::Fenced), key, 100).await {
            println!("answer {status} {body}");
        }
        return;
    }
    let shop = Shop::create("two").await;
    let key = key(0, Step::Accepted);
    let other = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "one_key_over_two_processes_takes_effect_once", "--nocapture"])
        .env(OTHER, format!("{}|{key}", shop.url))
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process starts");
    let store = shop.store(4).await;
    let mut answers = storm(&shop.app(&store, Guarantee::Fenced), &key, 100).await;
    let output = other.wait_with_output().expect("the other process ends");
    let text = String::from_utf8(output.stdout).expect("text");
    let others = text
        .lines()
        .filter_map(|line| line.split_once("answer "))
        .map(|(_, answer)| answer.split_once(' ').expect("two words"));
    answers.extend(others.map(|(status, body)| (status.parse().expect("a status"), body.to_owned())));
    assert_eq!(answers.len(), 200);
    assert!(answers.iter().all(|answer| *answer == (201, "done".to_owned())), "{answers:?}");
    assert_eq!(shop.effects(&key).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_two_connections_never_deadlocks() {
    for guarantee in [Guarantee::Fenced, Guarantee::Atomic] {
        let shop = Shop::create(&format!("small_{}", guarantee.name())).await;
        let small = Shop::at(&shop.url, 2);
        let store = small.store(2).await;
        let app = small.app(&store, guarantee);
        let calls: Vec<_> = (0..200)
            .map(|n| {
                let app = app.clone();
                // Half of them share keys, so that some wait while others hold.
                let key = key(n / 2, Step::Accepted);
                tokio::spawn(async move { send(app, &key, &generated_at()).await })
            })
            .collect();
        for call in calls {
            let answered = tokio::time::timeout(Duration::from_secs(60), call).await.expect("no deadlock");
            assert_eq!(answered.expect("no call panics").0, 201);
        }
        for n in 0..100 {
            assert_eq!(shop.effects(&key(n, Step::Accepted)).await, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_no_half_truth() {
    let at = generated_at();
    if let Some(task) = Task::of_this_process() {
        let shop = Shop::at(&task.world, 4);
        let store = shop.store(2).await;
        let app = shop.app(&store, task.guarantee);
        task.stop_at_step();
        send(app, &task.key, &at).await;
        unreachable!("every step is taken");
    }
    let shop = Shop::create("crash").await;
    let store = shop.store(4).await;
    for (first, guarantee) in
        [('a', Guarantee::Atomic), (BY_CLOSURE, Guarantee::Atomic), ('f', Guarantee::Fenced)]
    {
        let app = shop.app(&store, guarantee);
        // How the handler writes makes a difference to its own transaction alone.
        let of_walk = Step::ALL.into_iter().filter(|_| first != BY_CLOSURE);
        let of_transaction = Step::OF_TRANSACTION.into_iter().filter(|_| guarantee == Guarantee::Atomic);
        for step in of_walk.chain(of_transaction) {
            // An atomic handler has settled before its answer is read, and the gate settles nothing.
            if guarantee == Guarantee::Atomic && matches!(step, Step::Captured | Step::Settled) {
                continue;
            }
            let tasks: Vec<Task> = (0..RUNS)
                .map(|run| Task {
                    world: shop.url.clone(),
                    guarantee,
                    step,
                    key: format!("{first}{}", &key(run, step)[1..]),
                })
                .collect();
            tasks.iter().for_each(|task| task.kill_at_step("a_killed_process_leaves_no_half_truth"));
            // Only time makes the claims of a dead process anybody's business.
            shop.sql("SELECT semel.shift_clock(31000)").await;
            for task in &tasks {
                let effects_after_crash = shop.effects(&task.key).await;
                let filter = Filter {
                    state: Some(RecordState::Settled),
                    principal: Some("alice".to_owned()),
                    limit: 100_000,
                    ..Filter::default()
                };
                let records = store.list(&filter).await.expect("the store answers");
                let has_record = records.iter().any(|entry| entry.id.key.as_str() == task.key);
                let retry = send(app.clone(), &task.key, &at).await;
                let effects_after_retry = shop.effects(&task.key).await;
                judge(task, &Found { effects_after_crash, has_record, retry, effects_after_retry });
            }
        }
    }
}

/// Writes by a closure, with headers that are never kept.
async fn transacts(State(pool): State<Pool>, grant: Grant) -> Response {
    let key = grant.id().key.to_string();
    let done = grant.transact(&pool, |tx| {
        let key = key.clone();
        Box::pin(async move {
            insert(tx, &key).await?;
            Ok((StatusCode::CREATED, [("set-cookie", "secret=1")], "done"))
        })
    });
    done.await.into_response()
}

async fn app_with(shop: &Shop, handler: axum::routing::MethodRouter<Pool>) -> Router {
    let store = shop.store(2).await;
    Router::new()
        .route("/orders", handler)
        .with_state(shop.pool.clone())
        .layer(gate(store as _, Guarantee::Atomic))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_is_run_in_a_transaction_and_committed_with_its_answer() {
    let shop = Shop::create("closure").await;
    let app = app_with(&shop, post(transacts)).await;
    let key = key(0, Step::Accepted);
    for _ in 0..2 {
        assert_eq!(send(app.clone(), &key, &generated_at()).await, (201, "done".to_owned()));
    }
    assert_eq!(shop.effects(&key).await, 1);
    let client = shop.pool.get().await.expect("a connection");
    let kept: Vec<u8> =
        client.query_one("SELECT headers FROM semel.record", &[]).await.expect("a record").get(0);
    assert!(!String::from_utf8_lossy(&kept).contains("secret"), "a cookie is never kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_one_commit() {
    const REQUESTS: u32 = 20;
    let shop = Shop::create("one_commit").await;
    let store = shop.store(2).await;
    let app = shop.app(&store, Guarantee::Atomic);
    for first in ['a', BY_CLOSURE] {
        for run in 0..REQUESTS {
            let key = format!("{first}{}", &key(run, Step::Accepted)[1..]);
            assert_eq!(send(app.clone(), &key, &generated_at()).await.0, 201);
        }
    }
    let client = shop.pool.get().await.expect("a connection");
    let together =
        "SELECT count(*) FROM public.effect e JOIN semel.record r ON r.key = e.key AND r.xmin = e.xmin";
    let together: i64 = client.query_one(together, &[]).await.expect("a count").get(0);
    assert_eq!(together, i64::from(2 * REQUESTS), "one transaction wrote both");
    // Sessions tell what they wrote a moment after they wrote it.
    let written = "SELECT relname, n_tup_ins + n_tup_upd FROM pg_stat_user_tables
        WHERE schemaname = 'semel' AND relname IN ('record', 'lease', 'opened') ORDER BY relname";
    let expected = [("lease", 0), ("opened", 0), ("record", 2 * REQUESTS)];
    let expected = expected.map(|(name, rows)| (name.to_owned(), i64::from(rows)));
    let mut seen = Vec::new();
    for _ in 0..100 {
        let rows = client.query(written, &[]).await.expect("statistics");
        seen = rows.iter().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1))).collect::<Vec<_>>();
        if seen == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(seen, expected, "nothing was claimed before, and nothing settled after");
}

/// A handler in another language: it knows the fence alone, settles by SQL, and then its answer is lost in some way.
async fn by_sql(pool: &Pool, grant: &Grant, body: &str) {
    let mut connection = pool.get().await.expect("a connection");
    let tx = connection.transaction().await.expect("a transaction");
    tx.execute(EFFECT, &[&grant.id().key.as_str()]).await.expect("an effect");
    let headers =
        serde_json::json!({"Content-Type": "text/plain", "Content-Length": "999", "Semel-Guarantee": "none"});
    let fence = grant.fence().to_string();
    let settle = "SELECT semel.settle($1::text, 201, $2::jsonb, $3::bytea)";
    tx.execute(settle, &[&fence, &headers, &body.as_bytes()]).await.expect("it settles");
    tx.commit().await.expect("it commits");
}

async fn answers_otherwise(State(pool): State<Pool>, grant: Grant) -> Response {
    by_sql(&pool, &grant, "from the record").await;
    (StatusCode::OK, "not from the record").into_response()
}

async fn breaks_off(State(pool): State<Pool>, grant: Grant) -> Response {
    by_sql(&pool, &grant, "from the record").await;
    let mut response = StatusCode::BAD_GATEWAY.into_response();
    response.extensions_mut().insert(semel_gate::NoAnswer::Reset("gone".to_owned()));
    response
}

async fn settles_while_the_gate_gives_up(State(pool): State<Pool>, grant: Grant) -> Response {
    let (sent, committed) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut connection = pool.get().await.expect("a connection");
        let tx = connection.transaction().await.expect("a transaction");
        tx.execute(EFFECT, &[&grant.id().key.as_str()]).await.expect("an effect");
        let settle = "SELECT semel.settle($1::text, 201, '{}', 'from the record')";
        tx.execute(settle, &[&grant.fence().to_string()]).await.expect("it settles");
        let _ = sent.send(());
        tokio::time::sleep(Duration::from_millis(500)).await;
        tx.commit().await.expect("it commits");
    });
    committed.await.expect("it has settled, and not yet committed");
    let mut response = StatusCode::BAD_GATEWAY.into_response();
    response.extensions_mut().insert(semel_gate::NoAnswer::TimedOut("slow".to_owned()));
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_by_sql_counts_whatever_became_of_the_answer() {
    let shop = Shop::create("by_sql").await;
    for (run, handler) in [post(answers_otherwise), post(breaks_off), post(settles_while_the_gate_gives_up)]
        .into_iter()
        .enumerate()
    {
        let store = shop.store(2).await;
        let gate = building(store as _, Guarantee::Atomic).handlers_elsewhere().build().expect("a safe gate");
        let app = Router::new().route("/orders", handler).with_state(shop.pool.clone()).layer(gate);
        let key = key(run.try_into().expect("few runs"), Step::Accepted);
        for _ in 0..2 {
            assert_eq!(send(app.clone(), &key, &generated_at()).await, (201, "from the record".to_owned()));
        }
        assert_eq!(shop.effects(&key).await, 1);
    }
    let client = shop.pool.get().await.expect("a connection");
    let kept =
        "SELECT encode(headers, 'escape'), expires_at - settled_at FROM semel.record ORDER BY fence LIMIT 1";
    let row = client.query_one(kept, &[]).await.expect("a record");
    let headers: String = row.get(0);
    assert!(headers.contains("content-type") && !headers.contains("length") && !headers.contains("semel"));
    let lifetime = semel_contract::profile::presets::walker().lifetime;
    let kept_for = Duration::from_millis(row.get::<_, i64>(1).try_into().expect("a positive time"));
    assert!(kept_for <= lifetime.record() && kept_for + Duration::from_secs(60) > lifetime.record());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_executes_nothing() {
    let shop = Shop::create("away").await;
    let store = shop.store(2).await;
    let app = shop.app(&store, Guarantee::Fenced);
    let key = key(0, Step::Accepted);
    // The schema is taken away under the store: every call fails, as with a server that is gone.
    shop.sql("ALTER SCHEMA semel RENAME TO hidden").await;
    let (status, body) = send(app.clone(), &key, &generated_at()).await;
    assert_eq!((status, body.contains("STORE_UNAVAILABLE")), (503, true), "{body}");
    assert_eq!(shop.effects(&key).await, 0);
    shop.sql("ALTER SCHEMA hidden RENAME TO semel").await;
    assert_eq!(send(app, &key, &generated_at()).await.0, 201);
}
