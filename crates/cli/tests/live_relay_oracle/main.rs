//! The oracle of the relay: replicas that are killed at every edge of a write, frozen past their lease, cut off from
//! PostgreSQL and from Redis, before a service with every bad habit. Afterwards the service's totals are the sums of what was accepted.
//!
//! `SEMEL_RELAY_ORACLE=600` sends for so many seconds instead of a few, `SEMEL_RELAY_ORACLE_SEED` chooses the faults.

mod faults;
mod fleet;
#[allow(dead_code)]
#[path = "../serve_relay/redis.rs"]
mod redis;
#[path = "../../../gate/tests/outages/server.rs"]
mod server;
mod service;
#[allow(dead_code)]
#[path = "../serve_relay/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use faults::Rng;
use fleet::{Ended, Fleet, PRINCIPALS};
use redis::Redis;
use server::Server;
use service::{LANES, Service, TIERS};
use world::{call, try_call};

/// How long requests are sent in the short form.
const SENDING: Duration = Duration::from_secs(12);
/// How long it may take until everything is settled: a lease, the late window, and pauses of the schedule.
const SETTLING: Duration = Duration::from_secs(420);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What was accepted: by tier and lane, the sum and how many.
type Accepted = BTreeMap<(usize, String), (i64, u64)>;

/// One principal sends until time is up. What is not answered is sent again with the same key, to whoever is there.
fn send(fleet: &Fleet, principal: &str, seed: u64, ends: Instant) -> Accepted {
    let rng = Rng::new(seed);
    let mut accepted = Accepted::new();
    for key in 0.. {
        if Instant::now() >= ends {
            break;
        }
        let tier = rng.below(TIERS.len() as u64) as usize;
        let items: Vec<(String, i64)> = (0..=rng.below(2))
            .map(|_| (format!("l{}", rng.below(LANES)), rng.below(21) as i64 - 10))
            .collect();
        let listed: Vec<String> =
            items.iter().map(|(lane, value)| format!(r#"{{"lane":"{lane}","value":{value}}}"#)).collect();
        let body = format!(r#"{{"items":[{}]}}"#, listed.join(","));
        let (path, key) = (format!("/v1/relay/{}", TIERS[tier]), format!("key {key}"));
        let mode = if rng.below(4) == 0 { "interactive" } else { "background" };
        let headers = [("x-user", principal), ("x-idempotency-key", key.as_str()), ("x-sync-mode", mode)];
        for attempt in 0.. {
            assert!(attempt < 2000, "nobody accepts it");
            let answer = fleet.listen(attempt).and_then(|at| try_call(at, "POST", &path, &headers, &body));
            match answer.map(|answer| answer.status) {
                Some(200 | 202) => break,
                Some(status @ (400..=499)) => panic!("{principal} {key}: {status}"),
                Some(_) | None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        for (lane, value) in items {
            let known = accepted.entry((tier, lane)).or_default();
            *known = (known.0 + value, known.1 + 1);
        }
    }
    accepted
}

/// The lanes of a tier as a replica tells them: state, and whether something waits.
fn lanes(fleet: &Fleet, tier: usize) -> Option<BTreeMap<String, (String, bool)>> {
    let at = fleet.listen(0)?;
    let answer = try_call(at, "GET", &format!("/v1/relay/{}/lanes", TIERS[tier]), &[("x-user", "anna")], "")?;
    let lane = |lane: &Value| {
        let state = lane["state"].as_str()?.to_owned();
        Some((lane["lane"].as_str()?.to_owned(), (state, lane["has_pending"].as_bool()?)))
    };
    (answer.status == 200).then(|| answer.json()["lanes"].as_array()?.iter().map(lane).collect())?
}

fn is_settled(fleet: &Fleet) -> bool {
    (0..TIERS.len()).all(|tier| {
        lanes(fleet, tier).is_some_and(|lanes| {
            lanes.values().all(|(state, waits)| state == "in-doubt" || (state == "open" && !waits))
        })
    })
}

/// The audit rows of applied entries, by target and lane.
fn applied(fleet: &Fleet) -> BTreeMap<(String, String), Vec<Value>> {
    let mut all: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    let mut after = 0;
    loop {
        let path = format!("/v1/relay/audit?limit=1000&after={after}");
        let rows = call(fleet.admin(), "GET", &path, &[], "").json()["rows"].as_array().unwrap().clone();
        let Some(last) = rows.last() else { return all };
        after = last["id"].as_i64().unwrap();
        for row in rows.into_iter().filter(|row| row["event"] == "applied") {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            all.entry((text("target"), text("lane"))).or_default().push(row);
        }
    }
}

#[test]
fn totals_are_the_sums_of_what_was_accepted() {
    let seed = number("SEMEL_RELAY_ORACLE_SEED").unwrap_or(1);
    let sending = number("SEMEL_RELAY_ORACLE").map_or(SENDING, Duration::from_secs);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut postgres = runtime.block_on(Server::create());
    let mut redis = Redis::start();
    let service = Service::start(seed);
    let fleet = Arc::new(Fleet::start(&service, &postgres.url(), &redis.url()));
    service.fleet.set(Arc::clone(&fleet)).ok().unwrap();
    let _ended = Ended(Arc::clone(&fleet));
    let ends = Instant::now() + sending;
    let (restarts, done) = (AtomicU64::new(0), AtomicBool::new(false));

    let accepted = std::thread::scope(|scope| {
        let senders: Vec<_> = PRINCIPALS
            .iter()
            .zip(1..)
            .map(|(principal, at)| {
                let fleet = &fleet;
                scope.spawn(move || send(fleet, principal, seed * 100 + at, ends))
            })
            .collect();
        // Whoever was killed comes back, whoever was frozen wakes.
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                fleet.mend();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        // The server of the database ends without warning, and somebody's credential is refused for a while.
        scope.spawn(|| {
            let rng = Rng::new(seed * 100 + 50);
            let part = (sending / 4).min(Duration::from_secs(20));
            while Instant::now() + part < ends {
                std::thread::sleep(part);
                postgres.shut_down_immediately();
                postgres.start();
                runtime.block_on(postgres.wait());
                restarts.fetch_add(1, Ordering::SeqCst);
                // Every other time Redis is away until the next.
                match restarts.load(Ordering::SeqCst) % 2 {
                    0 => redis.start_again(),
                    _ => redis.kill(),
                }
                let principal = PRINCIPALS[rng.below(PRINCIPALS.len() as u64) as usize];
                service.refuse(principal);
                std::thread::sleep(part / 2);
                fleet.renew(&service, principal);
            }
        });
        let mut accepted = Accepted::new();
        for sender in senders {
            for (lane, (sum, many)) in sender.join().unwrap() {
                let known: &mut (i64, u64) = accepted.entry(lane).or_default();
                *known = (known.0 + sum, known.1 + many);
            }
        }
        service.behave();
        let start = Instant::now();
        // Whoever was frozen in the middle of a write wakes first: what it does then must not count either.
        while !fleet.is_whole() || !is_settled(&fleet) {
            assert!(start.elapsed() < SETTLING, "it does not come to rest: {:?}", lanes(&fleet, 0));
            std::thread::sleep(Duration::from_millis(500));
        }
        done.store(true, Ordering::SeqCst);
        accepted
    });
    // Nothing that was on its way falls upon a value afterwards.
    std::thread::sleep(service::LATE_WINDOW * 2);
    judge(&fleet, &service, &accepted);
    let entries: u64 = accepted.values().map(|(_, many)| many).sum();
    println!(
        "seed {seed}: {entries} entries, {} writes, {:?}, {} restarts of PostgreSQL, Redis killed before every other",
        service.writes(),
        service.faults(),
        restarts.load(Ordering::SeqCst)
    );
}

fn judge(fleet: &Fleet, service: &Service, accepted: &Accepted) {
    let rows = applied(fleet);
    for (tier, name) in TIERS.iter().enumerate() {
        let told = lanes(fleet, tier).unwrap();
        let in_doubt = told.values().filter(|(state, _)| state == "in-doubt").count();
        println!("in-doubt, {name}: {in_doubt} of {} lanes", told.len());
        assert!(*name == "blind" || in_doubt == 0, "{name}: nobody interferes, and {in_doubt} are in doubt");
        for ((_, lane), (sum, many)) in accepted.iter().filter(|((of, _), _)| *of == tier) {
            if told[lane].0 == "in-doubt" {
                continue;
            }
            assert_eq!(service.total(tier, lane), *sum, "{name}: the total of {lane}");
            let of_lane = &rows[&((*name).to_owned(), lane.clone())];
            assert_eq!(of_lane.len() as u64, *many, "{name}: one row for each original of {lane}");
            let is_chained = of_lane.windows(2).all(|two| two[0]["after"] == two[1]["before"]);
            assert!(is_chained || *name == "blind" || *name == "key", "{name}: the chain of {lane}");
        }
    }
}
