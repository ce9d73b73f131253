//! Redis between replicas: it makes them quicker, and that it is gone changes nothing else. Needs PostgreSQL, and starts a
//! Redis of its own.

#[path = "serve_relay/base.rs"]
mod base;
#[path = "serve_relay/redis.rs"]
mod redis;
#[allow(dead_code)]
#[path = "serve_relay/world.rs"]
mod world;

use std::time::{Duration, Instant};

use base::{Base, until};
use redis::Redis;
use world::{Folder, Habit, Relay, Service};

/// A relay that looks at the store so seldom that only a hint can make it quick.
fn start(folder: &Folder, base: &Base, redis: Option<&Redis>) -> Relay {
    let mut args = vec!["--store".to_owned(), base.url.clone()];
    args.extend(redis.into_iter().flat_map(|redis| ["--redis".to_owned(), redis.url()]));
    folder.start_with(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn slow(folder: &Folder) {
    let path = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("[relay]\n", "[relay]\nparallel = 1\npoll = \"20s\"\n")).unwrap();
}

/// How long a change takes that is handed to a replica which is busy, while another one is idle.
fn elsewhere(redis: Option<&Redis>) -> Duration {
    let (base, service) = (Base::create(), Service::start());
    let folder = Folder::for_service(&service, "");
    slow(&folder);
    let (busy, _idle) = (start(&folder, &base, redis), start(&folder, &base, redis));
    std::thread::sleep(Duration::from_millis(700));
    service.next(&[Habit::Hangs]);
    std::thread::scope(|scope| {
        // The one that is handed it works on it: its one permit is taken until the service is given up on.
        scope.spawn(|| busy.submit("alice", "1", "interactive", r#"[{"lane":"x","value":1}]"#));
        until("a write hangs", 10, || service.writes().len() == 1);
        let began = Instant::now();
        let answer = busy.submit("bob", "2", "interactive", r#"[{"lane":"y","value":3}]"#);
        let took = began.elapsed();
        if answer.status == 200 {
            assert_eq!(service.score("y"), 3);
        }
        took
    })
}

#[test]
fn an_idle_replica_wakes_at_once_with_redis_and_at_its_poll_without() {
    let redis = Redis::start();
    let with = elsewhere(Some(&redis));
    let without = elsewhere(None);
    println!("with Redis {with:?}, without {without:?}");
    assert!(with < Duration::from_millis(900), "with Redis: {with:?}");
    assert!(without > Duration::from_millis(1000), "without Redis: {without:?}");
}

#[test]
fn who_works_on_a_lane_and_what_waits_for_company_can_be_seen() {
    let (base, service, redis) = (Base::create(), Service::start(), Redis::start());
    let folder = Folder::for_service(&service, "");
    let relay = start(&folder, &base, Some(&redis));
    service.next(&[Habit::AppliesAndHangs]);
    let items = r#"[{"lane":"7","value":1,"group":"s1"}]"#;
    assert_eq!(relay.submit("alice", "1", "background", items).status, 202);
    until("it waits for company", 5, || redis.ask("EXISTS patrol:s1:7:debounce").contains(":1"));
    until("it is locked", 10, || redis.ask("EXISTS patrol:s1:7:sync_lock").contains(":1"));
    let life: i64 = redis.ask("PTTL patrol:s1:7:sync_lock").trim().trim_start_matches(':').parse().unwrap();
    assert!((1..=30_000).contains(&life), "it goes by itself: {life} ms");
    let holder = redis.ask("GET patrol:s1:7:sync_lock");
    assert!(holder.contains(&relay.child.id().to_string()), "it names its replica: {holder}");
    until("it is applied", 30, || relay.submit("alice", "1", "background", items).status == 200);
    until("and unlocked", 10, || redis.ask("EXISTS patrol:s1:7:sync_lock").contains(":0"));
}

#[test]
fn redis_gone_mid_run_loses_nothing_and_doubles_nothing() {
    let (base, service) = (Base::create(), Service::start());
    let mut redis = Redis::start();
    let folder = Folder::for_service(&service, "");
    let relays = [start(&folder, &base, Some(&redis)), start(&folder, &base, Some(&redis))];
    // A lock of a replica that is no more, or never was: believed for a while at most, here until Redis is gone.
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
