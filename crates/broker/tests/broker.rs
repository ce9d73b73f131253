//! The broker on SQLite, in memory and in a file.

mod suite;

use std::sync::Arc;

use semel_broker::{Broker, Parts, Published, database};
use semel_delivery::relay::store::sql::Database;
use semel_store::clock::SystemClock;

async fn memory() -> Arc<dyn Database> {
    Arc::new(database::memory(Arc::new(SystemClock)).unwrap())
}

on_every_database!(memory);

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_what_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.db");
    let open = || Arc::new(database::open_file(&path, Arc::new(SystemClock)).unwrap()) as Arc<dyn Database>;
    assert_eq!(database::version(&path).unwrap().0, 0);
    let first = {
        let world = World::new(open(), Settings::default()).await;
        accepting::fifty_parallel_first_sends_are_one_message(world).await;
        let parts = Parts::new(open());
        let broker = Broker::open(parts, Settings::default()).await.unwrap();
        let caller = suite::kit::caller("alice");
        match broker.publish(&caller, suite::kit::draft("alice", "one", "x")).await {
            Published::Duplicate(receipt) => receipt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first.client_message_id, "one");
    let version = database::version(&path).unwrap();
    assert_eq!(version.0, version.1);
}

#[tokio::test]
async fn a_retention_below_seven_days_does_not_open() {
    let settings =
        Settings { dedupe_retention: std::time::Duration::from_secs(6 * 86_400), ..Settings::default() };
    let error = Broker::open(Parts::new(memory().await), settings).await.unwrap_err();
    assert!(error.to_string().contains("at least 7 days"), "{error}");
}

/// Clocks that are set by hand.
#[derive(Default)]
struct Clocks(std::sync::atomic::AtomicI64, std::sync::atomic::AtomicU64);

impl semel_store::clock::Clock for Clocks {
    fn read(&self) -> semel_store::clock::Reading {
        use std::sync::atomic::Ordering::SeqCst;
        let ticks = self.1.fetch_add(1, SeqCst);
        let wall = 1_700_000_000_000 + i64::try_from(ticks).unwrap() + self.0.load(SeqCst);
        semel_store::clock::Reading {
            wall: semel_contract::time::Timestamp::from_millis(wall),
            ticks: std::time::Duration::from_millis(ticks),
        }
    }
}

#[tokio::test]
async fn a_jump_of_the_clock_expires_nothing_until_it_is_confirmed() {
    let clocks = Arc::new(Clocks::default());
    let db = Arc::new(database::memory(Arc::clone(&clocks) as Arc<dyn semel_store::clock::Clock>).unwrap());
    let world = World::new(db, Settings::default()).await;
    let caller = suite::kit::caller("alice");
    suite::kit::accepted(world.broker.publish(&caller, suite::kit::draft("alice", "one", "x")).await);
    clocks.0.store(8 * 86_400_000, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(world.broker.sweep().await.unwrap(), semel_broker::Swept::default());
    let again = world.broker.publish(&caller, suite::kit::draft("alice", "one", "x")).await;
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
    let web = suite::web::Web::new(&world);
    let shown = web.operate(axum::http::Method::GET, "/v1/clock", "").await.json();
    assert!(shown["jump_ms"].as_i64().unwrap() > 7 * 86_400_000, "{shown}");
    assert!(
        web.operate(axum::http::Method::GET, "/metrics", "")
            .await
            .text
            .contains("semel_broker_clock_frozen 1")
    );
    let headers = [("content-type", "application/json"), ("semel-actor", "ops")];
    let confirm = |body: &'static str| {
        let asked = suite::web::request(axum::http::Method::POST, "/v1/clock/confirm", None, &headers, body);
        let router = web.admin.clone();
        async move { suite::web::told(tower::ServiceExt::oneshot(router, asked).await.unwrap()).await }
    };
    assert_eq!(confirm(r#"{"reason":" "}"#).await.status, axum::http::StatusCode::BAD_REQUEST);
    for half in ["INSERT INTO audit_log", "INSERT INTO operator_audit"] {
        world.db.watch.fail(Some(half));
        let failed = confirm(r#"{"reason":"it was set right"}"#).await;
        assert_eq!(failed.status, axum::http::StatusCode::SERVICE_UNAVAILABLE, "{}", failed.text);
        world.db.watch.fail(None);
        assert!(world.broker.clock().await.unwrap().1 > 0, "nothing is confirmed of which nobody is told");
    }
    let confirmed = confirm(r#"{"reason":"it was set right"}"#).await;
    assert_eq!(
        (confirmed.status, &confirmed.json()["jump_ms"]),
        (axum::http::StatusCode::OK, &serde_json::Value::Null)
    );
    assert_eq!(confirm(r#"{"reason":"again"}"#).await.status, axum::http::StatusCode::CONFLICT);
    let noted =
        "audit_log WHERE event = 'clock-confirmed' AND sender = 'ops' AND detail LIKE '%it was set right'";
    assert_eq!(world.rows(noted).await, 1);
    world.broker.rebuild().await.unwrap();
    assert_eq!(world.rows(noted).await, 1, "what people did cannot be made again");
    assert_eq!(world.broker.sweep().await.unwrap().ids, 1);
}

/// A limiter that never answers in time.
struct Away;

impl semel_store::limits::Limiter for Away {
    fn request<'a>(
        &'a self,
        _: &'a [u8],
        _: semel_contract::profile::Rate,
        _: semel_contract::time::Timestamp,
    ) -> semel_store::Reply<'a, semel_store::limits::Verdict> {
        Box::pin(std::future::pending())
    }

    fn admit<'a>(
        &'a self,
        _: semel_store::limits::Admission<'a>,
        _: semel_contract::time::Timestamp,
    ) -> semel_store::Reply<'a, semel_store::limits::Verdict> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_limiter_that_is_away_has_a_stand_in_and_that_is_told() {
    let world = World::new(memory().await, accepting::three_a_minute()).await;
    let own = Arc::new(semel_store::limits::MemoryLimiter::default());
    let fallback = semel_store::limits::Fallback::new(Arc::new(Away), own);
    let parts = Parts::new(Arc::clone(&world.db) as Arc<dyn Database>).limited_by(fallback);
    let broker = Broker::open(parts, accepting::three_a_minute()).await.unwrap();
    let alice = suite::kit::caller("alice");
    for id in ["a", "b", "c"] {
        suite::kit::accepted(broker.publish(&alice, suite::kit::draft("alice", id, "x")).await);
    }
    let fourth = broker.publish(&alice, suite::kit::draft("alice", "d", "x")).await;
    assert!(matches!(fourth, Published::Refused(semel_broker::Refusal::BudgetSpent { .. })), "{fourth:?}");
    let metrics = broker.metrics().await.unwrap();
    assert!(metrics.contains("semel_broker_limiter_fallbacks_total 4"), "{metrics}");
}

/// S4-87. Nobody asks for it: the alert is rung by the broker itself.
#[tokio::test(start_paused = true)]
async fn orphans_are_looked_for_without_being_asked() {
    let world = World::new(memory().await, Settings::default()).await;
    suite::kit::accepted(
        world.broker.publish(&suite::kit::caller("alice"), suite::kit::draft("alice", "one", "x")).await,
    );
    let running = world.broker.start();
    world.execute("DELETE FROM message_history").await;
    tokio::time::sleep(std::time::Duration::from_secs(90)).await;
    let metrics = world.broker.metrics().await.unwrap();
    assert!(!metrics.contains("semel_broker_orphans 0"), "{metrics}");
    running.stop().await;
}

/// A file of the release before: it is brought up to date, and what is counted since then is right.
#[tokio::test]
async fn a_file_of_version_1_goes_on_where_it_was() {
    use semel_store::sqlite::rusqlite::Connection;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.db");
    let old = Connection::open(&path).unwrap();
    old.execute_batch("CREATE TABLE broker_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;")
        .unwrap();
    old.execute_batch(include_str!("../migrations/sqlite_0001_broker.sql")).unwrap();
    old.execute_batch(
        "INSERT INTO broker_meta (name, value) VALUES ('schema', 1) ON CONFLICT (name) DO UPDATE SET value = 1;
         INSERT INTO mesh (id, created_at) VALUES ('m', 1);
         INSERT INTO member (mesh_id, member, role, joined_at) VALUES ('m', 'alice', 'owner', 1);
         INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ('ab', 'm', 'alice');
         INSERT INTO line (line, mesh_id, kind, ref, created_at) VALUES (1, 'm', 'topic', 't', 1), (2, 'm', 'member', 'alice', 1);
         INSERT INTO topic_subscription (line, member, since) VALUES (1, 'alice', 1), (2, 'alice', 1);
         INSERT INTO ack_cursor (line, member, consumer, updated_at) VALUES (1, 'alice', '', 1);
         INSERT INTO webhook (mesh_id, name, url, line, secrets, ordered, created_at) VALUES ('m', 'w', 'x', 1, '[]', 1, 1);
         UPDATE line SET webhooks = 1 WHERE line = 1;",
    )
    .unwrap();
    drop(old);
    assert_eq!(database::version(&path).unwrap().0, 1);
    let db = Arc::new(database::open_file(&path, Arc::new(SystemClock)).unwrap());
    let version = database::version(&path).unwrap();
    assert_eq!(version.0, version.1);
    let broker = Broker::open(Parts::new(db), Settings::default()).await.unwrap();
    assert_eq!(broker.orphans().await.unwrap().findings, Vec::<String>::new());
    let alice = suite::kit::caller("alice");
    suite::kit::accepted(broker.publish(&alice, suite::kit::draft("alice", "a", "x")).await);
    broker.put_topic("m", "u", "subscribers").await.unwrap();
    broker.put_subscription("m", "u", "alice").await.unwrap();
    assert_eq!(broker.orphans().await.unwrap().findings, Vec::<String>::new());
}
