//! The oracle: whatever crashes, is lost or comes late, the upstream's total is the sum of what was accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::recovery::{Blind, Capability};
use semel_delivery::relay::store::accept::Accepted;

use crate::world::{Habit, LATE_WINDOW, Rng, World};

const KEY: Capability = Capability::Key { retention: Duration::from_secs(30 * 86_400) };
const TIERS: [Capability; 4] = [KEY, Capability::Marker, Capability::CompareAndSet, Capability::ReadBack];

/// Seeds of a plain `cargo test`, and calls after which it crashes; the variable asks for fewer or more.
const SEEDS: u64 = 60;
const CALLS: i64 = 60;
const VARIABLE: &str = "SEMEL_TEST_RELAY_CRASHES";

fn seeds() -> u64 {
    std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

/// What must hold when everything has come to rest.
async fn judge(world: &World, accepted: &BTreeMap<String, (i64, usize)>, about: &str) {
    let counts = world.engine.store.counts().await.unwrap();
    assert_eq!((counts.in_doubt, counts.blocked, counts.dead), (0, 0, 0), "{about}: {counts:?}");
    assert_eq!((counts.pending, counts.parked), (0, 0), "{about}: {counts:?}");
    let rows = world.applied().await;
    for (lane, (sum, entries)) in accepted {
        assert_eq!(world.service.value(lane), *sum, "{about}: the total of lane {lane}");
        let of_lane: Vec<_> = rows.iter().filter(|row| row.lane == *lane).collect();
        assert_eq!(of_lane.len(), *entries, "{about}: one row for each original of lane {lane}");
        assert!(
            of_lane.windows(2).all(|two| two[0].after == two[1].before),
            "{about}: the chain of lane {lane}"
        );
        assert!(
            of_lane.iter().all(|row| row.before.unwrap() + row.value.unwrap() == row.after.unwrap()),
            "{about}"
        );
    }
}

fn habit(rng: &Rng) -> Habit {
    match rng.below(12) {
        0 => Habit::LostReply,
        1 => Habit::Late(rng.below(LATE_WINDOW.as_millis() as u64) as i64),
        2 => Habit::Swallows,
        3 => Habit::FailsAfter,
        4 => Habit::Answers(500),
        5 => Habit::Answers(503),
        6 => Habit::Limits(1 + rng.below(100)),
        7 => Habit::Away,
        _ => Habit::Good,
    }
}

async fn run(tier: Capability, seed: u64) {
    let rng = Rng::new(seed + 1);
    let mut world = World::new(tier, seed);
    let mut accepted: BTreeMap<String, (i64, usize)> = BTreeMap::new();
    let mut restarts = 0;
    for step in 0..40 {
        let habits: Vec<Habit> = (0..rng.below(3)).map(|_| habit(&rng)).collect();
        world.service.next(&habits);
        let crashes = rng.below(3) == 0;
        if crashes {
            world.db.fail_after(rng.below(40) as i64, rng.below(2) == 0);
        }
        let principal = ["alice", "bob"][rng.below(2) as usize];
        let mode = [Mode::Interactive, Mode::Background][rng.below(2) as usize];
        let lanes = ["a", "b"];
        let items: Vec<(&str, i64)> =
            (0..=rng.below(2)).map(|_| (lanes[rng.below(2) as usize], rng.below(21) as i64 - 10)).collect();
        let key = format!("key {step}");
        loop {
            let submission = world.submission(principal, &key, mode, &items);
            match world.engine.store.accept(&submission).await {
                Ok(Accepted::New { .. } | Accepted::Known { .. }) => break,
                Ok(other) => panic!("the same request is the same: {other:?}"),
                Err(_) => {
                    restarts += 1;
                    world.restart(seed * 1000 + restarts);
                }
            }
        }
        for (lane, value) in &items {
            let known = accepted.entry((*lane).to_owned()).or_default();
            *known = (known.0 + value, known.1 + 1);
        }
        if world.engine.run_due().await.is_err() {
            restarts += 1;
            world.restart(seed * 1000 + restarts);
        }
        world.db.heal();
        world.clock.pass(rng.below(40_000) as i64);
    }
    world.service.forget_habits();
    world.settle().await;
    world.clock.pass(10 * LATE_WINDOW.as_millis() as i64);
    judge(&world, &accepted, &format!("{tier:?} seed {seed}")).await;
}

#[tokio::test]
async fn the_total_is_the_sum_of_what_was_accepted() {
    for tier in TIERS {
        for seed in 0..seeds() {
            run(tier, seed).await;
        }
    }
}

/// Crashes at every call to the store in turn, with the upstream behaving in each way.
#[tokio::test]
async fn a_crash_at_every_step_loses_nothing_and_doubles_nothing() {
    let late = Habit::Late(LATE_WINDOW.as_millis() as i64 - 1);
    let every = usize::try_from(SEEDS / seeds().clamp(1, SEEDS)).unwrap();
    for tier in TIERS {
        for habit in [Habit::Good, Habit::LostReply, late, Habit::Swallows, Habit::FailsAfter] {
            for commits_first in [false, true] {
                for calls in (0..CALLS).step_by(every) {
                    let mut world = World::new(tier, calls as u64);
                    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
                    world.accept("bob", "2", Mode::Interactive, &[("a", 3)]).await;
                    world.service.next(&[habit]);
                    world.db.fail_after(calls, commits_first);
                    // Goes on for a while where it did not crash: recovery is crashed as well.
                    for _ in 0..4 {
                        if world.engine.run_due().await.is_err() {
                            break;
                        }
                        world.clock.pass(20_000);
                    }
                    world.restart(1_000 + calls as u64);
                    world.accept("bob", "3", Mode::Interactive, &[("a", 2)]).await;
                    world.settle().await;
                    world.clock.pass(10 * LATE_WINDOW.as_millis() as i64);
                    let accepted = [("a".to_owned(), (10, 3))].into();
                    let about =
                        format!("{tier:?} {habit:?} crash at {calls}, commits first: {commits_first}");
                    judge(&world, &accepted, &about).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_blind_target_does_what_its_operator_chose() {
    let once = World::new(Capability::Blind(Blind::AtMostOnce), 1);
    once.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    once.service.next(&[Habit::LostReply]);
    once.settle().await;
    assert_eq!(once.service.value("a"), 5);
    assert_eq!(once.engine.store.counts().await.unwrap().in_doubt, 1, "a person decides");

    let often = World::new(Capability::Blind(Blind::AtLeastOnce), 1);
    often.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    often.service.next(&[Habit::LostReply]);
    often.settle().await;
    assert_eq!(often.service.value("a"), 10, "applied twice, as the operator allowed");
}
