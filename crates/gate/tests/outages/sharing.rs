//! What the gate asks of a healthy database: few commits for many requests, and never a conflict with a handler's own
//! transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use deadpool_postgres::Pool;
use semel_contract::identity::Identity;
use semel_gate::postgres::Grant;
use semel_gate::{GateLayer, Route};
use tokio_postgres::IsolationLevel;

use crate::client::attempt;
use crate::shop::{Shop, connect, failed, pool};

const TASKS: u64 = 64;
const STORM: Duration = Duration::from_secs(5);
/// The share of a commit that a request may cost.
const COMMITS_PER_REQUEST_MAX: f64 = 0.25;
/// A session reports what it committed at most a second late.
const STATISTICS_LATE: Duration = Duration::from_millis(2500);

async fn committed(shop: &Shop) -> i64 {
    let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    connect(&shop.url).await.query_one(sql, &[]).await.expect("statistics").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fenced_requests_share_commits() {
    let _turn = crate::turn().await;
    let shop = Arc::new(Shop::create().await);
    tokio::time::sleep(STATISTICS_LATE).await;
    let (commits_before, transactions_before) = (committed(&shop).await, shop.store.statements());
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (shop, next) = (Arc::clone(&shop), Arc::clone(&next));
            tokio::spawn(async move {
                while started.elapsed() < STORM {
                    let key = format!("f-{}", next.fetch_add(1, Ordering::Relaxed));
                    let attempt = attempt(&shop.app, "/idle", &key).await;
                    assert_eq!(attempt.status, 201, "{attempt:?}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    let (requests, took) = (next.load(Ordering::Relaxed) as f64, started.elapsed());
    let transactions = (shop.store.statements() - transactions_before) as f64 / requests;
    tokio::time::sleep(STATISTICS_LATE).await;
    let commits = (committed(&shop).await - commits_before) as f64 / requests;
    println!(
        "{requests} fenced requests in {took:.1?} over {TASKS} tasks: {commits:.3} commits and {transactions:.3} \
         transactions a request"
    );
    assert!(commits < COMMITS_PER_REQUEST_MAX, "{commits:.3} commits a request");
    assert!(transactions < COMMITS_PER_REQUEST_MAX, "{transactions:.3} transactions a request");
}

/// A short lease, which is renewed in time also on a slow machine, and a handler that outlives it more than twice.
const LEASE: Duration = Duration::from_secs(2);
const HANDLER: Duration = Duration::from_millis(5200);

/// Sees one state of the database from its first statement to its commit: whatever is written meanwhile to a row that it
/// then writes makes it fail.
async fn repeatable(State(pool): State<Pool>, grant: Grant) -> Response {
    let key = grant.id().key.as_str();
    let work = async || {
        let mut connection = pool.get().await.map_err(failed)?;
        let builder = connection.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let tx = grant.enter(builder.start().await.map_err(failed)?).await?;
        tx.execute("INSERT INTO public.effect (key) VALUES ($1)", &[&key]).await.map_err(failed)?;
        tokio::time::sleep(HANDLER).await;
        grant.commit(tx, (StatusCode::CREATED, key.to_owned())).await
    };
    work().await.into_response()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatable_read_handler_outlives_every_lease() {
    let _turn = crate::turn().await;
    const REQUESTS: usize = 10;
    let shop = Shop::create().await;
    let gate = GateLayer::builder(Arc::clone(&shop.store))
        .identity("trusted:X-User".parse::<Identity>().expect("an identity"))
        .route(Route::new("slow", "POST /atomic").expect("a pattern").atomic().lease(LEASE))
        .build()
        .expect("a safe gate");
    let app = Router::new().route("/atomic", post(repeatable)).with_state(pool(&shop.url)).layer(gate);
    let calls: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move { attempt(&app, "/atomic", &format!("a-{n}")).await })
        })
        .collect();
    let mut keys = Vec::new();
    for (n, call) in calls.into_iter().enumerate() {
        let attempt = call.await.expect("no call panics");
        assert_eq!(attempt.status, 201, "{attempt:?}");
        keys.push(format!("a-{n}"));
    }
    let books = shop.books().await;
    books.balance(&keys);
    books.agree_on(|_| true);
    let leases: i64 = connect(&shop.url)
        .await
        .query_one("SELECT count(*) FROM semel.lease", &[])
        .await
        .expect("leases")
        .get(0);
    assert_eq!(leases, 0, "a handler that enters needs no lease");
}
