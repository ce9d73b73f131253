//! What a requeue asks of the server before a new message takes the place of one that may have arrived.

mod scripted;

use std::time::Duration;

use scripted::{World, answer, message, pass, uuid};
use semel_delivery::Requeue;
use semel_delivery::transport::Sent;

#[tokio::test(start_paused = true)]
async fn the_key_of_what_may_have_arrived_is_sealed_first() {
    let world = World::quick("ietf", |request, _| match request.target.path.ends_with("/seal") {
        true => answer(200, &[], r#"{"sealed":true}"#),
        false => Sent::Broken("reset".to_owned()),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_millis(100)).await;
    sending.stop(Duration::from_secs(1)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert!(row.ambiguous, "its connection broke off");
    let requeued = outbox.requeue(&row, Requeue::default()).await.unwrap();
    assert!(requeued.is_sealed && !requeued.new.ambiguous);
    let seen = world.seen.lock().unwrap();
    let seals = seen.iter().filter(|(_, request)| request.target.path.ends_with("/seal")).count();
    assert_eq!(seals, 1, "the server was asked to cancel the old key");
}
