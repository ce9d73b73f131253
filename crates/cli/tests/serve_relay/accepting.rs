//! What senders see.

use std::time::{Duration, Instant};

use crate::world::{Folder, Service, call, eventually};

// S2-109
#[test]
fn what_is_malformed_is_refused_and_nothing_is_stored() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "items_max = 2");
    let relay = folder.start();
    let user = [("x-user", "alice")];
    let missing =
        call(relay.listen, "POST", "/v1/relay/scores", &user, r#"{"items":[{"lane":"a","value":1}]}"#);
    assert_eq!((missing.status, missing.json()["message"].as_str()), (400, Some("Idempotency key required")));
    let nobody = call(relay.listen, "POST", "/v1/relay/scores", &[("x-idempotency-key", "k")], "{}");
    assert_eq!(nobody.status, 401);
    for items in [
        "[]",
        r#"[{"lane":"a","value":"x"}]"#,
        r#"[{"lane":"a","value":9007199254740992}]"#,
        r#"[{"lane":"a","value":1},{"lane":"a","value":1},{"lane":"a","value":1}]"#,
        r#"[{"lane":"a","value":1},{"lane":"b"}]"#,
    ] {
        assert_eq!(relay.submit("alice", "k", "interactive", items).status, 400, "{items}");
    }
    assert_eq!(
        relay.submit("alice", &"k".repeat(256), "interactive", r#"[{"lane":"a","value":1}]"#).status,
        400
    );
    assert_eq!(relay.submit("alice", "k", "sideways", r#"[{"lane":"a","value":1}]"#).status, 400);
    let unknown = call(relay.listen, "POST", "/v1/relay/nothing", &user, "{}");
    assert_eq!(unknown.status, 404);
    assert_eq!(relay.get("alice", "/v1/relay/pending").json()["pending"], 0);
    assert_eq!(relay.get("alice", "/v1/relay/scores/lanes").json()["lanes"].as_array().unwrap().len(), 0);
    assert!(service.writes().is_empty());
    // The longest key, with blanks and letters of other scripts, is one.
    let key = format!("schlüssel {}", "k".repeat(245));
    assert_eq!(relay.submit("alice", &key, "interactive", r#"[{"lane":"a","value":1}]"#).status, 200);
}

#[test]
fn an_interactive_change_is_applied_at_once_and_known_again() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("debounce", "60s");
    service.books.lock().unwrap().scores.insert("a".into(), 100);
    let relay = folder.start();
    let items = r#"[{"lane":"a","value":5,"label":"Eagles","group":"g"},{"lane":"b","value":2}]"#;
    let start = Instant::now();
    let first = relay.submit("alice", "1", "interactive", items);
    assert!(start.elapsed() < Duration::from_secs(30), "no debounce: {:?}", start.elapsed());
    assert_eq!(first.status, 200, "{first:?}");
    let body = first.json();
    assert_eq!(body["success"], true);
    let patrol = &body["patrols"][0];
    assert_eq!(
        (patrol["id"].as_str(), patrol["name"].as_str(), patrol["score"].as_i64()),
        (Some("a"), Some("Eagles"), Some(105))
    );
    let again = relay.submit("alice", "1", "interactive", items);
    assert_eq!((again.status, again.json()), (200, body));
    assert!(again.head.to_ascii_lowercase().contains("idempotency-replayed: true"), "{}", again.head);
    assert_eq!(relay.submit("alice", "1", "interactive", r#"[{"lane":"a","value":6}]"#).status, 422);
    assert_eq!(
        relay.submit("bob", "1", "interactive", r#"[{"lane":"a","value":6}]"#).status,
        200,
        "keys are each user's own"
    );
    assert_eq!((service.score("a"), service.score("b")), (111, 2));
}

// S2-110
#[test]
fn background_changes_of_two_leaders_become_one_write() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("debounce", "4s");
    service.books.lock().unwrap().scores.insert("a".into(), 100);
    let relay = folder.start();
    let first =
        relay.submit("alice", "1", "background", r#"[{"lane":"a","value":5,"group":"g","session":"s"}]"#);
    assert_eq!((first.status, first.json()["pending"]["count"].as_i64()), (202, Some(1)), "{first:?}");
    assert!(first.json()["pending"]["message"].is_string());
    assert!(service.writes().is_empty());
    assert_eq!(relay.submit("bob", "1", "background", r#"[{"lane":"a","value":3,"group":"g"}]"#).status, 202);
    let patrols = relay.get("alice", "/v1/relay/scores/lanes?group=g").json();
    let lane = &patrols["lanes"][0];
    assert_eq!((lane["pending_delta"].as_i64(), lane["has_pending"].as_bool()), (Some(8), Some(true)));
    assert_eq!(patrols["patrols"][0]["pendingDelta"], 8);
    assert_eq!(relay.get("alice", "/v1/relay/pending?group=g&session=s").json()["pending"], 1);
    assert_eq!(relay.get("alice", "/v1/relay/pending?group=h").json()["pending"], 0);
    eventually("it is applied", || service.score("a") == 108);
    assert_eq!(service.writes(), [("a".to_owned(), 108)]);
    eventually("it is settled", || relay.get("alice", "/v1/relay/pending").json()["pendingWrites"] == 0);
    let lane = relay.get("alice", "/v1/relay/scores/lanes?group=g").json()["lanes"][0].clone();
    assert_eq!((lane["applied"].as_i64(), lane["has_pending"].as_bool()), (Some(108), Some(false)));
    assert_eq!(
        relay
            .submit("alice", "1", "background", r#"[{"lane":"a","value":5,"group":"g","session":"s"}]"#)
            .status,
        200
    );
    let rows = relay.operator("GET", "/v1/relay/audit", "").json()["rows"].clone();
    let told: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["principal"].as_str().unwrap(), row["before"].as_i64(), row["after"].as_i64()))
        .collect();
    assert_eq!(told, [("alice", Some(100), Some(105)), ("bob", Some(105), Some(108))]);
}

#[test]
fn many_at_once_are_each_applied_once() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    std::thread::scope(|scope| {
        for user in 0..8 {
            let relay = &relay;
            scope.spawn(move || {
                for at in 0..5 {
                    for _ in 0..2 {
                        let answer = relay.submit(
                            &format!("u{user}"),
                            &at.to_string(),
                            "interactive",
                            r#"[{"lane":"a","value":1}]"#,
                        );
                        assert!([200, 202].contains(&answer.status), "{answer:?}");
                    }
                }
            });
        }
    });
    eventually("all are applied", || service.score("a") == 40);
    assert!(service.writes().len() < 40, "merging saves calls: {}", service.writes().len());
}
