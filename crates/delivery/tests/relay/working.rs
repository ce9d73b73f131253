//! What keeps lanes moving, and what it costs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::recovery::Capability;
use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::claim::LaneClaim;
use semel_delivery::relay::store::sweep::Retention;
use semel_delivery::relay::{Target, Worker};

use crate::world::{Habit, Service, World};

#[tokio::test]
async fn a_lane_that_another_holds_is_not_asked_for_without_end() {
    let world = World::new(Capability::ReadBack, 1);
    let Accepted::New { lanes, .. } = world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await else {
        panic!()
    };
    let held = world.engine.store.claim(lanes[0], "other", 30_000, 10).await.unwrap();
    assert!(matches!(held, LaneClaim::Held(_)));
    // It is due at once for what comes now, and yet another's.
    world.accept("alice", "2", Mode::Interactive, &[("a", 5)]).await;
    let worker = Worker::new(Arc::new(world.another(2)), Retention::default(), 4);
    let running = tokio::spawn(Arc::clone(&worker).run());
    let before = world.db.begun.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = world.db.begun.load(Ordering::SeqCst) - before;
    assert!((2..30).contains(&asked), "{asked} transactions in three seconds");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_its_request_and_not_for_a_pause() {
    let world = World::new(Capability::ReadBack, 1);
    let worker = Worker::new(Arc::new(world.another(2)), Retention::default(), 4);
    tokio::spawn(Arc::clone(&worker).run());
    let submit = async |key: &str| {
        let submission = world.submission("alice", key, Mode::Interactive, &[("a", 5)]);
        let Accepted::New { request, lanes, .. } = world.engine.store.accept(&submission).await.unwrap()
        else {
            panic!()
        };
        worker.wait(&submission, request, &lanes).await.unwrap()
    };
    assert!(submit("1").await, "it is applied");
    world.service.next(&[Habit::Limits(120)]);
    let start = tokio::time::Instant::now();
    assert!(!submit("2").await);
    assert!(start.elapsed() < Duration::from_secs(2), "a pause of two minutes is not waited for");
    assert_eq!(worker.stop(Duration::from_secs(5)).await, 0);
}

#[tokio::test]
async fn a_target_that_hangs_does_not_hold_up_the_others() {
    let world = World::new(Capability::ReadBack, 1);
    let calm = Service::new(Capability::ReadBack, &world.clock);
    let mut engine = world.another(2);
    engine.targets.insert(
        "calm".to_owned(),
        Arc::new(Target::new("calm", Arc::new(calm.clone()), Capability::ReadBack)),
    );
    world.service.next(&[Habit::Frozen; 8]);
    for at in 0..8 {
        let lane = format!("lane-{at}");
        world.accept("alice", &at.to_string(), Mode::Interactive, &[(lane.as_str(), 1)]).await;
    }
    let worker = Worker::new(Arc::new(engine), Retention::default(), 4);
    let running = tokio::spawn(Arc::clone(&worker).run());
    world.service.freezes().await;
    let mut submission = world.submission("alice", "calm", Mode::Interactive, &[("a", 5)]);
    submission.target = "calm".to_owned();
    world.engine.store.accept(&submission).await.unwrap();
    worker.wake();
    for _ in 0..200 {
        if calm.value("a") == 5 {
            return running.abort();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a healthy target was not written to within ten seconds");
}

#[tokio::test]
async fn a_write_that_stood_still_while_it_connected_is_not_sent_once_its_lease_is_over() {
    let world = World::new(Capability::ReadBack, 1);
    let Accepted::New { lanes, .. } = world.accept("alice", "1", Mode::Interactive, &[("a", 5)]).await else {
        panic!()
    };
    world.service.next(&[Habit::Frozen]);
    let (standing, lane) = (world.another(2), lanes[0]);
    let standing = tokio::spawn(async move { standing.sync(lane).await });
    world.service.freezes().await;
    // Another takes over, and goes on from there.
    let until = async |value: i64| {
        for _ in 0..100 {
            world.clock.pass(10_000);
            world.engine.run_due().await.unwrap();
            if world.service.value("a") == value {
                return;
            }
        }
        panic!("{value} was never written");
    };
    until(5).await;
    world.accept("alice", "2", Mode::Interactive, &[("a", 3)]).await;
    until(8).await;
    world.service.thaw();
    standing.await.unwrap().unwrap();
    assert_eq!(world.service.value("a"), 8, "what others have written since is not undone");
}
