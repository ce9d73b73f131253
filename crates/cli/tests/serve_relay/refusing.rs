//! What is refused looks the same everywhere: a problem, with a status and words, whoever noticed it.

use serde_json::Value;

use crate::world::{Answer, Folder, Service, call};

fn is_problem(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(
        answer.head.to_ascii_lowercase().contains("content-type: application/problem+json"),
        "{answer:?}"
    );
    let body = answer.json();
    assert_eq!(body["status"], status, "{body}");
    for name in ["type", "title", "detail", "error", "message"] {
        assert!(body[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {body}");
    }
}

#[test]
fn what_the_framework_refuses_is_a_problem_on_both_addresses() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    let json = [("content-type", "application/json"), ("x-user", "alice"), ("x-idempotency-key", "1")];
    is_problem(&call(relay.listen, "GET", "/nowhere", &[], ""), 404);
    is_problem(&call(relay.listen, "POST", "/v1/relay/unheard-of", &json, "{}"), 404);
    is_problem(&call(relay.listen, "GET", "/v1/relay/unheard-of/lanes", &json, ""), 404);
    is_problem(&call(relay.listen, "PUT", "/v1/relay/scores", &json, "{}"), 405);
    let (admin, send) = (relay.admin, "POST");
    is_problem(&call(admin, "GET", "/nowhere", &[], ""), 404);
    is_problem(&call(admin, "DELETE", "/v1/relay/lanes", &[], ""), 405);
    is_problem(&call(admin, "GET", "/v1/relay/lanes/seven", &[], ""), 400);
    is_problem(&call(admin, "GET", "/v1/relay/lanes?limit=many", &[], ""), 400);
    is_problem(&call(admin, send, "/v1/relay/release", &[], r#"{"target":"a"}"#), 415);
    is_problem(&call(admin, send, "/v1/relay/release", &json[..1], "{"), 400);
    is_problem(&call(admin, send, "/v1/relay/release", &json[..1], r#"{"target":"scores"}"#), 422);
    is_problem(&call(admin, send, "/v1/relay/lanes/7/resolve", &json[..1], r#"{"outcome":"applied"}"#), 404);
    is_problem(&call(admin, "GET", "/metrics", &[("origin", "http://evil.example")], ""), 403);
    // What the profile writes stays as the profile writes it.
    let large = format!(r#"{{"items":[{{"lane":"{}","value":1}}]}}"#, "x".repeat(2 << 20));
    if let Some(answer) = crate::world::try_call(relay.listen, send, "/v1/relay/scores", &json, &large) {
        assert_eq!(answer.status, 413);
        assert!(answer.json()["message"].is_string(), "{answer:?}");
    }
    let broken = call(relay.listen, send, "/v1/relay/scores", &json, "{");
    assert_eq!(broken.status, 400);
    assert!(broken.json()["message"].is_string());
    assert_eq!(relay.get("alice", "/v1/relay/pending").json()["pending"], 0, "nothing is stored");
}

#[test]
fn a_command_about_something_unknown_fails_and_says_what() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    let is_refused = |args: &[&str], word: &str| {
        let (code, out, errors) = folder.run(args);
        assert_eq!((code, out.as_str()), (Some(5), ""), "{args:?}: {errors}");
        assert!(errors.starts_with("semel: ") && errors.contains(word), "{args:?}: {errors}");
        let (code, out, errors) = folder.run(&[args, &["--json"]].concat());
        assert_eq!((code, out.as_str()), (Some(5), ""), "{args:?}: {errors}");
        let error: Value = serde_json::from_str(&errors).unwrap_or_else(|_| panic!("{errors}"));
        assert_eq!((error["error"].as_str(), error["exit"].as_i64()), (Some("refused"), Some(5)));
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    };
    let all = || {
        is_refused(&["relay", "show", "7"], "no such lane");
        is_refused(&["relay", "requeue", "7"], "no such lane");
        is_refused(&["relay", "resolve", "7", "--applied"], "no such lane");
        is_refused(&["relay", "release", "--target", "unheard-of", "--principal", "a"], "unheard-of");
    };
    all();
    relay.kill();
    all();
    let (code, out, _) = folder.run(&["relay", "release", "--target", "scores", "--principal", "nobody"]);
    assert_eq!((code, out.as_str()), (Some(0), "released: 0\n"), "a target that is known and has nothing");
    for args in [&["relay", "shwo", "--json"][..], &["gate", "show", "--json"]] {
        let (code, _, errors) = folder.run(args);
        let error: Value = serde_json::from_str(&errors).unwrap_or_else(|_| panic!("{errors}"));
        assert_eq!((code, error["error"].as_str()), (Some(2), Some("usage")));
    }
    let (code, _, errors) = folder.run(&["gate", "show", "x", "--store", "sqlite:nowhere.db", "--json"]);
    let error: Value = serde_json::from_str(&errors).unwrap_or_else(|_| panic!("{errors}"));
    assert_eq!((code, error["error"].as_str()), (Some(4), Some("io")), "the same for every command");
}
