//! What senders see when the service, a credential or the relay itself fails.

use std::time::Duration;

use crate::world::{Folder, Habit, Service, eventually, try_call};

const ONE: &str = r#"[{"lane":"a","value":5}]"#;

// S2-110
#[test]
fn a_rate_limit_is_waited_for() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    folder.set("sync_deadline", "3s");
    let relay = folder.start();
    service.next(&[Habit::Limits(5)]);
    let answer = relay.submit("alice", "1", "interactive", ONE);
    assert_eq!((answer.status, answer.json()["pending"]["count"].as_i64()), (202, Some(1)));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(service.writes().len(), 1, "nobody knocks before the time");
    eventually("it is applied after the pause", || service.score("a") == 5);
    eventually("its key says so", || relay.submit("alice", "1", "interactive", ONE).status == 200);
}

#[test]
fn of_three_the_one_that_fails_is_tried_again() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    service.next(&[Habit::Answers(503), Habit::Answers(503), Habit::Answers(503)]);
    let items = r#"[{"lane":"a","value":1},{"lane":"b","value":2},{"lane":"c","value":3}]"#;
    relay.submit("alice", "1", "interactive", items);
    eventually("all are applied", || {
        (service.score("a"), service.score("b"), service.score("c")) == (1, 2, 3)
    });
    eventually("its key says so", || relay.submit("alice", "1", "interactive", items).status == 200);
}

#[test]
fn of_one_request_what_is_written_stays_and_the_rest_follows() {
    let service = Service::start();
    let folder = Folder::for_service(&service, "");
    let relay = folder.start();
    service.next(&[Habit::Limits(2)]);
    let items = r#"[{"lane":"a","value":1},{"lane":"b","value":2},{"lane":"c","value":3}]"#;
    relay.submit("alice", "1", "interactive", items);
    let scores = || [service.score("a"), service.score("b"), service.score("c")];
    eventually("all are applied", || scores() == [1, 2, 3]);
    eventually("its key says so", || relay.submit("alice", "1", "interactive", items).status == 200);
    assert_eq!(scores(), [1, 2, 3], "sent again, nothing is added");
}

#[test]
fn a_refused_credential_waits_for_a_new_one() {
    let service = Service::start();
    let folder = Folder::for_service(
        &service,
        "[[relay.credential]]\ntarget = \"scores\"\nprincipal = \"alice\"\nfile = \"alice.token\"",
    );
    folder.write("alice.token", "old");
    service.books.lock().unwrap().refused.insert("Bearer old".into());
    let relay = folder.start();
    assert_eq!(relay.submit("alice", "1", "interactive", ONE).status, 202);
    assert_eq!(relay.submit("bob", "1", "interactive", r#"[{"lane":"a","value":3}]"#).status, 200);
    assert_eq!(service.score("a"), 3, "another's entries go on");
    let given = r#"{"target":"scores","principal":"alice","value":"Bearer new"}"#;
    let answer = relay.operator("POST", "/v1/relay/credentials", given);
    assert_eq!((answer.status, answer.json()["released"].as_i64()), (200, Some(1)), "{answer:?}");
    eventually("it is applied", || service.score("a") == 8);
    assert!(service.books.lock().unwrap().tokens.contains(&"Bearer new".to_owned()));
    let database = std::fs::read(folder.path().join("relay.db")).unwrap();
    let has = |text: &[u8]| database.windows(text.len()).any(|window| window == text);
    assert!(!has(b"Bearer new") && !has(b"Bearer old"), "a credential is never kept in clear");
}

/// Killed while a write is under way: applied or not, the next start finds out.
#[test]
fn kill_minus_nine_loses_nothing_and_doubles_nothing() {
    for habit in [Habit::AppliesAndHangs, Habit::Hangs] {
        let service = Service::start();
        let folder = Folder::for_service(&service, "");
        let relay = folder.start();
        service.next(&[habit]);
        let listen = relay.listen;
        let sender = std::thread::spawn(move || {
            let headers = [("x-user", "alice"), ("x-idempotency-key", "1")];
            try_call(listen, "POST", "/v1/relay/scores", &headers, &format!(r#"{{"items":{ONE}}}"#))
        });
        eventually("the write is under way", || service.writes().len() == 1);
        relay.kill();
        assert!(sender.join().unwrap().is_none(), "no answer came");
        let relay = folder.start();
        assert_eq!(relay.submit("bob", "2", "background", r#"[{"lane":"a","value":3}]"#).status, 202);
        let is_applied = || relay.submit("alice", "1", "interactive", ONE).status == 200;
        // The lost attempt may have gone out until its lease ended; then the late window counts.
        let start = std::time::Instant::now();
        while !is_applied() || service.score("a") != 8 {
            assert!(start.elapsed() < Duration::from_secs(120), "{habit:?}: {}", service.score("a"));
            std::thread::sleep(Duration::from_millis(200));
        }
        let rows = || relay.operator("GET", "/v1/relay/audit", "").json()["rows"].as_array().unwrap().clone();
        // The service knows of a write before the relay has settled it.
        eventually("both are settled", || rows().len() >= 2);
        assert_eq!(rows().len(), 2, "{habit:?}: {:?}", rows());
    }
}
