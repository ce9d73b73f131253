//! The broker on PostgreSQL, with two brokers on one database where that matters.

mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_broker::{MemberWish, Published, database};
use semel_delivery::relay::store::postgres::Postgres;
use semel_delivery::relay::store::sql::{Asked, Database, Heard, Listening, Row, Transaction, Value};
use semel_store::postgres::Migrations;
use suite::kit::{accepted, caller, draft};
use suite::web::Web;
use tokio_postgres::NoTls;

/// A database of one test, which goes with it.
struct Base {
    inner: Postgres,
    _place: Place,
}

impl Database for Base {
    fn begin(&self) -> Asked<'_, Box<dyn Transaction>> {
        self.inner.begin()
    }

    fn read<'a>(&'a self, sql: &'a str, args: Vec<Value>) -> Asked<'a, Vec<Row>> {
        self.inner.read(sql, args)
    }

    fn now(&self) -> Asked<'_, i64> {
        self.inner.now()
    }

    fn is_owned(&self) -> bool {
        self.inner.is_owned()
    }

    fn clock_ahead(&self) -> i64 {
        self.inner.clock_ahead()
    }

    fn say<'a>(&'a self, channel: &'static str, text: &'a str) -> Asked<'a, ()> {
        self.inner.say(channel, text)
    }

    fn listen(&self, channel: &'static str, heard: Heard) -> Listening<'_> {
        self.inner.listen(channel, heard)
    }
}

/// A database of a server, without tables so far.
struct Place {
    url: String,
    server: String,
    name: String,
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database for each test, on the server that the environment names.
async fn base() -> Place {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let server =
        std::env::var("SEMEL_TEST_POSTGRES").expect("SEMEL_TEST_POSTGRES is set: run `cargo xtask test`");
    let name = format!("semel_broker_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    client(&server).await.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await.unwrap();
    let (rest, query) =
        server.split_once('?').map_or((server.as_str(), String::new()), |(a, b)| (a, format!("?{b}")));
    let at = rest.rfind('/').filter(|at| *at > "postgres://x".len()).unwrap_or(rest.len());
    Place { url: format!("{}/{name}{query}", &rest[..at]), server, name }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let sql = format!("DROP DATABASE {name} WITH (FORCE)");
            runtime.block_on(async { client(&server).await.batch_execute(&sql).await.unwrap() });
        });
        // A test that fails says why by itself.
        let _ = dropping.join();
    }
}

async fn postgres() -> Arc<dyn Database> {
    let place = base().await;
    let plan = database::migration_plan(&place.url, NoTls).await.unwrap();
    assert_eq!(plan, (0, vec![1, 2, 3, 4, 5, 6]));
    let inner = database::connect(&place.url, 8, Migrations::Apply, NoTls).await.unwrap();
    assert_eq!(database::migration_plan(&place.url, NoTls).await.unwrap(), (6, vec![]));
    Arc::new(Base { inner, _place: place })
}

on_every_database!(postgres);

/// Brokers that share a database wake each other's readers, and do not leave it to the next look.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_at_another_broker_wakes_a_reader() {
    let world = world(Settings { poll: Duration::from_secs(3600), ..Settings::default() }).await;
    let (reads, writes) = (world.another().await, world.another().await);
    let _running = [reads.start(), writes.start()];
    let web = Web::new(&World { broker: reads, ..world });
    let mut events = web.stream("/v1/meshes/m/topics/t/events", Some("bob"), None).await.unwrap();
    // Where the channel is not open at the first of them, that one is found when it is.
    for id in ["a", "b", "c"] {
        accepted(writes.publish(&caller("alice"), draft("alice", id, id)).await);
        assert_eq!(events.next().await.unwrap().data["client_message_id"], id);
    }
}

const DAYS_8: i64 = 8 * 86_400_000;

/// S4-88. A server whose clock is set ahead by more than the retention: every id would be forgotten, and retries would append again.
#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_servers_clock_expires_nothing_until_it_is_confirmed() {
    let world = world(Settings::default()).await;
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    let before = world.broker.clock().await.unwrap();
    assert_eq!(before.1, 0);
    // As the server's clock does it by itself.
    world.execute(&format!("UPDATE clock SET offset_ms = offset_ms + {DAYS_8}")).await;
    let other = world.another().await;
    for broker in [&world.broker, &other] {
        assert_eq!(broker.sweep().await.unwrap(), semel_broker::Swept::default());
        let again = broker.publish(&caller("alice"), draft("alice", "a", "x")).await;
        assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
        let (now, ahead) = broker.clock().await.unwrap();
        assert!((0..60_000).contains(&(now - before.0)), "time goes on as it ticks: {}", now - before.0);
        assert!((ahead - DAYS_8).abs() < 60_000, "{ahead}");
        let metrics = broker.metrics().await.unwrap();
        assert!(metrics.contains("semel_broker_clock_frozen 1"), "{metrics}");
    }
    // It is written down for every other process.
    let frozen = || async { world.rows("clock WHERE frozen").await == 1 };
    suite::kit::eventually("the word of the jump", frozen).await;
    world.db.watch.fail(Some("INSERT INTO audit_log"));
    assert!(world.broker.confirm_clock("ops", "the clock is right").await.is_err());
    world.db.watch.fail(None);
    assert!(frozen().await, "nothing is confirmed of which nobody is told");
    assert!(world.broker.clock().await.unwrap().1 > 0);
    assert!(world.broker.confirm_clock("ops", "the clock is right").await.unwrap());
    assert!(!world.broker.confirm_clock("ops", "again").await.unwrap(), "there is nothing more to confirm");
    assert_eq!(world.rows("audit_log WHERE event = 'clock-confirmed' AND sender = 'ops'").await, 1);
    let (now, ahead) = world.broker.clock().await.unwrap();
    assert_eq!(ahead, 0);
    assert!(now - before.0 >= DAYS_8, "{}", now - before.0);
    assert_eq!(world.broker.sweep().await.unwrap().ids, 1, "what has expired goes");
}

/// A process that starts while the clock is ahead goes on from what the last one wrote down.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_while_the_servers_clock_is_ahead_does_not_believe_it() {
    let base = base().await;
    let first: Arc<dyn Database> =
        Arc::new(database::connect(&base.url, 2, Migrations::Apply, NoTls).await.unwrap());
    let before = first.now().await.unwrap();
    drop(first);
    let client = client(&base.url).await;
    let set = format!("UPDATE semel_broker.clock SET offset_ms = offset_ms + {DAYS_8}");
    client.batch_execute(&set).await.unwrap();
    let next: Arc<dyn Database> =
        Arc::new(database::connect(&base.url, 2, Migrations::Apply, NoTls).await.unwrap());
    let now = next.now().await.unwrap();
    assert!((0..60_000).contains(&(now - before)), "{}", now - before);
    assert!(next.clock_ahead() > DAYS_8 - 60_000);
}

/// One sweep has seen what has expired and waits; another one removes it, and the id is used again meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_no_id_that_was_used_again_since_it_looked() {
    let world = world(Settings::default()).await;
    let alice = caller("alice");
    accepted(world.broker.publish(&alice, draft("alice", "a", "x")).await);
    world.broker.seal(&alice, "b").await.unwrap();
    world.execute("UPDATE client_message_dedupe SET expires_at = 0").await;
    // It has looked, and locked nothing so far.
    let pause = world.db.watch.pause("SELECT mesh_id, kind, ref FROM line WHERE line");
    let late = world.another().await;
    let late = tokio::spawn(async move { late.sweep().await });
    pause.is_there.notified().await;
    assert_eq!(world.broker.sweep().await.unwrap().ids, 2);
    for id in ["a", "b"] {
        accepted(world.broker.publish(&alice, draft("alice", id, "x")).await);
    }
    pause.may_go.notify_one();
    assert_eq!(late.await.unwrap().unwrap(), semel_broker::Swept::default(), "another sweep was there first");
    for id in ["a", "b"] {
        let again = world.broker.publish(&alice, draft("alice", id, "x")).await;
        assert!(matches!(again, Published::Duplicate(_)), "{id}: {again:?}");
    }
    world.assert_no_orphans().await;
}

/// A member that is removed while it is subscribed is not subscribed afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_removed_while_it_is_subscribed_keeps_no_subscription() {
    let world = world(Settings::default()).await;
    let pause = world.db.watch.pause("SELECT line, next_number, deleted_at FROM line");
    let (subscribing, removing) = (world.another().await, world.another().await);
    let subscribe = tokio::spawn(async move { subscribing.put_subscription("m", "t", "carol").await });
    pause.is_there.notified().await;
    let remove = tokio::spawn(async move { removing.remove_member("m", "carol").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    pause.may_go.notify_one();
    let _ = subscribe.await.unwrap();
    remove.await.unwrap().unwrap();
    assert_eq!(world.rows("topic_subscription WHERE member = 'carol' AND until IS NULL").await, 0);
}

/// A member that is removed while it is changed is gone afterwards, with what it was allowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_removed_while_it_is_changed_does_not_come_back() {
    let world = world(Settings::default()).await;
    let bob = [suite::kit::sha256("token-of-bob")];
    world.broker.put_member("m", "bob", semel_broker::Role::Owner, &bob).await.unwrap();
    // It has seen that bob is there.
    let pause = world.db.watch.pause("INSERT INTO member (");
    let (changing, removing) = (world.another().await, world.another().await);
    let wish = MemberWish { more_tokens: vec![suite::kit::sha256("another")], ..MemberWish::default() };
    let change = tokio::spawn(async move { changing.change_member("m", "bob", &wish).await });
    pause.is_there.notified().await;
    let remove = tokio::spawn(async move { removing.remove_member("m", "bob").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    pause.may_go.notify_one();
    change.await.unwrap().unwrap();
    remove.await.unwrap().unwrap();
    assert_eq!(world.rows("member WHERE member = 'bob' AND left_at IS NULL").await, 0);
    assert_eq!(world.rows("topic_subscription WHERE member = 'bob' AND until IS NULL").await, 0);
    assert_eq!(world.rows("member_token WHERE member = 'bob'").await, 0);
    world.assert_no_orphans().await;
}

/// Counting again locks one row at a time: nobody waits for it who holds what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn counting_again_beside_others_meets_no_deadlock() {
    let world = world(Settings::default()).await;
    world.broker.put_topic("m", "u", "subscribers").await.unwrap();
    world.execute("UPDATE line SET intervals = intervals + 1, cursors = cursors + 1").await;
    let lock = |line: &str| format!("SELECT line FROM line WHERE ref = '{line}' FOR UPDATE");
    // Somebody else has the last line, and then wants the others.
    let mut tx = world.db.begin().await.unwrap();
    tx.run(&lock("u"), vec![]).await.unwrap();
    let broker = world.broker.clone();
    let rebuild = tokio::spawn(async move { broker.rebuild().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    for line in ["t", "alice", "bob", "carol"] {
        tx.run(&lock(line), vec![]).await.unwrap();
    }
    tx.commit().await.unwrap();
    rebuild.await.unwrap().unwrap();
    world.assert_no_orphans().await;
}

/// A database of the release before: it is brought up to date, and a broker of that release goes on beside this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_version_1_goes_on_where_it_was() {
    const OLD: [&str; 2] = [
        include_str!("../migrations/postgres_0001_broker.sql"),
        include_str!("../migrations/postgres_roles.sql"),
    ];
    let place = base().await;
    let old = client(&place.url).await;
    old.batch_execute(
        "CREATE SCHEMA semel_broker; SET search_path = semel_broker, pg_catalog;
         CREATE TABLE migration (number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
             works_for integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());",
    )
    .await
    .unwrap();
    for (number, sql) in (1..).zip(OLD) {
        old.batch_execute(sql).await.unwrap();
        let insert = "INSERT INTO migration (number, name, checksum, works_for) VALUES ($1, 'old', $2, 1)";
        old.execute(insert, &[&number, &suite::kit::sha256(sql)]).await.unwrap();
    }
    old.batch_execute(
        "INSERT INTO mesh (id, created_at) VALUES ('first', 1);
         INSERT INTO member (mesh_id, member, role, joined_at) VALUES ('first', 'ada', 'owner', 1);
         INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ('ad', 'first', 'ada');
         INSERT INTO line (mesh_id, kind, ref, created_at) VALUES ('first', 'topic', 'news', 1), ('first', 'member', 'ada', 1);
         INSERT INTO topic_subscription (line, member, since) SELECT line, 'ada', 1 FROM line;
         INSERT INTO ack_cursor (line, member, consumer, updated_at) SELECT line, 'ada', '', 1 FROM line;
         INSERT INTO client_message_dedupe (mesh_id, client_message_id, kind, broker_message_id, request_fingerprint,
             fingerprint_version, sender, destination_kind, destination_ref, line, number, epoch, first_seen_at, expires_at)
             VALUES ('first', 'gone', 'sealed', '', decode(repeat('00', 32), 'hex'), 1, 'ada', '', '', 0, 0, 0, 1, 9e15);",
    )
    .await
    .unwrap();
    assert_eq!(database::migration_plan(&place.url, NoTls).await.unwrap(), (2, vec![3, 4, 5, 6]));
    let inner = database::connect(&place.url, 8, Migrations::Apply, NoTls).await.unwrap();
    let world = World::new(Arc::new(Base { inner, _place: place }), Settings::default()).await;
    world.assert_no_orphans().await;
    assert!(!world.findings_without("client_message_dedupe", "client_message_id = 'gone'").await.is_empty());
    upkeep::rows_that_the_release_before_writes_are_counted(world).await;
}
