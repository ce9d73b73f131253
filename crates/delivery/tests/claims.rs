//! What a claim allows, and what wakes a lane that cannot be sent from.

mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scripted::{World, answer, message, pass, uuid};
use semel_delivery::credentials::{Asked, Credential, Credentials};
use semel_delivery::transport::{Outgoing, Sending, Sent, Transport};
use semel_delivery::{Settings, Status};

/// Takes so long to give the first credential, as a process does that stands still between its claim and the first byte.
struct Slow {
    first: Duration,
    is_given: AtomicBool,
}

impl Credentials for Slow {
    fn credential<'a>(&'a self, _: &'a str, _: &'a str) -> Asked<'a> {
        Box::pin(async {
            if !self.is_given.swap(true, Ordering::Relaxed) {
                pass(self.first).await;
            }
            Ok(Some(Credential::default()))
        })
    }
}

fn world(first: Duration) -> World {
    let mut world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let credentials = Arc::new(Slow { first, is_given: AtomicBool::new(false) });
    world.settings = Settings { credentials, ..world.settings };
    world
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_back_while_its_claim_grew_old_is_not_sent() {
    let world = world(Duration::from_secs(300));
    let outbox = world.open().await;
    let row = outbox.enqueue(message(1, "a")).await.unwrap().receipt.id;
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    assert!(outbox.abort(row, "too soon").await.is_err(), "it is being sent");
    pass(Duration::from_secs(200)).await;
    outbox.abort(row, "the lease is over").await.unwrap();
    pass(Duration::from_secs(600)).await;
    assert!(world.seen.lock().unwrap().is_empty(), "nothing is sent that was taken back");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_grew_old_is_given_back_and_taken_anew() {
    let world = world(Duration::from_secs(70));
    let outbox = world.open().await;
    let row = outbox.enqueue(message(1, "a")).await.unwrap().receipt.id;
    let _sending = outbox.start();
    pass(Duration::from_secs(75)).await;
    let receipt = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((receipt.status, receipt.attempts, receipt.ambiguous), (Status::Done, 1, false));
    assert_eq!(outbox.attempts(row).await.unwrap().len(), 1, "what was not sent was no attempt");
    assert_eq!(world.seen.lock().unwrap().len(), 1);
}

/// Takes so long to connect the first time, as a process does that stands still between connect and the first byte.
struct SlowToConnect {
    first: Duration,
    is_connected: AtomicBool,
    inner: Arc<dyn Transport>,
}

impl Transport for SlowToConnect {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        Box::pin(async move {
            if !self.is_connected.swap(true, Ordering::Relaxed) {
                pass(self.first).await;
            }
            match request.may_send.is_allowed() {
                true => self.inner.send(request).await,
                false => Sent::NotSent("it was too late for the first byte".to_owned()),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_back_while_it_connected_is_not_sent() {
    let mut world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let inner = Arc::clone(&world.settings.transport);
    let (first, is_connected) = (Duration::from_secs(300), AtomicBool::new(false));
    world.settings.transport = Arc::new(SlowToConnect { first, is_connected, inner });
    let outbox = world.open().await;
    let row = outbox.enqueue(message(1, "a")).await.unwrap().receipt.id;
    let _sending = outbox.start();
    pass(Duration::from_secs(200)).await;
    outbox.abort(row, "the lease is over").await.unwrap();
    pass(Duration::from_secs(600)).await;
    assert!(world.seen.lock().unwrap().is_empty(), "nothing is sent that was taken back");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_grew_old_while_it_connected_is_no_attempt() {
    let mut world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let inner = Arc::clone(&world.settings.transport);
    let (first, is_connected) = (Duration::from_secs(70), AtomicBool::new(false));
    world.settings.transport = Arc::new(SlowToConnect { first, is_connected, inner });
    let outbox = world.open().await;
    let row = outbox.enqueue(message(1, "a")).await.unwrap().receipt.id;
    let _sending = outbox.start();
    pass(Duration::from_secs(75)).await;
    let receipt = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((receipt.status, receipt.attempts, receipt.ambiguous), (Status::Done, 1, false));
    assert_eq!(outbox.attempts(row).await.unwrap().len(), 1, "what was not sent was no attempt");
}

#[tokio::test(start_paused = true)]
async fn what_comes_behind_a_head_that_cannot_be_sent_goes_out_after_it() {
    let world = World::quick("ietf", |_, count| match count {
        1 => Sent::NotSent("no network".to_owned()),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    let _sending = outbox.start();
    outbox.pause("paused").await.unwrap();
    for (number, lane) in [(1, "waits"), (2, "paused")] {
        outbox.enqueue(message(number, lane)).await.unwrap();
        pass(Duration::from_millis(10)).await;
    }
    for number in (3..10).step_by(2) {
        outbox.enqueue(message(number, "waits")).await.unwrap();
        outbox.enqueue(message(number + 1, "paused")).await.unwrap();
    }
    pass(Duration::from_secs(3600)).await;
    let sent = |is_odd: bool| -> Vec<String> {
        let of_lane = |key: &String| key.as_bytes()[key.len() - 1] % 2 == u8::from(is_odd);
        world.keys("idempotency-key").into_iter().filter(of_lane).collect()
    };
    assert_eq!(sent(true), [1, 1, 3, 5, 7, 9].map(uuid), "the head again, and then the others");
    assert!(sent(false).is_empty(), "the lane is paused");
    outbox.resume("paused").await.unwrap();
    pass(Duration::from_millis(100)).await;
    assert_eq!(sent(false), [2, 4, 6, 8, 10].map(uuid));
    outbox.enqueue(message(11, "waits")).await.unwrap();
    pass(Duration::from_millis(10)).await;
    assert_eq!(sent(true).len(), 7, "an empty lane is sent from at once");
}
