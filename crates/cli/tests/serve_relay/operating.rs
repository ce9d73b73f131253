//! What operators see and do.

use crate::world::{Folder, Habit, Service, call, eventually};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

#[test]
fn health_numbers_and_the_end() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("debounce", "4s");
    let mut relay = folder.start();
    assert_eq!(relay.operator("GET", "/healthz", "").status, 200);
    assert_eq!(relay.operator("GET", "/readyz", "").status, 200);
    relay.submit("alice", "1", "interactive", ONE);
    relay.submit("alice", "2", "background", r#"[{"lane":"a","value":5},{"lane":"a","value":1}]"#);
    let metrics = relay.operator("GET", "/metrics", "").text;
    for line in [
        "score_outbox_pending_total 2",
        "score_outbox_processed_total{status=\"completed\"} 1",
        "score_outbox_retry_total 0",
        "semel_relay_lanes{state=\"in-doubt\"} 0",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line}\n{metrics}");
    }
    let foreign = call(relay.admin, "GET", "/metrics", &[("origin", "http://evil.example")], "");
    assert_eq!(foreign.status, 403);
    assert!(relay.operator("GET", "/openapi.json", "").json()["paths"].is_object());
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
    // The next start applies what was accepted.
    let _relay = folder.start();
    eventually("it is applied", || service.score("a") == 11);
}

#[test]
fn what_is_in_doubt_is_shown_and_resolved_by_command() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    service.next(&[Habit::Answers(500)]);
    let headers = [("x-user", "alice"), ("x-idempotency-key", "1"), ("x-sync-mode", "background")];
    call(relay.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{ONE}}}"#));
    eventually("the write is answered", || service.writes().len() == 1);
    service.books.lock().unwrap().scores.insert("a".into(), 77);
    let listed = || folder.run(&["relay", "list", "--state", "in-doubt", "--json"]);
    eventually("a person must decide", || listed().1.contains("\"in-doubt\""));
    let (code, text, _) = folder.run(&["relay", "show", "1"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("in-doubt") && text.contains("value 77"), "{text}");
    let (code, text, errors) = folder.run(&["relay", "resolve", "1", "--applied", "--by", "carol"]);
    assert_eq!((code, text.as_str()), (Some(0), "resolved: applied\n"), "{errors}");
    let (code, _, errors) = folder.run(&["relay", "resolve", "1", "--applied"]);
    assert_eq!((code, errors.as_str()), (Some(5), "semel: the lane is not in doubt\n"));
    let (_, text, _) = folder.run(&["relay", "audit"]);
    assert!(text.lines().count() == 3 && text.contains("carol"), "{text}");
    assert_eq!(service.score("a"), 77, "nothing more is written");
}

#[test]
fn dead_letters_come_back_by_command_also_while_nothing_runs() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    service.next(&[Habit::Answers(422)]);
    let answer = relay.submit("alice", "1", "interactive", ONE);
    assert_eq!((answer.status, answer.json()["failed"]["count"].as_i64()), (202, Some(1)), "{answer:?}");
    relay.kill();
    let (code, text, errors) = folder.run(&["relay", "list", "--state", "dead"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("scores"), "{text}");
    let (code, text, errors) = folder.run(&["relay", "requeue", "1"]);
    assert_eq!((code, text.as_str()), (Some(0), "requeued: 1\n"), "{errors}");
    let _relay = folder.start();
    eventually("it is applied", || service.score("a") == 5);
}

#[test]
fn settings_that_are_unsafe_are_refused_with_what_to_change() {
    let service = Service::start();
    let refused = |more: &str, target: &str| {
        let folder = Folder::for_service(&service, target);
        let path = folder.path().join("semel.toml");
        let text =
            std::fs::read_to_string(&path).unwrap().replace("[relay]\n", &format!("[relay]\n{more}\n"));
        std::fs::write(path, text).unwrap();
        let (code, _, errors) =
            folder.run(&["serve", "relay", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        assert_eq!(code, Some(3), "{errors}");
        errors
    };
    assert!(refused("client_max_age = \"30d\"", "").contains("retention.completed"));
    assert!(refused("surprise = 1", "").contains("surprise"));
    assert!(refused("", "reducer = \"median\"").contains("median"));
    assert!(refused("admin_token_file = \"nowhere\"", "").contains("nowhere"));
}

/// What would be accepted and then never be written, or be written wrongly, is refused by `check` and at start.
#[test]
fn targets_that_could_not_work_are_refused() {
    let service = Service::start();
    let refused = |from: &str, to: &str| {
        let folder = Folder::for_service(&service, "");
        let path = folder.path().join("semel.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replace(from, to)).unwrap();
        let (code, _, errors) =
            folder.run(&["serve", "relay", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        assert_eq!(code, Some(3), "{errors}");
        let (code, said, more) = folder.run(&["check", "--config", "semel.toml"]);
        assert_ne!(code, Some(0), "{said}{more}");
        errors
    };
    let read = format!("read = {{ url = \"http://{}", service.address);
    let elsewhere = refused(&read, "read = { url = \"http://127.0.0.2:9");
    assert!(elsewhere.contains("read.url") && elsewhere.contains("127.0.0.2"), "{elsewhere}");
    let broken = refused(r#"{{"score":{after}}}"#, r#"{{"score":{after}"#);
    assert!(broken.contains("not JSON"), "{broken}");
    let added = refused(
        "body = '{{\"score\":{after}}}'\ntier = \"read-back\"",
        "body = '{{\"add\":{delta}}}'\nreducer = \"max\"\ntier = \"blind\"\non_blind = \"at-most-once\"",
    );
    assert!(added.contains("reducer max") && added.contains("{delta}"), "{added}");
}

/// A sender whose write may or may not have been applied is told that it is accepted when the relay is told to stop, and
/// what is tried again is counted.
#[test]
fn a_sender_that_waits_is_answered_when_the_relay_is_told_to_stop() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("late_window", "15s");
    let mut relay = folder.start();
    service.next(&[Habit::Answers(503), Habit::Answers(500)]);
    let listen = relay.listen;
    let waiting = std::thread::spawn(move || {
        let headers = [("x-user", "alice"), ("x-idempotency-key", "1"), ("content-type", "application/json")];
        crate::world::try_call(listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{ONE}}}"#))
    });
    eventually("it was tried twice", || service.writes().len() == 2);
    let metrics = relay.operator("GET", "/metrics", "").text;
    let retries = metrics.lines().find_map(|line| line.strip_prefix("score_outbox_retry_total "));
    assert!(retries.is_some_and(|count| count != "0"), "{metrics}");
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, libc::SIGTERM) }, 0);
    let answer = waiting.join().unwrap().expect("the sender is not cut off");
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
    let _relay = folder.start();
    eventually("it is applied", || service.score("a") == 5);
}

/// A relay that is told to stop while it writes ends the write, and leaves nothing for a person.
#[test]
fn a_write_under_way_is_ended_before_the_relay_ends() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let mut relay = folder.start();
    service.next(&[Habit::AppliesAndHangs]);
    let headers = [("x-user", "alice"), ("x-idempotency-key", "1"), ("x-sync-mode", "background")];
    call(relay.listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{ONE}}}"#));
    eventually("the write is under way", || service.writes().len() == 1);
    // SAFETY: the process is a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(relay.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(relay.child.wait().unwrap().code(), Some(0), "no lane is left in its hands");
    let relay = folder.start();
    eventually("it is known to be applied", || relay.submit("alice", "1", "interactive", ONE).status == 200);
    assert_eq!((service.score("a"), service.writes().len()), (5, 1), "written once");
}
