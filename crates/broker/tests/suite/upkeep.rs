//! Upkeep: orphans, sweeps, what is made again from the history, and webhooks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel_broker::{LineName, Published, Settings, WebhookBody};

use super::kit::{World, accepted, caller, draft, draft_of, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(crate) fn hook(url: &str) -> WebhookBody {
    WebhookBody {
        url: url.to_owned(),
        topic: "t".to_owned(),
        secrets: vec![SECRET.to_owned()],
        ordered: true,
    }
}

/// Every table, and which one row of it is removed by hand. Tables of which nothing is found, since `rebuild` makes them again or
/// the broker does not start without them, are named with the reason.
const REMOVALS: [(&str, &str); 25] = [
    ("delivery_waiting", "number = 1"),
    ("delivery_queue", "number = 2"),
    ("mention_index", "mentioned = 'bob' AND number = 3"),
    ("topic_message", "client_message_id = 't4'"),
    ("message_queue", "client_message_id = 'd1'"),
    ("message_history", "number = 5 AND destination_kind = 'topic'"),
    ("message_history", "destination_kind = 'member'"),
    ("client_message_dedupe", "client_message_id = 't6'"),
    ("client_message_dedupe", "client_message_id = 'sealed'"),
    ("sealed_id", "client_message_id = 'sealed'"),
    ("audit_log", "number = 3 AND event = 'accepted'"),
    ("topic_subscription", "member = 'carol' AND until IS NULL"),
    ("topic_subscription", "member = 'bob' AND line = (SELECT line FROM line WHERE ref = 't')"),
    ("topic_subscription", "member = 'gone' AND until IS NOT NULL"),
    ("ack_cursor", "member = 'bob' AND consumer = 'phone'"),
    ("member_token", "member = 'bob'"),
    ("member", "member = 'bob'"),
    ("member", "member = 'gone'"),
    ("line", "kind = 'topic' AND ref = 't'"),
    ("line", "kind = 'topic' AND ref = 'quiet'"),
    ("line", "kind = 'member' AND ref = 'carol'"),
    ("webhook", "name = 'w'"),
    ("webhook", "name = 'quiet'"),
    ("mesh", "id = 'm'"),
    ("mesh", "id = 'empty'"),
];
const UNMISSED: [(&str, &str); 6] = [
    ("operator_audit", "tells what was done by hand, and nothing removes it"),
    ("broker_meta", "the broker does not start without its epoch"),
    ("broker_secret", "tickets of a minute are signed with it"),
    ("followed", "the line is followed again"),
    ("search_word", "made again by rebuild"),
    ("rate_telemetry", "made again by rebuild"),
];

pub(crate) async fn any_single_row_that_is_removed_is_found(world: World) {
    let broker = &world.broker;
    broker.put_webhook("m", "w", hook("https://example.com/")).await.unwrap();
    for at in 1..=6 {
        let text = r#"{"to":{"topic":"t"},"body":1,"mentions":["bob"]}"#;
        accepted(broker.publish(&caller("alice"), draft_of("alice", &format!("t{at}"), text)).await);
    }
    let direct = draft_of("alice", "d1", r#"{"to":{"member":"carol"},"body":1}"#);
    accepted(broker.publish(&caller("alice"), direct).await);
    for id in ["sealed", "cancelled"] {
        broker.seal(&caller("alice"), id).await.unwrap();
    }
    broker.put_topic("m", "quiet", "subscribers").await.unwrap();
    let quiet = WebhookBody { topic: "quiet".to_owned(), ..hook("https://example.com/") };
    broker.put_webhook("m", "quiet", quiet).await.unwrap();
    for _ in 0..2 {
        broker.put_subscription("m", "t", "carol").await.unwrap();
    }
    broker.remove_subscription("m", "t", "carol").await.unwrap();
    broker.put_member("m", "gone", semel_broker::Role::Member, &[]).await.unwrap();
    broker.remove_member("m", "gone").await.unwrap();
    broker.put_mesh("empty", semel_broker::MeshWish { bytes_max: None, search: true }).await.unwrap();
    let page = broker.history(&caller("bob"), &LineName::Topic("t".to_owned()), None, None).await.unwrap();
    let first: serde_json::Value = serde_json::from_str(page.messages[0].get()).unwrap();
    for consumer in ["", "phone"] {
        let (line, up_to) = (LineName::Topic("t".to_owned()), first["id"].as_str().unwrap());
        broker.acknowledge(&caller("bob"), &line, up_to, consumer).await.unwrap();
    }
    broker.rebuild().await.unwrap();
    let found = broker.orphans().await.unwrap();
    assert_eq!((found.looked, found.findings.len()), (7, 0), "{:?}", found.findings);
    for table in world.tables().await {
        let is_named = |named: &str| named == table;
        let is_missed = REMOVALS.iter().any(|(named, _)| is_named(named));
        assert!(is_missed || UNMISSED.iter().any(|(named, _)| is_named(named)), "{table} is in neither list");
    }
    for (table, which) in REMOVALS {
        let found = world.findings_without(table, which).await;
        assert!(!found.is_empty(), "{table} WHERE {which} was not missed");
    }
    world.assert_no_orphans().await;
    for sql in [
        "DELETE FROM webhook WHERE name = 'quiet'",
        "DELETE FROM client_message_dedupe WHERE client_message_id = 'sealed'",
        "DELETE FROM sealed_id WHERE client_message_id = 'cancelled'",
    ] {
        world.execute(sql).await;
    }
    let known = broker.orphans().await.unwrap().findings.len();
    assert_eq!(known, 3);
    assert!(broker.metrics().await.unwrap().contains(&format!("semel_broker_orphans {known}")));
    broker.rebuild().await.unwrap();
    world.assert_no_orphans().await;
}

/// What a broker of the release before says to the database, which knows nothing of counts and of the list of cancelled ids.
const OF_THE_RELEASE_BEFORE: [&str; 17] = [
    "INSERT INTO mesh (id, created_at, bytes_max, search) VALUES ('old', 1, NULL, 1) \
     ON CONFLICT (id) DO UPDATE SET deleted_at = NULL, bytes_max = excluded.bytes_max, search = excluded.search",
    "INSERT INTO mesh (id, created_at, bytes_max, search) VALUES ('old', 2, 10, 1) \
     ON CONFLICT (id) DO UPDATE SET deleted_at = NULL, bytes_max = excluded.bytes_max, search = excluded.search",
    "INSERT INTO member (mesh_id, member, role, joined_at) VALUES ('old', 'olga', 'owner', 1) \
     ON CONFLICT (mesh_id, member) DO UPDATE SET role = excluded.role, left_at = NULL",
    "INSERT INTO line (mesh_id, kind, ref, publish, created_at) VALUES ('old', 'member', 'olga', 'members', 1) \
     ON CONFLICT (mesh_id, kind, ref) DO NOTHING",
    "INSERT INTO topic_subscription (line, member, since) SELECT line, 'olga', 1 FROM line WHERE ref = 'olga'",
    "DELETE FROM member_token WHERE mesh_id = 'old' AND member = 'olga'",
    "INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ('ab', 'old', 'olga') ON CONFLICT DO NOTHING",
    "INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ('ab', 'old', 'olga') ON CONFLICT DO NOTHING",
    "INSERT INTO member (mesh_id, member, role, joined_at) VALUES ('old', 'olga', 'member', 2) \
     ON CONFLICT (mesh_id, member) DO UPDATE SET role = excluded.role, left_at = NULL",
    "DELETE FROM member_token WHERE mesh_id = 'old' AND member = 'olga'",
    "INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ('cd', 'old', 'olga'), ('ef', 'old', 'olga')",
    "INSERT INTO ack_cursor (line, member, consumer, updated_at) SELECT line, 'olga', 'phone', 1 FROM line WHERE ref = 'olga' \
     ON CONFLICT (line, member, consumer) DO NOTHING",
    "INSERT INTO webhook (mesh_id, name, url, line, secrets, ordered, created_at) \
     SELECT 'm', 'old', 'https://example.com/', line, '[]', 1, 1 FROM line WHERE ref = 't'",
    "UPDATE line SET webhooks = webhooks + 1 WHERE ref = 't'",
    "UPDATE member SET left_at = coalesce(left_at, 3) WHERE mesh_id = 'm' AND member = 'carol'",
    "DELETE FROM member_token WHERE mesh_id = 'm' AND member = 'carol'",
    // A sweep.
    "DELETE FROM client_message_dedupe WHERE client_message_id = 'expired'",
];

/// Whoever writes rows counts them, whatever it knows of counting.
pub(crate) async fn rows_that_the_release_before_writes_are_counted(world: World) {
    let (broker, alice) = (&world.broker, caller("alice"));
    for id in ["expired", "sealed"] {
        broker.seal(&alice, id).await.unwrap();
    }
    world.execute("UPDATE sealed_id SET expires_at = 1 WHERE client_message_id = 'expired'").await;
    for sql in OF_THE_RELEASE_BEFORE {
        world.execute(sql).await;
    }
    world.assert_no_orphans().await;
    broker.sweep().await.unwrap();
    let listed = world.rows("sealed_id WHERE client_message_id = 'expired'").await;
    assert_eq!(listed, 0, "what has expired is on no list");
    accepted(broker.publish(&alice, draft("alice", "expired", "x")).await);
    broker.put_member("old", "olga", semel_broker::Role::Member, &["01".repeat(32)]).await.unwrap();
    broker.rebuild().await.unwrap();
    world.assert_no_orphans().await;
    for (table, which) in [
        ("mesh", "id = 'old'"),
        ("member_token", "member = 'olga'"),
        ("member", "member = 'olga'"),
        ("line", "ref = 'olga'"),
        ("topic_subscription", "member = 'olga'"),
        ("ack_cursor", "member = 'olga'"),
        ("webhook", "name = 'old'"),
        ("client_message_dedupe", "client_message_id = 'sealed'"),
    ] {
        let found = world.findings_without(table, which).await;
        assert!(!found.is_empty(), "{table} WHERE {which} was not missed");
    }
}

pub(crate) async fn a_sweep_takes_ids_and_messages_together(world: World) {
    let text = r#"{"to":{"topic":"t"},"body":"keep me","mentions":["bob"]}"#;
    for id in ["a", "b"] {
        accepted(world.broker.publish(&caller("alice"), draft_of("alice", id, text)).await);
    }
    world.broker.seal(&caller("alice"), "sealed").await.unwrap();
    world.broker.rebuild().await.unwrap();
    assert_eq!(world.broker.sweep().await.unwrap(), semel_broker::Swept::default(), "nothing has expired");
    world
        .execute("UPDATE client_message_dedupe SET expires_at = 0 WHERE client_message_id IN ('a', 'sealed')")
        .await;
    let swept = world.broker.sweep().await.unwrap();
    assert_eq!((swept.ids, swept.messages, swept.unacknowledged), (2, 1, 2));
    let counts: Vec<i64> = world.all_rows().await.into_iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [1, 1, 0, 1, 1, 0, 0]);
    world.assert_no_orphans().await;
    let again = world.broker.publish(&caller("alice"), draft_of("alice", "b", text)).await;
    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
    let metrics = world.broker.metrics().await.unwrap();
    assert!(metrics.contains("semel_broker_swept_unacknowledged_total 2"), "{metrics}");
}

pub(crate) async fn what_follows_the_commits_is_made_again_and_never_consulted(world: World) {
    for id in ["a", "b", "c"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "find me")).await);
    }
    assert_eq!(world.broker.rebuild().await.unwrap(), 1);
    let counts = |world: &World| {
        let tables = ["search_word", "audit_log"].map(str::to_owned);
        let db = world.rows("search_word");
        drop(db);
        tables
    };
    let mut before = Vec::new();
    for table in counts(&world) {
        before.push(world.rows(&table).await);
    }
    assert!(before.iter().all(|count| *count >= 3), "{before:?}");
    world.execute("UPDATE rate_telemetry SET count = 1000000").await;
    world.execute("DELETE FROM search_word").await;
    accepted(world.broker.publish(&caller("alice"), draft("alice", "d", "x")).await);
    for _ in 0..2 {
        world.broker.rebuild().await.unwrap();
    }
    assert_eq!(world.rows("audit_log").await, 4);
    let sql = "rate_telemetry WHERE count > 4";
    assert_eq!(world.rows(sql).await, 0, "counted once, from the history");
}

/// A receiver that fails at first.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    pub(crate) got: Arc<Mutex<Vec<(String, String)>>>,
    pub(crate) failures: Arc<Mutex<usize>>,
    pub(crate) refuses: Arc<Mutex<bool>>,
    held: Arc<tokio::sync::RwLock<()>>,
}

impl Receiver {
    /// Answers nothing until what is returned is dropped.
    pub(crate) fn hold(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.held).try_write_owned().unwrap()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    use base64::Engine as _;
    use hmac::{KeyInit, Mac};
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let key =
        base64::engine::general_purpose::STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", text("webhook-id"), text("webhook-timestamp")).as_bytes());
    mac.update(&body);
    let signed = base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
    assert!(text("webhook-signature").split(' ').any(|one| one == format!("v1,{signed}")));
    let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let id = event["client_message_id"].as_str().unwrap().to_owned();
    receiver.got.lock().unwrap().push((id, text("webhook-id")));
    drop(receiver.held.read().await);
    if *receiver.refuses.lock().unwrap() {
        return StatusCode::BAD_REQUEST;
    }
    let mut failures = receiver.failures.lock().unwrap();
    if *failures > 0 {
        *failures -= 1;
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::NO_CONTENT
}

pub(crate) async fn listen(receiver: Receiver) -> String {
    let router = Router::new().route("/hook", post(receive)).with_state(receiver);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(semel_http::serve(listener, semel_http::Limits::default(), router));
    url
}

pub(crate) fn with_loopback() -> Settings {
    Settings { allow_loopback: true, ..Settings::default() }
}

pub(crate) async fn webhooks_are_sent_in_order_signed_and_again_when_they_fail(world: World) {
    let receiver = Receiver::default();
    *receiver.failures.lock().unwrap() = 1;
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "w", hook(&url)).await.unwrap();
    let (running, other) = (world.broker.start(), world.another().await);
    let also = other.start();
    for at in 0..10 {
        let id = format!("m{at}");
        accepted(world.broker.publish(&caller("alice"), draft("alice", &id, "x")).await);
    }
    eventually("every delivery", || async { receiver.got.lock().unwrap().len() >= 11 }).await;
    eventually("the last settlement", || async { world.rows("delivery_waiting").await == 0 }).await;
    let got = receiver.got.lock().unwrap().clone();
    assert_eq!(got[0], got[1], "what failed is sent again, with its id, before the next");
    let order: Vec<&str> = got[1..].iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(order, (0..10).map(|at| format!("m{at}")).collect::<Vec<_>>());
    assert_eq!(world.rows("delivery_queue WHERE status = 'delivered'").await, 10);
    world.assert_no_orphans().await;
    also.stop().await;
    running.stop().await;
}

pub(crate) async fn what_a_webhook_refuses_is_dead_until_it_is_requeued(world: World) {
    let receiver = Receiver::default();
    *receiver.refuses.lock().unwrap() = true;
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "w", hook(&url)).await.unwrap();
    let running = world.broker.start();
    for id in ["a", "b"] {
        accepted(world.broker.publish(&caller("alice"), draft("alice", id, "x")).await);
    }
    eventually("both to be dead", || async { world.rows("delivery_queue WHERE status = 'dead'").await == 2 })
        .await;
    let shown = &world.broker.webhooks("m", Some("w")).await.unwrap()[0];
    assert_eq!((shown.dead, shown.pending, shown.last_error.as_deref()), (2, 0, Some("HTTP 400")));
    *receiver.refuses.lock().unwrap() = false;
    assert_eq!(world.broker.requeue_dead("m", "w").await.unwrap(), 2);
    eventually("both deliveries", || async {
        world.rows("delivery_queue WHERE status = 'delivered'").await == 2
    })
    .await;
    world.assert_no_orphans().await;
    running.stop().await;
}

pub(crate) async fn a_webhook_does_not_reach_this_machine(world: World) {
    let receiver = Receiver::default();
    let url = listen(receiver.clone()).await;
    let by_name = url.replace("127.0.0.1", "localhost");
    world.broker.put_webhook("m", "w", hook(&by_name)).await.unwrap();
    let running = world.broker.start();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    let is_tried = || async { world.broker.webhooks("m", Some("w")).await.unwrap()[0].last_error.is_some() };
    eventually("an attempt", is_tried).await;
    let error = world.broker.webhooks("m", Some("w")).await.unwrap()[0].last_error.clone().unwrap();
    assert!(error.contains("may not be reached"), "{error}");
    assert_eq!(receiver.got.lock().unwrap().len(), 0);
    let literal = world.broker.put_webhook("m", "literal", hook(&url)).await;
    assert!(literal.is_err(), "an address is refused at once");
    running.stop().await;
}

/// A worker that dies while it sends: another one sends again, with the same id, once the lease has ended.
pub(crate) async fn a_worker_that_dies_is_followed_by_another(world: World) {
    let receiver = Receiver::default();
    let url = listen(receiver.clone()).await;
    world.broker.put_webhook("m", "w", hook(&url)).await.unwrap();
    accepted(world.broker.publish(&caller("alice"), draft("alice", "a", "x")).await);
    // It was sent, and what became of it could not be written down.
    world.db.watch.fail(Some("UPDATE delivery_queue"));
    let running = world.broker.start();
    eventually("the first delivery", || async { receiver.got.lock().unwrap().len() == 1 }).await;
    drop(running);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.db.watch.fail(None);
    let other = world.another().await;
    let also = other.start();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(receiver.got.lock().unwrap().len(), 1, "the lease of the dead worker is waited for");
    world.execute("UPDATE webhook SET lease_until = 0").await;
    eventually("the second delivery", || async { receiver.got.lock().unwrap().len() == 2 }).await;
    let got = receiver.got.lock().unwrap().clone();
    assert_eq!(got[0], got[1]);
    also.stop().await;
}
