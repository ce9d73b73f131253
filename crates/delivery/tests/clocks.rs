//! Clocks that are set while nobody runs: nothing expires by a time that nothing explains.

mod scripted;

use std::sync::atomic::Ordering;
use std::time::Duration;

use scripted::{World, answer, message, pass, uuid};
use semel_delivery::transport::Sent;
use semel_delivery::{Outbox, Row, Status};

const DAY_MS: i64 = 86_400_000;

async fn row(outbox: &Outbox, number: u32) -> Row {
    outbox.receipt(&uuid(number)).await.unwrap().unwrap()
}

/// A server that never answers `/actions` of lane `a`, and answers everything else.
fn world() -> World {
    World::quick("ietf", |request, _| match scripted::header(request, "x-lane").as_str() {
        "a" => Sent::TimedOut("no answer came".to_owned()),
        _ => answer(200, &[], ""),
    })
}

/// A message that may have arrived; then the process ends, the machine starts again, and its clock is off by so many days.
async fn restarted(world: &World, off_by_days: i64) -> Outbox {
    let before = world.open().await;
    before.enqueue(message(1, "a")).await.unwrap();
    let sending = before.start();
    pass(Duration::from_secs(2)).await;
    sending.stop(Duration::from_secs(60)).await;
    assert!(row(&before, 1).await.ambiguous);
    drop(before);
    world.clock.boot.fetch_add(1, Ordering::SeqCst);
    *world.clock.wall_off_by.lock().unwrap() = off_by_days * DAY_MS;
    world.open().await
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_while_nobody_ran_expires_nothing() {
    let world = world();
    let outbox = restarted(&world, 30).await;
    let sent = world.times().len();
    let _sending = outbox.start();
    pass(Duration::from_secs(300)).await;
    let waiting = row(&outbox, 1).await;
    assert_eq!(waiting.status, Status::Pending, "{:?}", waiting.last_error);
    assert_eq!(world.times().len(), sent, "by the wall clock its server has forgotten its key");
    outbox.enqueue(message(2, "b")).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(row(&outbox, 2).await.status, Status::Done, "what is new goes on");
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_clock_is_believed_and_a_clock_set_right_again_explains_itself() {
    for is_confirmed in [true, false] {
        let world = world();
        let outbox = restarted(&world, 30).await;
        let sent = world.times().len();
        let _sending = outbox.start();
        pass(Duration::from_secs(60)).await;
        let said = outbox.waits_for(&[row(&outbox, 1).await]).await.unwrap();
        assert!(said[0].as_ref().unwrap().contains("semel outbox clock"), "{said:?}");
        assert!(outbox.metrics().await.unwrap().contains("semel_outbox_clock_frozen 1"));
        assert!(outbox.clock_jump().is_some_and(|jump| jump > 29 * DAY_MS));
        match is_confirmed {
            true => outbox.confirm_clock("the clock of the machine is right").await.unwrap(),
            false => *world.clock.wall_off_by.lock().unwrap() = 0,
        }
        pass(Duration::from_secs(60)).await;
        assert_eq!(outbox.clock_jump(), None);
        assert!(outbox.confirm_clock("again").await.is_err(), "there is nothing to confirm");
        let row = row(&outbox, 1).await;
        let expected = if is_confirmed { Status::Dead } else { Status::Pending };
        assert_eq!(row.status, expected, "{:?}", row.last_error);
        assert_eq!(world.times().len() > sent, !is_confirmed, "it is given up, or sent again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_service_that_vouches_for_the_clock_ends_the_wait() {
    let world = world();
    let outbox = restarted(&world, 30).await;
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    assert_eq!(row(&outbox, 1).await.status, Status::Pending);
    world.clock.is_synchronised.store(true, Ordering::SeqCst);
    pass(Duration::from_secs(120)).await;
    assert_eq!((row(&outbox, 1).await.status, outbox.clock_jump()), (Status::Dead, None));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_clock_outlives_a_restart() {
    let world = world();
    drop(restarted(&world, 30).await);
    let outbox = world.open().await;
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    assert_eq!(row(&outbox, 1).await.status, Status::Pending);
    assert!(outbox.clock_jump().is_some());
}

/// Within one run of the machine the ticking clock tells how long nobody ran.
#[tokio::test(start_paused = true)]
async fn time_that_passed_while_nobody_ran_counts() {
    let world = world();
    let before = world.open().await;
    before.enqueue(message(1, "a")).await.unwrap();
    drop(before);
    pass(Duration::from_secs(2 * 86_400)).await;
    let outbox = world.open().await;
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!((row(&outbox, 1).await.status, outbox.clock_jump()), (Status::Dead, None));
}
