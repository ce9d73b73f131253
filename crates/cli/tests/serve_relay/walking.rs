//! What a newcomer tries that the other pages leave out.

use crate::world::{Folder, Service, call};

#[test]
fn another_profile_has_its_own_header_and_speaks_of_lanes() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "profile = \"ietf\"");
    let relay = folder.start();
    let sent = |header: &str, mode: &str, items: &str| {
        let headers = [("x-user", "alice"), (header, "\"k1\""), ("x-sync-mode", mode)];
        call(relay.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{items}}}"#))
    };
    let one = r#"[{"lane":"a","value":5,"label":"Eagles","group":"g"}]"#;
    let first = sent("idempotency-key", "interactive", one);
    assert_eq!(first.status, 200, "{first:?}");
    let body = first.json();
    assert_eq!((body["success"].as_bool(), body["patrols"].is_null()), (Some(true), true), "{body}");
    let lane = &body["lanes"][0];
    assert_eq!((lane["lane"].as_str(), lane["label"].as_str()), (Some("a"), Some("Eagles")));
    assert_eq!((lane["group"].as_str(), lane["value"].as_i64()), (Some("g"), Some(5)));
    let other = sent("idempotency-key", "interactive", r#"[{"lane":"a","value":6}]"#);
    assert_eq!(other.status, 422);
    assert!(other.json()["type"].as_str().unwrap().contains("fingerprint-mismatch"), "{other:?}");
    assert_eq!(service.score("a"), 5);
}

#[test]
fn groups_are_apart_and_what_waits_is_the_callers_own() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "debounce = \"1m\"");
    let path = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace("/{lane}", "/{group}-{lane}");
    std::fs::write(path, text).unwrap();
    let relay = folder.start();
    let items = r#"[{"lane":"a","value":1,"group":"g","session":"s"},{"lane":"a","value":2,"group":"h","session":"t"}]"#;
    assert_eq!(relay.submit("alice", "1", "background", items).status, 202);
    assert_eq!(relay.submit("bob", "1", "background", r#"[{"lane":"a","value":4,"group":"g"}]"#).status, 202);
    let lanes = |query: &str| {
        let body = relay.get("carol", &format!("/v1/relay/scores/lanes{query}")).json();
        let deltas =
            body["lanes"].as_array().unwrap().iter().map(|lane| lane["pending_delta"].as_i64().unwrap());
        deltas.collect::<Vec<_>>()
    };
    assert_eq!((lanes("?group=g"), lanes("?group=h"), lanes("?group=i")), (vec![5], vec![2], vec![]));
    assert_eq!(lanes("").len(), 2);
    let pending = |user: &str, query: &str| {
        relay.get(user, &format!("/v1/relay/pending{query}")).json()["pending"].as_i64().unwrap()
    };
    assert_eq!((pending("alice", ""), pending("bob", ""), pending("carol", "")), (2, 1, 0));
    assert_eq!((pending("alice", "?group=g"), pending("alice", "?session=t")), (1, 1));
    assert_eq!(pending("alice", "?group=g&session=t"), 0);
    // A replay says how it stands: still waiting.
    let again = relay.submit("alice", "1", "background", items);
    assert_eq!((again.status, again.json()["pending"]["count"].as_i64()), (202, Some(2)));
    assert_eq!(call(relay.listen, "GET", "/v1/relay/pending", &[], "").status, 401, "of nobody");
    assert!(service.writes().is_empty(), "nothing is written before its time");
}
