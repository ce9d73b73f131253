//! What the engine was not told of, because whoever was to tell it went away or the disk was full at that moment, is
//! sent all the same.

mod scripted;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scripted::{World, answer, header, message, pass, uuid};
use semel_delivery::credentials::{Asked, Credential, Credentials, Wallet};
use semel_delivery::sqlite::SqliteStore;
use semel_delivery::{Enqueue, Outbox, Status};
use tracing::field::{Field, Visit};
use tracing::span;

async fn status(outbox: &Outbox, number: u32) -> Status {
    outbox.receipt(&uuid(number)).await.unwrap().unwrap().status
}

/// An outbox that sends, and another one on the same store whose messages nobody tells it of.
async fn told_and_untold(world: &World) -> (Outbox, Outbox) {
    let untold = world.open().await;
    (world.open().await, untold)
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_caller_went_away_is_sent_within_a_minute() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let (outbox, untold) = told_and_untold(&world).await;
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    untold.enqueue(message(1, "a")).await.unwrap();
    pass(Duration::from_secs(65)).await;
    assert_eq!(status(&outbox, 1).await, Status::Done);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_handed_in_again_is_sent_at_once() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let (outbox, untold) = told_and_untold(&world).await;
    let _sending = outbox.start();
    pass(Duration::from_secs(1)).await;
    untold.enqueue(message(1, "a")).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(status(&outbox, 1).await, Status::Pending, "nobody has told");
    outbox.enqueue(message(1, "a")).await.unwrap();
    pass(Duration::from_secs(1)).await;
    assert_eq!(status(&outbox, 1).await, Status::Done);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_free_again_without_a_word_goes_on_within_a_minute() {
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let (outbox, untold) = told_and_untold(&world).await;
    outbox.pause("a").await.unwrap();
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(5)).await;
    assert_eq!(status(&outbox, 1).await, Status::Pending, "the lane is paused");
    untold.resume("a").await.unwrap();
    outbox.enqueue(message(2, "a")).await.unwrap();
    pass(Duration::from_secs(65)).await;
    assert_eq!((status(&outbox, 1).await, status(&outbox, 2).await), (Status::Done, Status::Done));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_disk_full_is_tried_again() {
    let mut world = World::quick("ietf", |request, _| match header(request, "authorization").as_str() {
        "good" => answer(200, &[], ""),
        _ => answer(401, &[], ""),
    });
    let wallet = Arc::new(Wallet::default());
    let give = |token: &str| {
        let headers = vec![("Authorization".to_owned(), token.to_owned())];
        wallet.give("alice", "http://server.test", Credential { headers });
    };
    give("old");
    world.settings.credentials = Arc::clone(&wallet) as _;
    let outbox = world.open().await;
    let enqueue = Enqueue { principal: Some("alice".to_owned()), ..message(1, "a") };
    outbox.enqueue(enqueue).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(10)).await;
    assert_eq!(status(&outbox, 1).await, Status::Held);
    world.store.faults().fill_disk(true);
    give("good");
    outbox.refreshed("alice").await.expect_err("the disk is full");
    pass(Duration::from_secs(10)).await;
    world.store.faults().fill_disk(false);
    pass(Duration::from_secs(10)).await;
    assert_eq!(status(&outbox, 1).await, Status::Done);
}

/// A credential that may be changed, and that fills the disk once when it is asked for.
struct Filling {
    token: Mutex<String>,
    fills: AtomicBool,
    store: Arc<SqliteStore>,
}

impl Credentials for Filling {
    fn credential<'a>(&'a self, _: &'a str, _: &'a str) -> Asked<'a> {
        if self.fills.swap(false, Ordering::SeqCst) {
            self.store.faults().fill_disk(true);
        }
        let token = self.token.lock().unwrap().clone();
        Box::pin(async move { Ok(Some(Credential::line("X-Token", &token))) })
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_in_the_moment_of_a_release_is_released_too() {
    let mut world = World::quick("ietf", |request, _| match header(request, "x-token").as_str() {
        "good" => answer(200, &[], ""),
        _ => answer(401, &[], ""),
    });
    let credentials = Arc::new(Filling {
        token: Mutex::new("old".to_owned()),
        fills: AtomicBool::new(false),
        store: Arc::clone(&world.store),
    });
    world.settings.credentials = Arc::clone(&credentials) as _;
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_millis(2500)).await;
    assert_eq!(status(&outbox, 1).await, Status::Held);
    // The second one finds that its credential was refused, and cannot be written down yet.
    credentials.fills.store(true, Ordering::SeqCst);
    outbox.enqueue(message(2, "b")).await.unwrap();
    pass(Duration::from_millis(100)).await;
    assert_eq!(status(&outbox, 2).await, Status::Inflight);
    world.store.faults().fill_disk(false);
    *credentials.token.lock().unwrap() = "good".to_owned();
    outbox.release("default", None).await.unwrap();
    pass(Duration::from_secs(70)).await;
    assert_eq!((status(&outbox, 1).await, status(&outbox, 2).await), (Status::Done, Status::Done));
    assert!(outbox.holds().is_empty());
}

/// Counts what is logged of claims that failed.
#[derive(Clone, Default)]
struct Failures(Arc<AtomicUsize>);

impl Visit for Failures {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let is_claim = field.name() == "message" && format!("{value:?}").contains("failed to claim");
        self.0.fetch_add(usize::from(is_claim), Ordering::SeqCst);
    }
}

impl tracing::Subscriber for Failures {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("semel_delivery")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Neither the disk nor the log is kept busy by every lane finding out for itself.
#[tokio::test(start_paused = true)]
async fn while_the_disk_is_full_one_lane_tries_for_all() {
    let failures = Failures::default();
    let _guard = tracing::subscriber::set_default(failures.clone());
    let world = World::quick("ietf", |_, _| answer(200, &[], ""));
    let outbox = world.open().await;
    for number in 1..=300 {
        outbox.enqueue(message(number, &format!("lane-{number}"))).await.unwrap();
    }
    world.store.faults().fill_disk(true);
    let _sending = outbox.start();
    pass(Duration::from_secs(20)).await;
    let failed = failures.0.load(Ordering::SeqCst);
    assert!((10..=60).contains(&failed), "{failed} attempts in 20 s");
    world.store.faults().fill_disk(false);
    pass(Duration::from_secs(10)).await;
    for number in 1..=300 {
        assert_eq!(status(&outbox, number).await, Status::Done);
    }
}
