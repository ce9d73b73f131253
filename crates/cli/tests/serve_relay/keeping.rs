//! What a relay keeps for its callers and operators: credentials given by call, lists, the clock; and what it says where
//! nobody chose a profile.

use serde_json::Value;

use crate::world::{Folder, Service, call, eventually};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;
const GIVEN: &str = r#"{"target":"scores","principal":"alice","value":"given"}"#;

#[test]
fn a_credential_given_by_call_survives_a_restart_and_is_sealed() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    assert_eq!(relay.operator("POST", "/v1/relay/credentials", GIVEN).status, 200);
    relay.kill();
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 200);
    let tokens = || std::mem::take(&mut service.books.lock().unwrap().tokens);
    assert_eq!(tokens(), ["Bearer given", "Bearer given"]);
    assert_eq!(relay.submit("bob", "1", "interactive", ONE).status, 200);
    assert_eq!(tokens(), ["", ""], "nobody else's");
    for name in ["relay.db", "relay.db-wal"] {
        let file = std::fs::read(folder.path().join(name)).unwrap_or_default();
        assert!(!file.windows(12).any(|window| window == b"Bearer given"), "{name}");
    }
    let trail = folder.run(&["relay", "audit"]).1;
    assert!(trail.contains("credential-given") && !trail.contains("Bearer"), "{trail}");
    let take_back = r#"{"target":"scores","principal":"alice","take_back":true}"#;
    assert_eq!(relay.operator("POST", "/v1/relay/credentials", take_back).status, 200);
    assert_eq!(relay.submit("alice", "2", "interactive", ONE).status, 200);
    assert_eq!(tokens(), ["", ""], "it was taken back");
}

#[test]
fn without_a_key_no_credential_is_taken_and_a_sealed_one_is_not_done_without() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    assert_eq!(relay.operator("POST", "/v1/relay/credentials", GIVEN).status, 200);
    relay.kill();
    folder.rewrite(|text| text.replace("at_rest = { keys = \"relay.keys\" }\n", ""));
    let relay = folder.start();
    let answer = relay.operator("POST", "/v1/relay/credentials", GIVEN);
    assert_eq!(answer.status, 409, "{answer:?}");
    assert_eq!(answer.json()["code"], "at-rest-key-missing", "{answer:?}");
    assert!(answer.text.contains("[relay.at_rest]"), "it says what to write: {answer:?}");
    assert_eq!(relay.submit("alice", "1", "background", ONE).status, 202);
    let shown = || folder.run(&["relay", "list"]).1;
    eventually("it waits for its key", || shown().contains("no at-rest key"));
    assert!(service.writes().is_empty(), "it is not sent without its credential");
    folder.rewrite(|text| text.replace("[relay]\n", "[relay]\nat_rest = { keys = \"missing\" }\n"));
    let (code, _, error) = folder.run(&["serve", "relay", "--store", "sqlite:other.db"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("relay.at_rest"), "{error}");
}

#[test]
fn the_command_line_gives_a_credential_also_where_no_relay_runs() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.start().kill();
    folder.write("token", "by-hand\n");
    let whose = ["--target", "scores", "--principal", "alice"];
    let give = [&["relay", "credentials", "--give", "token"], whose.as_slice()].concat();
    assert_eq!(folder.run(&give).0, Some(0));
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 200);
    assert_eq!(service.books.lock().unwrap().tokens.last().map(String::as_str), Some("Bearer by-hand"));
}

#[test]
fn who_has_no_credential_is_told_so() {
    let service = Service::start();
    service.books.lock().unwrap().refused.insert(String::new());
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    assert_eq!(relay.submit("bob", "1", "interactive", ONE).status, 202);
    let (_, text, _) = folder.run(&["relay", "list"]);
    assert!(text.contains("there is no credential of bob"), "{text}");
    let lanes: Value = serde_json::from_str(&folder.run(&["relay", "--json", "list"]).1).unwrap();
    let lane = &lanes["lanes"][0];
    assert_eq!((lane["state"].as_str(), lane["standing"].as_str()), (Some("open"), Some("parked")), "{lane}");
    assert_eq!((lane["parked"].as_i64(), lane["pending"].as_i64()), (Some(1), Some(0)), "{lane}");
}

#[test]
fn where_nobody_chose_a_profile_the_answers_are_plain_and_either_header_is_read() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.rewrite(|text| text.replace("profile = \"scores\"\n", ""));
    let relay = folder.start();
    let mut texts = String::new();
    for (header, key) in [("idempotency-key", "1"), ("x-idempotency-key", "2"), ("idempotency-key", "2")] {
        let headers = [("x-user", "alice"), (header, key)];
        let answer =
            call(relay.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{ONE}}}"#));
        assert_eq!(
            (answer.status, answer.json()["lanes"][0]["lane"].as_str()),
            (200, Some("a")),
            "{answer:?}"
        );
        texts += &answer.text;
    }
    assert_eq!(service.score("a"), 10, "a key is one key, whichever header brings it");
    let answer = call(relay.listen, "POST", "/v1/relay/scores", &[("x-user", "alice")], "{}");
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.text.contains("Idempotency-Key") && answer.head.contains("problem+json"), "{answer:?}");
    texts += &answer.text;
    texts += &relay.get("alice", "/v1/relay/scores/lanes").text;
    texts += &relay.get("alice", "/v1/relay/pending").text;
    assert!(!texts.contains("patrol") && !texts.contains("score\"") && !texts.contains("energy"), "{texts}");
}

#[test]
fn lists_have_the_newest_first_and_are_found_by_key() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "debounce = \"1m\"");
    let relay = folder.start();
    for (key, lane) in [("k1", "a"), ("k2", "b"), ("k3", "c")] {
        let items = format!(r#"[{{"lane":"{lane}","value":1}}]"#);
        assert_eq!(relay.submit("alice", key, "background", &items).status, 202);
    }
    let lanes = |args: &[&str]| {
        let (code, text, error) = folder.run(&[&["relay", "list", "--json"], args].concat());
        assert_eq!(code, Some(0), "{error}");
        let found: Value = serde_json::from_str(&text).unwrap();
        let names = found["lanes"].as_array().unwrap().iter();
        let names = names.map(|lane| lane["lane"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        (names.join(" "), found)
    };
    assert_eq!(lanes(&[]).0, "c b a");
    assert_eq!(lanes(&["--oldest-first"]).0, "a b c");
    let (first, found) = lanes(&["--limit", "2"]);
    let before = found["next_before"].to_string();
    assert_eq!((first.as_str(), lanes(&["--before", &before]).0.as_str()), ("c b", "a"));
    assert_eq!(lanes(&["--after", &before]).0, "c");
    assert_eq!(lanes(&["--key", "k2"]).0, "b");
    assert_eq!((lanes(&["--lane", "c"]).0, lanes(&["--target", "other"]).0), ("c".to_owned(), String::new()));
    assert_eq!(
        (lanes(&["--state", "pending"]).0, lanes(&["--status", "dead"]).0.as_str()),
        ("c b a".to_owned(), "")
    );
    let (code, _, error) = folder.run(&["relay", "list", "--state", "lost"]);
    assert!(code == Some(2) && error.contains("in-doubt"), "{error}");
    let text = folder.run(&["relay", "list"]).1;
    assert!(text.ends_with("3 lanes: 3 open\n"), "{text}");
    let id = found["lanes"][0]["id"].to_string();
    let shown: Value = serde_json::from_str(&folder.run(&["relay", "show", &id, "--json"]).1).unwrap();
    assert!(shown["due_at"].as_str().unwrap().ends_with('Z'), "times are for people, too: {shown}");
    assert!(shown["entries"][0]["since"].as_str().unwrap().ends_with('Z'), "{shown}");
}

#[test]
fn a_jump_of_the_clock_is_shown_and_confirmed() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "debounce = \"1m\"");
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "background", ONE).status, 202);
    let (code, _, error) = folder.run(&["relay", "clock", "--confirm", "--reason", "no"]);
    assert!(code == Some(5) && error.contains("nothing to confirm"), "{error}");
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, libc::SIGTERM) }, 0);
    let mut relay = relay;
    relay.child.wait().unwrap();
    let file = semel_store::sqlite::rusqlite::Connection::open(folder.path().join("relay.db")).unwrap();
    // As if the machine had been started anew, with a clock that is ahead by thirty days.
    let sql =
        "UPDATE relay_meta SET value = CASE name WHEN 'high_water' THEN value - 2592000000 WHEN 'boot' THEN 1
        ELSE 1 END WHERE name IN ('high_water', 'boot', 'jump')";
    assert_eq!(file.execute(sql, []).unwrap(), 3);
    drop(file);
    let relay = folder.start();
    let (_, text, _) = folder.run(&["relay", "clock"]);
    assert!(text.contains("semel relay clock --confirm --reason TEXT"), "{text}");
    assert!(folder.run(&["relay", "list"]).1.contains("semel relay clock"), "the list says it");
    assert!(relay.operator("GET", "/metrics", "").text.contains("semel_relay_clock_frozen 1\n"));
    let (code, text, error) =
        folder.run(&["relay", "clock", "--confirm", "--reason", "it is right", "--by", "ann"]);
    assert!(code == Some(0) && !text.contains("--confirm"), "{text} {error}");
    assert!(relay.operator("GET", "/metrics", "").text.contains("semel_relay_clock_frozen 0\n"));
    let trail = folder.run(&["relay", "audit"]).1;
    assert!(
        trail.contains("clock-confirmed") && trail.contains("it is right") && trail.contains("ann"),
        "{trail}"
    );
}

#[test]
fn a_relay_without_targets_does_not_start_and_a_missing_file_is_warned_of() {
    let folder = Folder::with("[relay]\n");
    for command in [&["serve", "relay"][..], &["check"]] {
        let (code, text, error) = folder.run(command);
        assert_ne!(code, Some(0), "{command:?}");
        assert!(format!("{text}{error}").contains("[relay.target.NAME]"), "{command:?} {text} {error}");
    }
    let service = Service::start();
    let more = "[[relay.credential]]\ntarget = \"scores\"\nfile = \"nowhere.token\"";
    let folder = Folder::for_service(&service, more);
    let (_, text, error) = folder.run(&["check"]);
    assert!(format!("{text}{error}").contains("nowhere.token"), "{text} {error}");
}

/// What came of a request that is older than what is kept may have been forgotten: taken in, it would be written twice.
#[test]
fn a_request_older_than_what_is_remembered_is_refused_unless_it_is_known() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    let ago = |seconds: u64| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let millis = i64::try_from(since.as_millis()).unwrap() - i64::try_from(seconds).unwrap() * 1000;
        semel_contract::time::Timestamp::from_millis(millis).to_string()
    };
    let day = ago(86_400);
    let refused = relay.submit_sent_at("alice", "old", &day, ONE);
    assert!(refused.status == 422 && refused.head.contains("problems/too-old"), "{refused:?}");
    let future = relay.submit_sent_at("alice", "old", "2100-01-01T00:00:00Z", ONE);
    assert!(future.status == 400 && future.head.contains("problems/first-sent-in-future"), "{future:?}");
    assert_eq!(relay.submit_sent_at("alice", "old", "soon", ONE).status, 400);
    assert!(service.writes().is_empty(), "nothing of it is written");
    assert_eq!(relay.submit_sent_at("alice", "new", &ago(3600), ONE).status, 200);
    let again = relay.submit_sent_at("alice", "new", &day, ONE);
    assert_eq!(
        (again.status, service.writes().len()),
        (200, 1),
        "what is known is answered however old: {again:?}"
    );
}
