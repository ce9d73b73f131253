//! What must not be mixed up: lanes, credentials, addresses, and what was applied with what was not.

use crate::world::{Folder, Habit, Service, call, eventually};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

#[test]
fn one_place_named_in_two_groups_is_one_lane() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("debounce", "4s");
    let relay = folder.start();
    std::thread::scope(|scope| {
        for group in 0..4 {
            let relay = &relay;
            scope.spawn(move || {
                for at in 0..5 {
                    let item = format!(r#"[{{"lane":"a","value":1,"group":"g{group}"}}]"#);
                    let answer = relay.submit(&format!("u{group}"), &at.to_string(), "interactive", &item);
                    assert!([200, 202].contains(&answer.status), "{answer:?}");
                }
            });
        }
    });
    eventually("no update is lost", || service.score("a") == 20);
    let lanes = relay.get("alice", "/v1/relay/scores/lanes").json();
    assert_eq!(lanes["lanes"].as_array().unwrap().len(), 1, "{lanes}");
    // It is found by the group that was said last, also where none was said at first.
    relay.submit("alice", "1", "interactive", r#"[{"lane":"b","value":1}]"#);
    relay.submit(
        "alice",
        "2",
        "background",
        r#"[{"lane":"b","value":2,"group":"h"},{"lane":"b","value":3}]"#,
    );
    let found = relay.get("alice", "/v1/relay/scores/lanes?group=h").json();
    assert_eq!(found["lanes"][0]["pending_delta"], 5, "{found}");
    assert_eq!(relay.get("alice", "/v1/relay/pending?group=h").json()["pending"], 2);
    eventually("both are applied", || service.score("b") == 6);
}

#[test]
fn one_name_in_two_groups_is_two_lanes_where_the_service_hears_of_groups() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let path = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace("/{lane}", "/{group}-{lane}");
    std::fs::write(path, text).unwrap();
    let relay = folder.start();
    let items = r#"[{"lane":"a","value":1,"group":"g"},{"lane":"a","value":2,"group":"h"}]"#;
    assert_eq!(relay.submit("alice", "1", "interactive", items).status, 200);
    assert_eq!((service.score("g-a"), service.score("h-a")), (1, 2));
    assert_eq!(relay.get("alice", "/v1/relay/scores/lanes?group=g").json()["lanes"][0]["applied"], 1);
}

#[test]
fn a_credential_goes_to_its_own_target_only() {
    let service = Service::start();
    let other = format!(
        r#"[relay.target.other]
url = "http://{at}/scores/other-{{lane}}"
body = '{{{{"score":{{value}}}}}}'
tier = "blind"
on_blind = "at-most-once"
[[relay.credential]]
target = "scores"
principal = "alice"
file = "alice"
[[relay.credential]]
target = "scores"
file = "everybody""#,
        at = service.address
    );
    let folder = Folder::for_service(&service, &other);
    folder.write("alice", "hers");
    folder.write("everybody", "everybodys");
    let relay = folder.start();
    let tokens = || std::mem::take(&mut service.books.lock().unwrap().tokens);
    let send = |user: &str, target: &str, key: &str| {
        let headers = [("x-user", user), ("x-idempotency-key", key)];
        let path = format!("/v1/relay/{target}");
        let answer = call(relay.listen, "POST", &path, &headers, &format!(r#"{{"items":{ONE}}}"#));
        assert_eq!(answer.status, 200, "{answer:?}");
        tokens()
    };
    assert_eq!(send("alice", "scores", "1"), ["Bearer hers", "Bearer hers"]);
    assert_eq!(send("bob", "scores", "1"), ["Bearer everybodys", "Bearer everybodys"]);
    assert_eq!(
        (send("alice", "other", "2"), send("bob", "other", "2")),
        (vec![String::new()], vec![String::new()])
    );
    let given = r#"{"target":"other","principal":"alice","value":"given"}"#;
    assert_eq!(relay.operator("POST", "/v1/relay/credentials", given).status, 200);
    assert_eq!(send("alice", "other", "3"), ["Bearer given"], "as from a file");
    assert_eq!(send("alice", "scores", "4"), ["Bearer hers", "Bearer hers"]);
}

#[test]
fn what_cannot_be_an_address_or_a_name_is_refused() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    for lane in [".", "..", "a\\u0000", "\\u0000"] {
        let answer =
            relay.submit("alice", "k", "interactive", &format!(r#"[{{"lane":"{lane}","value":1}}]"#));
        assert_eq!(answer.status, 400, "{lane} {answer:?}");
    }
    for field in ["group", "label", "session"] {
        let item = format!(r#"[{{"lane":"a","value":1,"{field}":"\u0000"}}]"#);
        assert_eq!(relay.submit("alice", "k", "interactive", &item).status, 400, "{field}");
    }
    for path in ["scores/lanes?group=%00", "pending?group=%00", "pending?session=%00"] {
        let answer = relay.get("alice", &format!("/v1/relay/{path}"));
        assert_eq!(answer.status, 400, "{path} {answer:?}");
    }
    let whose = r#"{"target":"scores","principal":"\u0000"}"#;
    assert_eq!(relay.operator("POST", "/v1/relay/release", whose).status, 400);
    assert!(service.writes().is_empty());
    assert_eq!(relay.submit("alice", "k", "interactive", r#"[{"lane":"...","value":1}]"#).status, 200);
}

#[test]
fn what_is_given_up_or_stopped_is_not_promised() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "interference = \"hold\"");
    let relay = folder.start();
    service.next(&[Habit::Answers(422)]);
    for _ in 0..2 {
        let answer = relay.submit("alice", "1", "interactive", ONE);
        let body = answer.json();
        assert_eq!(
            (answer.status, &body["success"], &body["failed"]["count"]),
            (202, &false.into(), &1.into())
        );
        assert_eq!(body["patrols"][0]["status"], "failed");
        assert!(!body.to_string().contains("and will be applied"), "{body}");
    }
    let good = relay.submit("alice", "2", "interactive", ONE);
    assert_eq!((good.status, &good.json()["success"]), (200, &true.into()));
    service.books.lock().unwrap().scores.insert("a".into(), 77);
    for _ in 0..2 {
        let body = relay.submit("alice", "3", "interactive", ONE).json();
        assert_eq!(
            (&body["pending"]["count"], &body["patrols"][0]["status"]),
            (&1.into(), &"blocked".into())
        );
        assert!(body["pending"]["message"].as_str().unwrap().contains("operator"), "{body}");
    }
    let shown = relay.operator("GET", "/v1/relay/lanes?state=blocked", "").json();
    assert_eq!(shown["lanes"][0]["last_error"], "somebody else changed the value: we left 5 and found 77");
}

#[test]
fn a_lane_in_doubt_is_not_requeued_and_says_why() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let _relay = folder.start();
    service.next(&[Habit::Answers(303)]);
    _relay.submit("alice", "1", "background", ONE);
    eventually("the write is answered", || service.writes().len() == 1);
    service.books.lock().unwrap().scores.insert("a".into(), 77);
    let listed = || folder.run(&["relay", "list", "--state", "in-doubt"]).1;
    eventually("a person must decide", || listed().contains("in-doubt"));
    let (code, out, errors) = folder.run(&["relay", "requeue", "1"]);
    assert_eq!((code, out.as_str()), (Some(5), ""));
    assert!(errors.contains("resolve"), "{errors}");
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    for args in [["--state", "foo"], ["--limit", "0"]] {
        assert_eq!(folder.run(&[&["relay", "list"], &args[..]].concat()).0, Some(2), "{args:?}");
    }
    let text = std::fs::read_to_string(folder.path().join("semel.toml")).unwrap();
    let text = text.replace(
        "tier = \"read-back\"",
        "tier = \"key\"\nkey_retention = \"0s\"\nheaders = { X-Key = \"{key}\" }",
    );
    folder.write("semel.toml", &text);
    let (code, _, errors) = folder.run(&["serve", "relay"]);
    assert_eq!(code, Some(3));
    assert!(errors.contains("key_retention"), "{errors}");
}
