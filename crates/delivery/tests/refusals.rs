//! What the engine does about credentials that are refused, or that cannot be had: it waits, and does not ask without end.

mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scripted::{World, answer, header, message, pass, uuid};
use semel_delivery::Status;
use semel_delivery::credentials::{Asked, Credential, Credentials};
use semel_delivery::transport::Sent;

/// A command that mints another token each time.
#[derive(Default)]
struct Minting(AtomicUsize);

impl Credentials for Minting {
    fn credential<'a>(&'a self, _: &'a str, _: &'a str) -> Asked<'a> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move { Ok(Some(Credential::line("X-Token", &format!("token-{number}")))) })
    }
}

fn slowly(sent: Sent) -> (Duration, Sent) {
    (Duration::from_millis(10), sent)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_every_token_is_not_asked_without_end() {
    let mut world = World::new("ietf", |_, _| slowly(answer(401, &[], "")));
    let minting = Arc::new(Minting::default());
    world.settings.credentials = Arc::clone(&minting) as _;
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    outbox.enqueue(message(2, "b")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(1800)).await;
    let attempts = world.times().len();
    assert!((4..50).contains(&attempts), "{attempts} attempts in half an hour");
    assert!(world.pauses().iter().rev().take(2).any(|pause| *pause >= 200_000), "{:?}", world.pauses());
    let minted = minting.0.load(Ordering::SeqCst);
    assert!(minted < 200, "{minted} tokens were minted");
}

#[tokio::test(start_paused = true)]
async fn after_a_good_token_the_next_refusal_is_the_first_again() {
    // Two are refused, one is good, and so on.
    let mut world =
        World::new("ietf", |_, count| slowly(answer(if count % 3 == 0 { 200 } else { 401 }, &[], "")));
    world.settings.credentials = Arc::new(Minting::default());
    let outbox = world.open().await;
    for number in 1..=6 {
        outbox.enqueue(message(number, "a")).await.unwrap();
    }
    let _sending = outbox.start();
    pass(Duration::from_secs(60)).await;
    for number in 1..=6 {
        let row = outbox.receipt(&uuid(number)).await.unwrap().unwrap();
        assert_eq!(row.status, Status::Done, "{number}: {:?}", world.times());
    }
}

/// Cannot say at first; then there is none to be sent.
#[derive(Default)]
struct NoneAtLast(AtomicUsize);

impl Credentials for NoneAtLast {
    fn credential<'a>(&'a self, _: &'a str, _: &'a str) -> Asked<'a> {
        let is_first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move { if is_first { Err("the vault does not answer".to_owned()) } else { Ok(None) } })
    }
}

#[tokio::test(start_paused = true)]
async fn a_principal_that_needs_no_credential_after_all_is_released() {
    let mut world = World::quick("ietf", |request, _| {
        assert_eq!(header(request, "authorization"), "", "none is sent");
        answer(200, &[], "")
    });
    world.settings.credentials = Arc::new(NoneAtLast::default());
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(10)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Done, "{:?}", row.last_error);
}
