//! Several relays on one PostgreSQL: killed, frozen past their lease, and raced.

#[path = "serve_relay/base.rs"]
mod base;
#[allow(dead_code)]
#[path = "serve_relay/world.rs"]
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Base, until};
use world::{Folder, Habit, Relay, Service, try_call};

fn applied(relay: &Relay) -> Vec<serde_json::Value> {
    let rows = relay.operator("GET", "/v1/relay/audit?limit=1000", "").json()["rows"].clone();
    rows.as_array().unwrap().iter().filter(|row| row["event"] == "applied").cloned().collect()
}

// S2-108
#[test]
fn replicas_that_are_killed_lose_nothing_and_double_nothing() {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    folder.set("sync_deadline", "3s");
    let start = || folder.start_with(&["--store", &base.url]);
    let relays = Mutex::new([start(), start()]);
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for user in 0..3 {
            let (relays, sent) = (&relays, &sent);
            scope.spawn(move || {
                for at in 0..20 {
                    let body = format!(r#"{{"items":[{{"lane":"{}","value":1}}]}}"#, ["a", "b"][at % 2]);
                    let (name, key) = (format!("u{user}"), at.to_string());
                    let headers = [("x-user", name.as_str()), ("x-idempotency-key", key.as_str())];
                    // Whatever is lost is sent again with the same key, to whichever relay is there.
                    for attempt in 0.. {
                        assert!(attempt < 200, "nobody accepts it");
                        let listen = relays.lock().unwrap()[attempt % 2].listen;
                        match try_call(listen, "POST", "/v1/relay/scores", &headers, &body) {
                            Some(answer) if [200, 202].contains(&answer.status) => break,
                            Some(_) | None => std::thread::sleep(Duration::from_millis(50)),
                        }
                    }
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let (relays, sent, service, start) = (&relays, &sent, &service, &start);
        scope.spawn(move || {
            for round in 0..4 {
                until("they go on", 60, || sent.load(Ordering::SeqCst) >= round * 10 + 3);
                service.next(&[[Habit::AppliesAndHangs, Habit::Hangs][round as usize % 2]]);
                let writes = service.writes().len();
                until("a write is under way", 60, || {
                    service.writes().len() > writes || sent.load(Ordering::SeqCst) == 60
                });
                let fresh = start();
                let old = std::mem::replace(&mut relays.lock().unwrap()[round as usize % 2], fresh);
                old.kill();
            }
        });
    });
    let relays = relays.into_inner().unwrap();
    let is_settled =
        || relays[0].operator("GET", "/metrics", "").text.contains("score_outbox_pending_total 0\n");
    until("everything is settled", 120, is_settled);
    assert_eq!((service.score("a"), service.score("b")), (30, 30));
    let rows = applied(&relays[0]);
    assert_eq!(rows.len(), 60, "one row for each original");
    for lane in ["a", "b"] {
        let of_lane: Vec<_> = rows.iter().filter(|row| row["lane"] == lane).collect();
        assert!(of_lane.windows(2).all(|two| two[0]["after"] == two[1]["before"]), "the chain of {lane}");
    }
    let lanes = relays[0].operator("GET", "/v1/relay/lanes?state=in-doubt", "").json();
    println!("in-doubt, read-back: {}", lanes["lanes"].as_array().unwrap().len());
    assert_eq!(lanes["lanes"].as_array().unwrap().len(), 0);
}

#[test]
fn a_replica_that_is_frozen_past_its_lease_changes_nothing_when_it_wakes() {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    folder.set("sync_deadline", "3s");
    let frozen = folder.start_with(&["--store", &base.url]);
    service.next(&[Habit::AppliesAndHangs]);
    assert_eq!(frozen.submit("alice", "1", "background", r#"[{"lane":"a","value":5}]"#).status, 202);
    until("the write is under way", 20, || service.writes().len() == 1);
    let signal = |number| {
        // SAFETY: the process is a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(frozen.child.id() as i32, number) }, 0);
    };
    signal(libc::SIGSTOP);
    let other = folder.start_with(&["--store", &base.url]);
    assert_eq!(other.submit("bob", "1", "background", r#"[{"lane":"a","value":3}]"#).status, 202);
    until("the other takes over", 90, || service.score("a") == 8);
    signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(frozen.submit("alice", "1", "background", r#"[{"lane":"a","value":5}]"#).status, 200);
    assert_eq!((service.score("a"), applied(&other).len()), (8, 2));
}

#[test]
fn a_credential_given_to_one_replica_reaches_the_others() {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    let (one, two) = (folder.start_with(&["--store", &base.url]), folder.start_with(&["--store", &base.url]));
    let given = r#"{"target":"scores","principal":"alice","value":"given"}"#;
    assert_eq!(one.operator("POST", "/v1/relay/credentials", given).status, 200);
    one.kill();
    assert_eq!(two.submit("alice", "1", "interactive", r#"[{"lane":"a","value":5}]"#).status, 200);
    let tokens = service.books.lock().unwrap().tokens.clone();
    assert!(!tokens.is_empty() && tokens.iter().all(|token| token == "Bearer given"), "{tokens:?}");
}

/// S2-108, S2-112: of two requests for one lane at two replicas the second is accepted, and taken along by whoever comes to it.
#[test]
fn a_request_whose_lane_another_replica_holds_is_accepted_and_applied_later() {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    folder.set("sync_deadline", "1s");
    let (one, two) = (folder.start_with(&["--store", &base.url]), folder.start_with(&["--store", &base.url]));
    service.next(&[Habit::AppliesAndHangs]);
    let first = one.submit("alice", "1", "interactive", r#"[{"lane":"a","value":5}]"#);
    assert_eq!(first.status, 202, "the service does not answer in time: {first:?}");
    assert_eq!(service.writes().len(), 1, "its write is under way");
    let items = r#"[{"lane":"a","value":3}]"#;
    let second = two.submit("bob", "1", "interactive", items);
    assert_eq!((second.status, second.json()["pending"]["count"].as_i64()), (202, Some(1)), "{second:?}");
    until("both are applied", 90, || service.score("a") == 8);
    until("and known to be", 60, || two.submit("bob", "1", "interactive", items).status == 200);
    assert_eq!(applied(&two).len(), 2);
}
