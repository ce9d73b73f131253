//! What the score API promises, before a service that limits, blocks, revokes, answers late, applies late and loses answers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::{http1::Http1, url::Target};
use semel_example_scores::api::Api;
use semel_example_scores::{DEBOUNCE, start};
use semel_example_scores_stand_in::{Habit, PASSWORD, Service};
use semel_store::at_rest::KeyRing;
use serde_json::{Value, json};
use tokio::net::TcpListener;

struct World {
    service: Service,
    api: Api,
    at: String,
    sessions: Mutex<BTreeMap<String, String>>,
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
        let file = folder.path().join("scores.db").display().to_string();
        let keys = KeyRing::parse("one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap();
        let api = start(&file, &external, keys, debounce).await.unwrap();
        let at = serve(api.clone().router()).await;
        Self { service, api, at, sessions: Mutex::default(), _folder: folder }
    }

    async fn login(&self, leader: &str) {
        let body = json!({"leader": leader, "password": PASSWORD});
        let (status, said) = self.call("POST", "/api/login", &[], &body).await;
        assert_eq!((status, said["leader"].as_str()), (200, Some(leader)), "{said}");
        let session = format!("Bearer {}", said["session"].as_str().unwrap());
        self.sessions.lock().unwrap().insert(leader.to_owned(), session);
    }

    /// A leader's session; one who has none signs in.
    async fn session(&self, leader: &str) -> String {
        if !self.sessions.lock().unwrap().contains_key(leader) {
            self.login(leader).await;
        }
        self.sessions.lock().unwrap()[leader].clone()
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
        let session = self.session(leader).await;
        let headers =
            [("authorization", session.as_str()), ("x-idempotency-key", key), ("x-sync-mode", mode)];
        self.call("POST", "/api/sections/7/scores", &headers, &json!({"patrols": patrols})).await
    }

    async fn get(&self, leader: &str, path: &str) -> Value {
        let session = self.session(leader).await;
        let (status, body) =
            self.call("GET", path, &[("authorization", session.as_str())], &Value::Null).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    async fn pending_writes(&self, leader: &str) -> i64 {
        self.get(leader, "/api/session").await["pendingWrites"].as_i64().unwrap()
    }

    /// A patrol as the list shows it: score, what is still to be added, and whether anything waits.
    async fn shown(&self, patrol: &str) -> (Option<i64>, i64, bool) {
        let list = self.get("carol", "/api/sections/7/scores").await;
        let found = list["patrols"].as_array().unwrap().iter().find(|one| one["id"] == patrol).cloned();
        let found = found.unwrap_or_else(|| panic!("{patrol} is not in {list}"));
        let delta = found["pendingDelta"].as_i64().unwrap();
        (found["score"].as_i64(), delta, found["hasPending"].as_bool().unwrap())
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
    let nobody = world.call("POST", "/api/sections/7/scores", &[("x-idempotency-key", "1")], &body).await;
    assert_eq!(nobody.0, 401, "{}", nobody.1);
    let session = world.session("alice").await;
    let headers = [("authorization", session.as_str())];
    let (status, said) = world.call("POST", "/api/sections/7/scores", &headers, &body).await;
    assert_eq!((status, said["message"].as_str()), (400, Some("Idempotency key required")));
    let start = Instant::now();
    let first = world.submit("alice", "1", "interactive", &[("a", 5)]).await;
    assert!(start.elapsed() < Duration::from_secs(30), "interactive points do not wait");
    assert_eq!(first, (200, json!({"success": true, "patrols": [{"id": "a", "name": "A", "score": 5}]})));
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 5)]).await, first);
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 6)]).await.0, 422);
    assert_eq!((world.service.score("a"), world.service.writes().len()), (5, 1));
}

// S2-99, S2-01
#[tokio::test(flavor = "multi_thread")]
async fn of_one_request_with_three_patrols_the_one_that_fails_is_tried_again() {
    let world = World::start().await;
    world.session("alice").await;
    // One of the three writes fails, whichever comes first; the others stand.
    world.service.next(&[Habit::Fail]);
    let points = [("a", 1), ("b", 2), ("c", 3)];
    let (status, body) = world.submit("alice", "1", "interactive", &points).await;
    let scores = || points.map(|(patrol, _)| world.service.score(patrol));
    if status == 202 {
        assert_eq!(body["pending"]["count"], 1, "{body}");
        assert_eq!(scores().iter().filter(|score| **score > 0).count(), 2, "{:?}", scores());
    }
    // The client is not sure and sends it all again, under the same key.
    assert!([200, 202].contains(&world.submit("alice", "1", "interactive", &points).await.0));
    world.settled().await;
    assert_eq!(world.submit("alice", "1", "interactive", &points).await.0, 200);
    assert_eq!((scores(), world.applied().await.len()), ([1, 2, 3], 3));
    let writes = world.service.writes();
    assert_eq!(writes.len(), 4, "three writes, and one of them twice: {writes:?}");
}

// S2-99
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_one_leader_is_no_limit_of_another() {
    let world = World::start().await;
    world.session("bob").await;
    world.service.next(&[Habit::Limit(4)]);
    let (status, body) = world.submit("alice", "1", "interactive", &[("a", 1)]).await;
    assert_eq!((status, body["pending"]["count"].as_i64()), (202, Some(1)));
    assert_eq!(world.submit("bob", "1", "interactive", &[("b", 2), ("c", 3)]).await.0, 200);
    world.settled().await;
    assert_eq!((world.service.score("a"), world.service.score("b"), world.service.score("c")), (1, 2, 3));
}

// S2-100, S2-110, S2-114
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

// S2-114: an interactive request that is limited is told 202, the indicator says why, and it clears.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_limited_is_told_202_and_why_it_waits() {
    let world = World::start().await;
    world.service.next(&[Habit::Limit(3)]);
    let (status, body) = world.submit("alice", "1", "interactive", &[("a", 5)]).await;
    assert_eq!((status, body["pending"]["count"].as_i64()), (202, Some(1)), "{body}");
    let session = world.get("alice", "/api/session").await;
    assert_eq!(
        (session["pendingWrites"].as_i64(), session["waiting"][0]["patrol"].as_str()),
        (Some(1), Some("A"))
    );
    let why = session["waiting"][0]["why"].as_str().unwrap();
    assert!(why.contains("asks for a pause"), "the person sees why it waits: {why}");
    assert_eq!(
        world.submit("alice", "1", "interactive", &[("a", 5)]).await.0,
        202,
        "nothing is promised early"
    );
    world.settled().await;
    assert_eq!((world.pending_writes("alice").await, world.applied().await.len()), (0, 1));
    assert_eq!(
        (world.submit("alice", "1", "interactive", &[("a", 5)]).await.0, world.service.score("a")),
        (200, 5)
    );
}

// S2-101
#[tokio::test(flavor = "multi_thread")]
async fn points_survive_a_new_login() {
    let world = World::start().await;
    world.login("alice").await;
    world.session("bob").await;
    world.service.revoke("alice");
    assert_eq!(world.submit("alice", "1", "interactive", &[("a", 5)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "interactive", &[("a", 3)]).await.0, 200, "another leader goes on");
    let session = world.get("alice", "/api/session").await;
    assert_eq!((session["pendingWrites"].as_i64(), session["signInAgain"].as_bool()), (Some(1), Some(true)));
    assert!(session["waiting"][0]["why"].as_str().unwrap().contains("sign in again"), "{session}");
    world.login("alice").await;
    world.settled().await;
    assert_eq!(world.service.score("a"), 8);
    assert_eq!(world.service.writes().last().unwrap().2, "alice");
    assert_eq!(world.pending_writes("alice").await, 0);
}

// S2-85, S2-86: the list is the external service's own, with what is still to come.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_adds_what_waits_to_the_services_own_scores() {
    let world = World::that_waits(Duration::from_secs(3)).await;
    world.service.set("a", 100);
    world.service.set("quiet", 40);
    assert_eq!(world.submit("alice", "1", "background", &[("a", 2)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "background", &[("a", 3)]).await.0, 202);
    assert_eq!(world.shown("a").await, (Some(100), 5, true), "100 + 5 = 105");
    assert_eq!(world.shown("quiet").await, (Some(40), 0, false), "nobody's points: shown all the same");
    // Somebody else changes the score meanwhile.
    world.service.set("a", 110);
    assert_eq!(world.shown("a").await, (Some(110), 5, true));
    world.settled().await;
    assert_eq!(world.shown("a").await, (Some(115), 0, false));
}

// S2-85: whom the external service does not show its list still sees it.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_service_gives_no_list_the_last_one_goes_on() {
    let world = World::that_waits(Duration::from_secs(60)).await;
    world.service.set("a", 100);
    world.service.set("b", 50);
    assert_eq!(world.shown("a").await, (Some(100), 0, false));
    world.service.revoke("carol");
    assert_eq!(world.submit("alice", "1", "background", &[("a", 5)]).await.0, 202);
    assert_eq!(world.shown("a").await, (Some(100), 5, true));
    assert_eq!(world.submit("alice", "2", "interactive", &[("a", 2)]).await.0, 200);
    assert_eq!(
        world.shown("a").await,
        (Some(107), 0, false),
        "what the relay wrote counts more than the old list"
    );
    assert_eq!(world.shown("b").await, (Some(50), 0, false));
}

// S2-85: a write that is applied and not yet answered is in the score already.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_write_is_under_way_its_points_are_counted_once() {
    let world = World::that_waits(Duration::from_millis(500)).await;
    world.service.set("a", 100);
    world.session("carol").await;
    world.service.next(&[Habit::AnswerLate(1500)]);
    assert_eq!(world.submit("alice", "1", "background", &[("a", 5)]).await.0, 202);
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let (score, delta, waits) = world.shown("a").await;
        assert_eq!(score.unwrap() + delta, 105, "{score:?} + {delta}, waits: {waits}");
        seen.insert((score, waits));
        if !waits {
            break;
        }
    }
    assert!(seen.contains(&(Some(105), true)), "it was looked at while the write was under way: {seen:?}");
}

// S2-104, S2-105, S2-107, S2-111
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_are_one_write_and_two_rows() {
    let world = World::that_waits(Duration::from_secs(4)).await;
    world.service.set("a", 100);
    assert_eq!(world.submit("alice", "1", "background", &[("a", 5)]).await.0, 202);
    assert_eq!(world.submit("bob", "1", "background", &[("a", 3)]).await.0, 202);
    assert!(world.service.writes().is_empty(), "background points wait");
    assert_eq!(world.shown("a").await, (Some(100), 8, true));
    world.settled().await;
    assert_eq!((world.service.score("a"), world.service.writes().len()), (108, 1));
    let told = [("alice".to_owned(), 5, Some(100), Some(105)), ("bob".to_owned(), 3, Some(105), Some(108))];
    assert_eq!(world.applied().await, told);
}

// S2-27
#[tokio::test(flavor = "multi_thread")]
async fn lost_late_and_missing_answers_neither_lose_nor_double_points() {
    let world = World::start().await;
    world.service.next(&[Habit::LoseAnswer, Habit::ApplyLate(3000), Habit::AnswerLate(3000), Habit::Fail]);
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
