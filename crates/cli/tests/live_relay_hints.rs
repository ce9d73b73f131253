//! Redis between replicas: it makes them quicker, and that it is gone changes nothing else. Needs PostgreSQL, and starts a
//! Redis of its own.

#[path = "serve_relay/base.rs"]
mod base;
#[path = "serve_relay/redis.rs"]
mod redis;
#[allow(dead_code)]
#[path = "serve_relay/world.rs"]
mod world;

use std::time::Duration;

use base::{Base, until};
use redis::Redis;
use world::{Folder, HOSTNAME, Habit, Relay, Service};

fn start(folder: &Folder, base: &Base, redis: Option<&Redis>) -> Relay {
    let mut args = vec!["--store".to_owned(), base.url.clone()];
    args.extend(redis.into_iter().flat_map(|redis| ["--redis".to_owned(), redis.url()]));
    folder.start_with(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A relay that looks at the store so seldom, and gives a service up so late, that only a hint makes it answer in time.
fn slow(folder: &Folder) {
    let path = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("[relay]\n", "[relay]\nparallel = 1\npoll = \"30s\"\n")).unwrap();
    folder.set("timeout", "12s");
    folder.set("sync_deadline", "6s");
}

/// What is said to a change that is handed to a replica which is busy, while another one is idle.
fn elsewhere(redis: Option<&Redis>) -> u16 {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    slow(&folder);
    let (busy, _idle) = (start(&folder, &base, redis), start(&folder, &base, redis));
    if let Some(redis) = redis {
        // A list of the channel and the number of those who listen.
        let both = || redis.ask("PUBSUB NUMSUB semel:relay:wake").trim_end().ends_with(":2");
        until("both replicas listen", 60, both);
    }
    service.next(&[Habit::Hangs]);
    std::thread::scope(|scope| {
        // The one that is handed it works on it: its one permit is taken until the service is given up on.
        scope.spawn(|| busy.submit("alice", "1", "interactive", r#"[{"lane":"x","value":1}]"#));
        until("a write hangs", 60, || service.writes().len() == 1);
        let answer = busy.submit("bob", "2", "interactive", r#"[{"lane":"y","value":3}]"#);
        if answer.status == 200 {
            assert_eq!(service.score("y"), 3);
        }
        answer.status
    })
}

#[test]
fn an_idle_replica_wakes_at_once_with_redis_and_at_its_poll_without() {
    let (is_woken, without) = std::thread::scope(|scope| {
        let without = scope.spawn(|| elsewhere(None));
        // Redis is waited for a quarter of a second only, so a hint may be lost on a busy machine, but not every time.
        let is_woken = (0..3).any(|_| elsewhere(Some(&Redis::start())) == 200);
        (is_woken, without.join().unwrap())
    });
    assert!(is_woken, "with Redis");
    assert_eq!(without, 202, "without Redis");
}

// S2-109
#[test]
fn who_works_on_a_lane_and_what_waits_for_company_can_be_seen() {
    let (base, service, redis) = (Base::create(), Service::start(), Redis::start());
    let folder = Folder::for_service(&service, "");
    folder.set("debounce", "3s");
    let relay = start(&folder, &base, Some(&redis));
    service.next(&[Habit::AppliesAndHangs]);
    let items = r#"[{"lane":"7","value":1,"group":"s1"}]"#;
    assert_eq!(relay.submit("alice", "1", "background", items).status, 202);
    until("it waits for company", 60, || redis.ask("EXISTS patrol:s1:7:debounce").contains(":1"));
    until("it is locked", 60, || redis.ask("EXISTS patrol:s1:7:sync_lock").contains(":1"));
    let life: i64 = redis.ask("PTTL patrol:s1:7:sync_lock").trim().trim_start_matches(':').parse().unwrap();
    assert!((1..=30_000).contains(&life), "it goes by itself: {life} ms");
    let holder = redis.ask("GET patrol:s1:7:sync_lock");
    assert!(holder.contains(&relay.child.id().to_string()), "it names its replica: {holder}");
    assert!(holder.contains(&format!("{HOSTNAME}:")), "and its host: {holder}");
    until("it is applied", 60, || relay.submit("alice", "1", "background", items).status == 200);
    until("and unlocked", 60, || redis.ask("EXISTS patrol:s1:7:sync_lock").contains(":0"));
}

/// A lock of a replica that is no more, or never was: whether a lane is held is the store's to say.
#[test]
fn a_lock_that_is_not_true_holds_nobody_up() {
    let (base, service, redis) = (Base::create(), Service::start(), Redis::start());
    let folder = Folder::for_service(&service, "");
    folder.set("sync_deadline", "15s");
    let relay = start(&folder, &base, Some(&redis));
    redis.ask("SET patrol::b:sync_lock nobody");
    let answer = relay.submit("alice", "1", "interactive", r#"[{"lane":"b","value":1}]"#);
    assert_eq!(answer.status, 200, "as without Redis: {answer:?}");
}

#[test]
fn redis_gone_mid_run_loses_nothing_and_doubles_nothing() {
    let (base, service) = (Base::create(), Service::start());
    let mut redis = Redis::start();
    let folder = Folder::for_service(&service, "");
    let relays = [start(&folder, &base, Some(&redis)), start(&folder, &base, Some(&redis))];
    // A lock of a replica that is no more, or never was.
    redis.ask("SET patrol::b:sync_lock nobody");
    for round in 0..30 {
        if round == 10 {
            redis.kill();
        }
        if round == 20 {
            redis.start_again();
        }
        let relay = &relays[round % 2];
        for lane in ["a", "b"] {
            let items = format!(r#"[{{"lane":"{lane}","value":1}}]"#);
            let answer = relay.submit("alice", &format!("{round}{lane}"), "background", &items);
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let is_settled =
        || relays[0].operator("GET", "/metrics", "").text.contains("score_outbox_pending_total 0\n");
    until("everything is applied", 60, is_settled);
    assert_eq!((service.score("a"), service.score("b")), (30, 30));
    // A start while Redis is away is a start all the same.
    redis.kill();
    let late = start(&folder, &base, Some(&redis));
    assert_eq!(late.submit("bob", "late", "interactive", r#"[{"lane":"a","value":1}]"#).status, 200);
    assert_eq!(service.score("a"), 31);
}
