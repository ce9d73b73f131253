//! What the engine does about answers, credentials and others who write.

use std::time::Duration;

use semel_delivery::relay::LaneOutcome;
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::recovery::{Blind, Capability};
use semel_delivery::relay::reduce::Reducer;
use semel_delivery::relay::store::LaneState;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::operate::{Resolution, Resolved};
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::target::Interference;

use crate::world::{Habit, LATE_WINDOW, TARGET, World};

const S: i64 = 1000;

async fn lane(world: &World, name: &str) -> i64 {
    world.engine.store.find_lane(TARGET, "g", name).await.unwrap().unwrap().id
}

// S2-111
#[tokio::test]
async fn two_leaders_become_one_write_with_two_rows() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.set("a", 100);
    world.accept("alice", "1", Mode::Background, &[("a", 5)]).await;
    world.clock.pass(5 * S);
    world.accept("bob", "1", Mode::Background, &[("a", 3)]).await;
    world.turn().await;
    assert_eq!(world.service.writes(), [], "the debounce is not over");
    world.clock.pass(10 * S);
    world.turn().await;
    assert_eq!((world.service.writes(), world.service.reads_so_far()), (vec![("a".to_owned(), 8)], 1));
    let rows = world.applied().await;
    let told: Vec<_> = rows.iter().map(|row| (row.principal.as_str(), row.before, row.after)).collect();
    assert_eq!(told, [("alice", Some(100), Some(105)), ("bob", Some(105), Some(108))]);
    assert_eq!(rows[0].batch, rows[1].batch);
    assert_eq!(world.engine.meters.calls_saved.get(), 1);
}

#[tokio::test]
async fn a_thousand_entries_in_a_window_cost_three_writes_at_most() {
    let world = World::new(Capability::ReadBack, 1);
    for at in 0..1000 {
        world.accept("alice", &at.to_string(), Mode::Background, &[("a", 1)]).await;
        world.clock.pass(14);
        world.turn().await;
    }
    world.settle().await;
    assert_eq!(world.service.value("a"), 1000);
    assert!(world.service.writes().len() <= 3, "{:?}", world.service.writes());
}

#[tokio::test]
async fn what_is_beyond_one_batch_is_written_at_once() {
    let world = World::with(Capability::ReadBack, 1, |target| target.batch_max = 10);
    for at in 0..35 {
        world.accept("alice", &at.to_string(), Mode::Background, &[("a", 1)]).await;
    }
    world.accept("bob", "now", Mode::Interactive, &[("a", 1)]).await;
    for _ in 0..4 {
        world.turn().await;
    }
    assert_eq!(world.service.value("a"), 36, "no time has passed: {:?}", world.service.writes());
}

/// `Retry-After` may be a date: here one and a half minutes after the clock's.
#[tokio::test]
async fn a_pause_until_a_date_is_kept_to() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::LimitsUntil("Fri, 15 Jan 2027 08:01:30 GMT")]);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    world.clock.pass(89 * S);
    world.turn().await;
    assert_eq!(world.service.value("a"), 0, "it is not over yet");
    world.clock.pass(2 * S);
    world.turn().await;
    assert_eq!(world.service.value("a"), 5);
}

#[tokio::test]
async fn an_interactive_entry_takes_along_what_waits() {
    let world = World::new(Capability::ReadBack, 1);
    world.accept("alice", "1", Mode::Background, &[("a", 5)]).await;
    world.accept("bob", "2", Mode::Interactive, &[("a", 3)]).await;
    world.turn().await;
    assert_eq!(world.service.writes(), [("a".to_owned(), 8)]);
}

#[tokio::test]
async fn a_pause_is_kept_and_costs_no_attempt() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::Limits(120)]);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    // Another lane of the same principal waits as well; another principal does not.
    world.accept("alice", "2", Mode::Interactive, &[("b", 1)]).await;
    world.accept("bob", "3", Mode::Interactive, &[("c", 1)]).await;
    world.turn().await;
    world.clock.pass(119 * S);
    world.turn().await;
    assert_eq!((world.service.value("a"), world.service.value("b"), world.service.value("c")), (0, 0, 1));
    let waiting = world.engine.store.detail(lane(&world, "a").await).await.unwrap().unwrap();
    assert_eq!(waiting.lane.attempts, 0);
    world.clock.pass(S);
    world.turn().await;
    assert_eq!((world.service.value("a"), world.service.value("b")), (5, 1));
}

#[tokio::test]
async fn blocked_backs_off_for_ten_minutes() {
    let world = World::with(Capability::ReadBack, 1, |target| target.blocked = vec!["403".to_owned()]);
    world.service.next(&[Habit::Answers(403)]);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    world.accept("bob", "1", Mode::Interactive, &[("b", 5)]).await;
    world.clock.pass(599 * S);
    world.turn().await;
    assert_eq!(world.service.writes().len(), 1, "the whole target waits");
    world.clock.pass(S);
    world.turn().await;
    assert_eq!((world.service.value("a"), world.service.value("b")), (5, 5));
}

#[tokio::test]
async fn a_refused_credential_parks_its_principal_alone() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.refuse("old");
    world.tokens.set("alice", "old");
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.accept("bob", "1", Mode::Interactive, &[("a", 3)]).await;
    for _ in 0..4 {
        world.turn().await;
    }
    assert_eq!(world.service.value("a"), 3, "bob's entry goes on");
    let counts = world.engine.store.counts().await.unwrap();
    assert_eq!((counts.parked, counts.pending), (1, 0));
    // What comes later from the same credential is parked without another call.
    let writes = world.service.writes().len();
    world.accept("alice", "2", Mode::Interactive, &[("a", 1)]).await;
    world.turn().await;
    assert_eq!(
        (world.service.writes().len(), world.engine.store.counts().await.unwrap().parked),
        (writes, 2)
    );
    assert_eq!(world.engine.release_renewed().await.unwrap(), 0, "it is the same credential");
    let views = world.engine.store.lanes(TARGET, Some("g"), Reducer::Sum).await.unwrap();
    assert_eq!((views[0].pending, views[0].delta), (2, 6), "what is parked will be applied");
    world.tokens.set("alice", "new");
    world.settle().await;
    assert_eq!(world.service.value("a"), 9);
    assert_eq!(world.applied().await.len(), 3);
}

#[tokio::test]
async fn an_ambiguous_batch_stays_frozen_when_its_credential_is_refused() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::LostReply]);
    world.tokens.set("alice", "old");
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    world.service.refuse("old");
    world.clock.pass(100 * S);
    world.turn().await;
    let detail = world.engine.store.detail(lane(&world, "a").await).await.unwrap().unwrap();
    assert!(detail.intent.is_some() && detail.held.is_empty());
    world.tokens.set("alice", "new");
    world.settle().await;
    assert_eq!(
        (world.service.value("a"), world.service.writes().len()),
        (5, 1),
        "found by looking, not sent again"
    );
}

#[tokio::test]
async fn an_entry_that_comes_while_its_lane_is_written_is_neither_lost_nor_merged() {
    for habit in [Habit::Good, Habit::LostReply, Habit::Swallows, Habit::Away, Habit::Answers(503)] {
        let world = World::new(Capability::ReadBack, 1);
        world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
        world.service.next(&[habit]);
        world.turn().await;
        world.accept("bob", "2", Mode::Interactive, &[("a", 3)]).await;
        world.settle().await;
        assert_eq!(world.service.value("a"), 8, "{habit:?}");
        assert_eq!(world.applied().await.len(), 2, "{habit:?}");
    }
}

#[tokio::test]
async fn what_the_upstream_refuses_for_good_is_a_dead_letter_that_can_come_back() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::Answers(422)]);
    let Accepted::New { request, .. } = world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await
    else {
        panic!()
    };
    world.settle().await;
    assert_eq!(world.engine.store.counts().await.unwrap().dead, 1);
    assert_eq!(world.engine.store.request(request).await.unwrap().unwrap().dead, 1);
    assert_eq!(world.engine.store.requeue(lane(&world, "a").await, "carol").await.unwrap(), 1);
    assert_eq!(world.engine.store.requeue(lane(&world, "a").await, "carol").await.unwrap(), 0);
    world.settle().await;
    assert_eq!(world.service.value("a"), 5);
    let request = world.engine.store.request(request).await.unwrap().unwrap();
    assert_eq!((request.open, request.dead), (0, 0));
}

#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_a_doubt_and_no_dead_letter() {
    let tier = Capability::Key { retention: Duration::from_secs(24 * 3600) };
    for status in [400, 403, 404, 422] {
        let world = World::new(tier, 1);
        world.service.next(&[Habit::LostReply, Habit::Answers(status)]);
        world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
        world.settle().await;
        let id = lane(&world, "a").await;
        let detail = world.engine.store.detail(id).await.unwrap().unwrap();
        assert_eq!(detail.lane.state, LaneState::InDoubt, "{status}");
        assert!(detail.held.is_empty(), "{status}");
        assert!(detail.intent.unwrap().evidence.contains(&status.to_string()));
        assert_eq!(world.engine.store.requeue(id, "carol").await.unwrap(), 0);
        world.settle().await;
        assert_eq!((world.service.value("a"), world.service.writes().len()), (5, 2), "not sent anew");
    }
}

#[tokio::test]
async fn a_redirected_write_may_have_been_applied() {
    let tier = Capability::Key { retention: Duration::from_secs(24 * 3600) };
    for tier in [tier, Capability::ReadBack, Capability::Blind(Blind::AtMostOnce)] {
        let world = World::new(tier, 1);
        world.service.next(&[Habit::AppliesAndAnswers(303)]);
        world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
        world.settle().await;
        assert_eq!(world.service.value("a"), 5, "{tier:?}");
        assert_eq!(world.engine.store.counts().await.unwrap().dead, 0, "{tier:?}");
    }
}

#[tokio::test]
async fn an_outage_is_waited_for() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::Away; 20]);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.settle().await;
    assert_eq!(world.service.value("a"), 5, "five tries in half a minute are not the end");
}

#[tokio::test]
async fn somebody_elses_change_is_counted_and_built_upon() {
    let world = World::new(Capability::ReadBack, 1);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    world.service.set("a", 50);
    world.accept("alice", "2", Mode::Interactive, &[("a", 1)]).await;
    world.turn().await;
    assert_eq!((world.service.value("a"), world.engine.meters.interference.get()), (51, 1));

    let world = World::with(Capability::ReadBack, 1, |target| target.interference = Interference::Hold);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.turn().await;
    world.service.set("a", 50);
    world.accept("alice", "2", Mode::Interactive, &[("a", 1)]).await;
    world.settle().await;
    assert_eq!(world.service.value("a"), 50);
    let held = world.engine.store.detail(lane(&world, "a").await).await.unwrap().unwrap();
    assert_eq!(held.lane.state, LaneState::Blocked);
    world.engine.store.requeue(held.lane.id, "carol").await.unwrap();
    world.settle().await;
    assert_eq!(world.service.value("a"), 51);
}

#[tokio::test]
async fn what_nobody_can_know_goes_to_a_person_with_the_evidence() {
    for (resolution, total) in [(Resolution::Applied, 77), (Resolution::NotApplied, 82)] {
        let world = World::new(Capability::ReadBack, 1);
        world.service.next(&[Habit::Swallows]);
        world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
        world.turn().await;
        world.service.set("a", 77);
        world.clock.pass(2 * S);
        world.turn().await;
        let id = lane(&world, "a").await;
        let detail = world.engine.store.detail(id).await.unwrap().unwrap();
        assert_eq!(detail.lane.state, LaneState::InDoubt);
        assert!(detail.intent.unwrap().evidence.contains("77"), "what was seen is shown");
        assert_eq!(detail.due, None, "it is not among the waiting work");
        // More may come; it waits.
        world.accept("bob", "2", Mode::Interactive, &[("b", 1)]).await;
        let store = &world.engine.store;
        let resolve = || store.resolve(id, resolution, Reducer::Sum, 60 * S, "carol");
        if resolution == Resolution::NotApplied {
            assert!(matches!(resolve().await.unwrap(), Resolved::TooEarly { .. }));
            world.clock.pass(120 * S);
        }
        assert_eq!(resolve().await.unwrap(), Resolved::Done);
        assert_eq!(resolve().await.unwrap(), Resolved::NotInDoubt);
        world.settle().await;
        assert_eq!(world.service.value("a"), total, "{resolution:?}");
    }
}

#[tokio::test]
async fn entries_that_do_not_commute_make_the_lane_wait() {
    let world = World::with(Capability::ReadBack, 1, |target| target.reducer = Reducer::Last);
    world.service.refuse("old");
    world.tokens.set("alice", "old");
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.accept("bob", "1", Mode::Interactive, &[("a", 3)]).await;
    world.settle().await;
    assert_eq!(world.service.value("a"), 0, "bob's entry is later and waits for alice's");
    world.tokens.set("alice", "new");
    world.settle().await;
    assert_eq!((world.service.value("a"), world.service.writes().len()), (3, 1));
}

#[tokio::test]
async fn a_frozen_replica_does_nothing_when_it_wakes() {
    let world = World::new(Capability::ReadBack, 1);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    let id = lane(&world, "a").await;
    let store = &world.engine.store;
    let semel_delivery::relay::store::claim::LaneClaim::Held(work) =
        store.claim(id, "other", 30_000, 10).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(world.engine.sync(id).await.unwrap(), LaneOutcome::Busy);
    world.clock.pass(30 * S);
    world.settle().await;
    assert_eq!(world.service.value("a"), 5);
    let stale = store.bury(&work.hold, 1, "late", Reducer::Sum).await.unwrap();
    assert_eq!(stale, semel_delivery::relay::store::FencedWrite::Stale);
}

#[tokio::test]
async fn what_is_finished_goes_and_what_is_given_up_leaves_a_row() {
    let world = World::new(Capability::ReadBack, 1);
    world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    world.settle().await;
    world.service.refuse("token of bob");
    world.accept("bob", "1", Mode::Interactive, &[("a", 3)]).await;
    world.settle().await;
    let (retention, day) = (Retention::default(), Duration::from_secs(86_400).as_millis() as i64);
    assert_eq!(world.engine.store.sweep(&retention).await.unwrap(), Default::default());
    let before = world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
    assert!(matches!(before, Accepted::Known { .. }));
    world.clock.pass(day + 1);
    assert_eq!(world.engine.store.sweep(&retention).await.unwrap().requests, 1);
    world.clock.pass(6 * day);
    assert_eq!(world.engine.store.sweep(&retention).await.unwrap().given_up, 1);
    assert_eq!(world.engine.store.counts().await.unwrap().dead, 1);
    world.clock.pass(7 * day + 1);
    assert_eq!(world.engine.store.sweep(&retention).await.unwrap().purged, 1);
    let events: Vec<String> =
        world.engine.store.audit_after(0, 100).await.unwrap().into_iter().map(|row| row.event).collect();
    assert_eq!(events, ["applied", "parked", "dead", "purged"]);
}

#[tokio::test]
async fn only_what_is_itself_too_old_is_given_up() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::Away; 400]);
    world.accept("alice", "old", Mode::Interactive, &[("a", 5)]).await;
    world.clock.pass(23 * 3600 * S - 10 * S);
    world.accept("alice", "new", Mode::Interactive, &[("a", 3)]).await;
    for _ in 0..20 {
        world.turn().await;
        world.clock.pass(S);
    }
    let counts = world.engine.store.counts().await.unwrap();
    assert_eq!((counts.dead, counts.pending), (1, 1), "the new one still has its time");
    world.service.forget_habits();
    world.settle().await;
    assert_eq!(world.service.value("a"), 3);
}

/// A write whose answer was lost, and which comes to its effect only later, is waited for.
#[tokio::test]
async fn a_write_that_may_still_be_applied_is_waited_for() {
    for tier in [Capability::ReadBack, Capability::Marker] {
        let world = World::new(tier, 1);
        world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await;
        world.service.next(&[Habit::Late(LATE_WINDOW.as_millis() as i64 - S)]);
        world.turn().await;
        // Somebody sends more meanwhile, so that the lane is looked at again at once.
        for at in 2..8 {
            world.accept("bob", &at.to_string(), Mode::Interactive, &[("a", 1)]).await;
            world.turn().await;
            world.clock.pass(5 * S);
        }
        world.settle().await;
        world.clock.pass(10 * LATE_WINDOW.as_millis() as i64);
        assert_eq!(world.service.value("a"), 11, "{tier:?}");
    }
}

/// A provider may mint another token each time it is asked.
#[tokio::test]
async fn a_target_that_refuses_every_token_is_not_asked_without_end() {
    let world = World::new(Capability::ReadBack, 1);
    world.service.next(&[Habit::Answers(401); 2000]);
    let minute = async |from: i64| {
        for second in from..from + 60 {
            world.tokens.set("alice", &format!("token {second}"));
            let name = format!("lane {}", second % 5);
            world.accept("alice", &second.to_string(), Mode::Interactive, &[(name.as_str(), 1)]).await;
            if second % 15 == 0 {
                world.engine.release_renewed().await.unwrap();
            }
            world.turn().await;
            world.clock.pass(1000);
        }
    };
    for at in 0..20 {
        minute(at * 60).await;
    }
    let asked = world.service.writes().len();
    assert!((4..100).contains(&asked), "{asked} writes in twenty minutes");
    // A person who gives another credential does not wait.
    world.service.forget_habits();
    let released = world.engine.release(TARGET, "alice", "a person").await.unwrap();
    assert!(released > 1000, "{released}");
    world.settle().await;
    assert_eq!((0..5).map(|at| world.service.value(&format!("lane {at}"))).sum::<i64>(), 1200);
}
