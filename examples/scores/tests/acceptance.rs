//! What the score API promises, before a service that limits, blocks, revokes, answers late, applies late and loses answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_delivery::credentials::{Credential, Wallet};
use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::{http1::Http1, url::Target};
use semel_example_scores::api::{Api, TARGET};
use semel_example_scores::service::{Habit, Service};
use semel_example_scores::{DEBOUNCE, start};
use serde_json::{Value, json};
use tokio::net::TcpListener;

struct World {
    service: Service,
    api: Api,
    wallet: Arc<Wallet>,
    external: String,
    at: String,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        Self::that_waits(DEBOUNCE).await
    }

    /// A world in which background points wait for so long.
    async fn that_waits(debounce: Duration) -> Self {
        let service = Service::default();
        let external = serve(service.router()).await;
        let folder = tempfile::tempdir().unwrap();
        let wallet = Arc::new(Wallet::default());
        let file = folder.path().join("scores.db");
        let api = start(&file, &external, Arc::clone(&wallet), debounce).await.unwrap();
        let at = serve(api.clone().router()).await;
        Self { service, api, wallet, external, at, _folder: folder }
    }

    async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        lines.push(("content-type".to_owned(), "application/json".to_owned()));
        let outgoing = Outgoing {
            method: method.to_owned(),
            target: Target::absolute(&format!("{}{path}", self.at)).unwrap(),
            headers: lines,
            body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
            timeout: Duration::from_secs(20),
            may_send: MaySend::always(),
        };
        match Http1::new().send(outgoing).await {
            Sent::Answered(answer) => {
                (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
            }
            other => panic!("{other:?}"),
        }
    }

    async fn submit(&self, leader: &str, key: &str, mode: &str, points: &[(&str, i64)]) -> (u16, Value) {
        let patrols: Vec<Value> = points
            .iter()
            .map(|(id, points)| json!({"id": id, "name": id.to_uppercase(), "points": points}))
            .collect();
        let headers = [("x-leader", leader), ("x-idempotency-key", key), ("x-sync-mode", mode)];
        self.call("POST", "/api/sections/7/scores", &headers, &json!({"patrols": patrols})).await
    }

    async fn pending_writes(&self, leader: &str) -> i64 {
        let (_, body) = self.call("GET", "/api/session", &[("x-leader", leader)], &Value::Null).await;
        body["pendingWrites"].as_i64().unwrap()
    }

    async fn settled(&self) {
        let start = Instant::now();
        while self.api.engine.store.counts().await.unwrap().pending > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not settle");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn applied(&self) -> Vec<(String, i64, Option<i64>, Option<i64>)> {
        let rows = self.api.engine.store.audit_after(0, 1000).await.unwrap();
        let rows = rows.into_iter().filter(|row| row.event == "applied");
        rows.map(|row| (row.principal, row.value.unwrap(), row.before, row.after)).collect()
    }
}

async fn serve(router: axum::Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    at
}

// S2-97, S2-98, S2-106, S2-68
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_required_and_makes_points_count_once() {
    let world = World::that_waits(Duration::from_secs(60)).await;
    let body = json!({"patrols": [{"id": "a", "points": 5}]});
    let (status, said) = world.call("POST", "/api/sections/7/scores", &[("x-leader", "alice")], &body).await;
    assert_eq!((status, said["message"].as_str()), (400, Some("Idempotency key required")));
    let start = Instant::now();
    let first = world.submit("alice", "1", "interactive", &[("a", 5)]).await;
    assert!(start.elapsed() < Duration::from_secs(30), "interactive points do not wait");
    assert_eq!(first, (200, json!({"success": true, "patrols": [{"id": "a", "name": "A", "score": 5}]})));
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 5)]).await, first);
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 6)]).await.0, 422);
    assert_eq!((world.service.score("a"), world.service.writes().len()), (5, 1));
}

// S2-99
#[tokio::test(flavor = "multi_thread")]
async fn of_three_patrols_the_one_that_fails_is_tried_again() {
    let world = World::start().await;
    world.service.next(&[Habit::Limit(4)]);
    // Another leader's pause does not matter: each patrol of this one waits for it.
    let (status, body) = world.submit("alice", "1", "interactive", &[("a", 1)]).await;
    assert_eq!((status, body["pending"]["count"].as_i64()), (202, Some(1)));
    assert_eq!(world.submit("bob", "1", "interactive", &[("b", 2), ("c", 3)]).await.0, 200);
    world.settled().await;
    assert_eq!((world.service.score("a"), world.service.score("b"), world.service.score("c")), (1, 2, 3));
    assert_eq!(world.applied().await.len(), 3);
}

// S2-100, S2-114
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_and_the_indicator_clears() {
    let world = World::start().await;
    world.service.next(&[Habit::Limit(2)]);
    let start = Instant::now();
    world.submit("alice", "1", "background", &[("a", 5)]).await;
    assert_eq!(world.pending_writes("alice").await, 1);
    assert_eq!(world.applied().await, [], "no row before it is applied");
    world.settled().await;
    assert!(start.elapsed() >= Duration::from_secs(2), "it came back when it was told to");
    assert_eq!((world.pending_writes("alice").await, world.applied().await.len()), (0, 1));
    assert_eq!(world.submit("alice", "1", "background", &[("a", 5)]).await.0, 200);
}

// S2-101
#[tokio::test(flavor = "multi_thread")]
async fn points_survive_a_new_login() {
    let world = World::start().await;
    let login = |token: &str| {
        let line = ("Authorization".to_owned(), format!("Bearer {token}"));
        world.wallet.give("alice", &world.external, Credential { headers: vec![line] });
    };
    login("old");
    world.service.revoke("old");
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 5)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "interactive", &[("a", 3)]).await.0, 200, "another leader goes on");
    assert_eq!(world.pending_writes("alice").await, 1);
    login("new");
    assert_eq!(world.api.engine.release(TARGET, "alice", "a new login").await.unwrap(), 1);
    world.settled().await;
    assert_eq!(world.service.score("a"), 8);
    assert_eq!(world.service.writes().last().unwrap().2, "Bearer new");
}

// S2-104, S2-105, S2-107, S2-85
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_are_one_write_and_two_rows() {
    let world = World::that_waits(Duration::from_secs(4)).await;
    world.service.set("a", 100);
    assert_eq!(world.submit("alice", "1", "background", &[("a", 5)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "background", &[("a", 3)]).await.0, 202);
    assert!(world.service.writes().is_empty(), "background points wait");
    let (_, seen) = world.call("GET", "/api/sections/7/scores", &[("x-leader", "carol")], &Value::Null).await;
    assert_eq!(
        (seen["patrols"][0]["pendingDelta"].as_i64(), seen["patrols"][0]["hasPending"].as_bool()),
        (Some(8), Some(true))
    );
    world.settled().await;
    assert_eq!((world.service.score("a"), world.service.writes().len()), (108, 1));
    let told = [("alice".to_owned(), 5, Some(100), Some(105)), ("bob".to_owned(), 3, Some(105), Some(108))];
    assert_eq!(world.applied().await, told);
}

// S2-27
#[tokio::test(flavor = "multi_thread")]
async fn lost_late_and_missing_answers_neither_lose_nor_double_points() {
    let world = World::start().await;
    world.service.next(&[
        Habit::LoseAnswer,
        Habit::ApplyLate(Duration::from_secs(3)),
        Habit::AnswerLate(Duration::from_secs(3)),
        Habit::Fail,
    ]);
    for at in 0..4 {
        world.submit("alice", &at.to_string(), "interactive", &[("a", 1)]).await;
    }
    world.settled().await;
    // Nothing that was on its way falls upon the score afterwards.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!((world.service.score("a"), world.applied().await.len()), (4, 4));
    assert_eq!(world.api.engine.store.counts().await.unwrap().in_doubt, 0);
}

// S2-54
#[tokio::test(flavor = "multi_thread")]
async fn a_block_stops_the_target() {
    let world = World::start().await;
    world.service.next(&[Habit::Block]);
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 1)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "interactive", &[("b", 1)]).await.0, 202, "nobody knocks");
    assert_eq!(world.service.writes().len(), 1);
}

/// Points that the service refuses for good are no success, and nobody is told that they will be added.
#[tokio::test(flavor = "multi_thread")]
async fn points_that_were_given_up_are_no_success() {
    let world = World::that_waits(Duration::from_secs(60)).await;
    world.service.next(&[Habit::Refuse]);
    let (_, said) = world.submit("alice", "1", "interactive", &[("a", 5)]).await;
    assert_eq!((&said["success"], &said["failed"]["count"]), (&json!(false), &json!(1)), "{said}");
    assert_eq!(said["pending"], Value::Null, "{said}");
    assert_eq!(world.service.score("a"), 0);
}
