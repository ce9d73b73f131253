//! What a requeue asks of the server before a new message takes the place of one that may have arrived.

mod scripted;

use std::time::Duration;

use scripted::{World, answer, header, message, pass, uuid};
use semel_delivery::transport::Sent;
use semel_delivery::{Outbox, OutboxError, Requeue, Row, Status};

/// An outbox whose first attempt broke off and whose second one was answered like this.
async fn after_a_break(world: &World) -> (Outbox, Row) {
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_secs(30)).await;
    sending.stop(Duration::from_secs(1)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    (outbox, row)
}

/// What a gate says without or before looking a key up, or of another credential's use of it.
const REFUSALS: [(u16, &str); 7] = [
    (409, "credential-changed"),
    (409, "answer-not-kept"),
    (409, "key-sealed"),
    (422, "too-old"),
    (422, "fingerprint-mismatch"),
    (400, "key-invalid"),
    (413, "body-too-large"),
];

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_say_that_earlier_attempts_had_no_effect() {
    for (status, kind) in REFUSALS {
        let world = World::quick("ietf", move |_, count| match count {
            1 => Sent::TimedOut("no answer came".to_owned()),
            _ => {
                let body = format!(r#"{{"type":"urn:semel:problem:{kind}","status":{status}}}"#);
                answer(status, &[("Semel-Guarantee", "fenced")], &body)
            }
        });
        let (_, row) = after_a_break(&world).await;
        assert_eq!(row.status, Status::Dead, "{kind}");
        assert!(row.is_possibly_delivered(), "{kind}: the first attempt may have taken effect");
        let error = row.last_error.unwrap();
        assert_eq!(error.contains("it took effect"), kind == "answer-not-kept", "{error}");
    }
}

/// A gate whose profile says 202 while the first attempt runs: that attempt may still come to nothing.
#[tokio::test(start_paused = true)]
async fn what_still_runs_at_a_gate_is_asked_for_again_and_not_taken_for_delivered() {
    for profile in ["mesh", "scores"] {
        let world = World::quick(profile, |_, count| match count {
            1 => Sent::TimedOut("no answer came".to_owned()),
            2..=4 => {
                let headers =
                    [("Semel-Outcome", "pending"), ("Semel-Guarantee", "fenced"), ("Retry-After", "1")];
                answer(202, &headers, r#"{"status":"processing"}"#)
            }
            5 => answer(503, &[("Semel-Guarantee", "fenced")], ""),
            _ => answer(201, &[("Semel-Guarantee", "fenced")], ""),
        });
        let (_, row) = after_a_break(&world).await;
        assert_eq!((row.status, row.attempts), (Status::Done, 6), "{profile}: {row:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_not_kept_is_an_effect_also_at_the_first_attempt() {
    let world =
        World::quick("ietf", |_, _| answer(409, &[], r#"{"type":"urn:semel:problem:answer-not-kept"}"#));
    let (_, row) = after_a_break(&world).await;
    assert!(row.status == Status::Dead && row.is_possibly_delivered(), "{row:?}");
}

#[tokio::test(start_paused = true)]
async fn a_seal_that_holds_for_one_credential_is_not_a_seal() {
    for identity in [r#","identity":"hashed""#, ""] {
        let world = World::quick("ietf", move |request, _| match request.target.path.ends_with("/seal") {
            true => answer(200, &[], &format!(r#"{{"sealed":true{identity}}}"#)),
            false => Sent::Broken("reset".to_owned()),
        });
        let (outbox, row) = after_a_break(&world).await;
        let refused = outbox.requeue(&row, Requeue::default()).await;
        assert!(matches!(refused, Err(OutboxError::State(_))), "{refused:?}");
        let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
        let forced = outbox.requeue(&row, Requeue { force: true, ..Requeue::default() }).await.unwrap();
        assert!(!forced.is_sealed && forced.old.ambiguous, "{forced:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_what_may_have_arrived_is_sealed_first() {
    let world = World::quick("ietf", |request, _| match request.target.path.ends_with("/seal") {
        true => answer(200, &[], r#"{"sealed":true,"identity":"verified"}"#),
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

/// Nothing is sent in the name of who has signed out, no seal either; and a look around makes nobody sign in.
#[tokio::test(start_paused = true)]
async fn who_has_signed_out_seals_nothing_and_stays_signed_out() {
    let world = World::quick("ietf", |request, _| match request.target.path.ends_with("/seal") {
        true => answer(200, &[], r#"{"sealed":true,"identity":"verified"}"#),
        false => Sent::Broken("reset".to_owned()),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_millis(100)).await;
    sending.stop(Duration::from_secs(1)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    outbox.sign_out(&row.principal).await.unwrap();
    let refused = outbox.requeue(&row, Requeue::default()).await;
    assert!(matches!(refused, Err(OutboxError::State(_))), "{refused:?}");
    let is_seal = |request: &semel_delivery::transport::Outgoing| request.target.path.ends_with("/seal");
    assert!(
        !world.seen.lock().unwrap().iter().any(|(_, request)| is_seal(request)),
        "it was asked for nothing"
    );
    outbox.try_again(&row.principal).await.unwrap();
    assert!(outbox.is_signed_out(&row.principal), "until it signs in");
    outbox.refreshed(&row.principal).await.unwrap();
    let requeued = outbox.requeue(&row, Requeue::default()).await.unwrap();
    assert!(requeued.is_sealed, "{requeued:?}");
}

/// What a server says of the second key says nothing of the first, whose effect nobody has found out about.
#[tokio::test(start_paused = true)]
async fn what_took_the_place_of_a_message_that_may_have_arrived_never_says_that_nothing_did() {
    let world =
        World::quick("ietf", |request, count| match (request.target.path.ends_with("/seal"), count) {
            (true, _) if request.target.path.contains(&uuid(1)) => answer(404, &[], ""),
            (true, _) => answer(200, &[], r#"{"sealed":true,"identity":"verified"}"#),
            (false, 1) => Sent::TimedOut("no answer came".to_owned()),
            (false, _) => answer(422, &[("Idempotency-Replayed", "true")], ""),
        });
    let (outbox, first) = after_an_answer(&world).await;
    let forced = Requeue { force: true, new_client_id: Some(uuid(2)), ..Requeue::default() };
    outbox.requeue(&first, forced).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_secs(5)).await;
    sending.stop(Duration::from_secs(1)).await;
    let second = outbox.receipt(&uuid(2)).await.unwrap().unwrap();
    assert!(second.status == Status::Dead && second.is_possibly_delivered(), "{second:?}");
    let third = outbox.requeue(&second, Requeue::default()).await.unwrap();
    assert!(third.is_sealed && third.old.ambiguous && third.new.ambiguous, "{third:?}");
}

/// A server forgets keys: of one that it has forgotten, a seal does not say that nothing happened.
#[tokio::test(start_paused = true)]
async fn a_seal_of_what_the_server_may_have_forgotten_is_not_a_seal() {
    for (hours, is_believed) in [(22, true), (25, false), (24 * 30, false)] {
        let world = World::quick("ietf", |request, _| match request.target.path.ends_with("/seal") {
            true => answer(200, &[], r#"{"sealed":true,"identity":"verified"}"#),
            false => Sent::TimedOut("no answer came".to_owned()),
        });
        let (outbox, row) = after_an_answer(&world).await;
        assert!(row.ambiguous, "it may have taken effect");
        tokio::time::advance(Duration::from_secs(hours * 3600)).await;
        let requeued = outbox.requeue(&row, Requeue::default()).await;
        match requeued {
            Ok(requeued) => assert!(is_believed && requeued.is_sealed, "{hours} h"),
            Err(OutboxError::State(why)) => {
                assert!(!is_believed && why.contains("forgotten"), "{hours} h: {why}")
            }
            Err(other) => panic!("{hours} h: {other}"),
        }
    }
}

/// An outbox whose only attempt was answered like this, so that nothing is open.
async fn after_an_answer(world: &World) -> (Outbox, Row) {
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_millis(100)).await;
    sending.stop(Duration::from_secs(1)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    (outbox, row)
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_server_says_is_in_use_is_not_requeued_without_force() {
    for state in ["running", "unknown"] {
        let world = World::quick("ietf", move |request, _| match request.target.path.ends_with("/seal") {
            true => answer(200, &[], &format!(r#"{{"sealed":false,"state":"{state}"}}"#)),
            false => answer(400, &[], ""),
        });
        let (outbox, row) = after_an_answer(&world).await;
        assert_eq!((row.status, row.ambiguous), (Status::Dead, false));
        let refused = outbox.requeue(&row, Requeue::default()).await;
        assert!(
            matches!(&refused, Err(OutboxError::State(why)) if why.contains(state)),
            "the server knows better than the row: {refused:?}"
        );
        let forced = outbox.requeue(&row, Requeue { force: true, ..Requeue::default() }).await.unwrap();
        assert!(forced.old.ambiguous && forced.new.ambiguous, "{state}: both say that it may have arrived");
    }
}

#[tokio::test(start_paused = true)]
async fn a_requeue_is_not_judged_by_what_a_message_was_before() {
    let world = World::quick("ietf", |request, count| match count {
        _ if request.target.path.ends_with("/seal") => answer(404, &[], ""),
        1 => answer(503, &[], ""),
        _ => Sent::TimedOut("no answer came".to_owned()),
    });
    let (outbox, before) = after_an_answer(&world).await;
    assert_eq!((before.status, before.attempts, before.ambiguous), (Status::Pending, 1, false));
    let sending = outbox.start();
    while world.times().len() < 2 {
        pass(Duration::from_millis(100)).await;
    }
    sending.stop(Duration::from_secs(1)).await;
    let now = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert!(now.status == Status::Pending && now.ambiguous, "{now:?}");
    let refused = outbox.requeue(&before, Requeue::default()).await;
    assert!(matches!(refused, Err(OutboxError::State(_))), "it may have arrived since: {refused:?}");
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Pending, 2), "it waits as before");
}

#[tokio::test(start_paused = true)]
async fn every_message_of_a_chain_of_requeues_names_the_first() {
    let world = World::quick("ietf", |request, _| match request.target.path.ends_with("/seal") {
        true => answer(404, &[], ""),
        false => Sent::Broken("reset".to_owned()),
    });
    let (outbox, mut row) = after_an_answer(&world).await;
    for number in [2, 3] {
        let how = Requeue { force: true, new_client_id: Some(uuid(number)), ..Requeue::default() };
        let requeued = outbox.requeue(&row, how).await.unwrap();
        assert_eq!(requeued.new.supersedes_id, Some(uuid(number - 1)), "its receipt names the one before");
        let sending = outbox.start();
        pass(Duration::from_millis(100)).await;
        sending.stop(Duration::from_secs(1)).await;
        row = outbox.receipt(&uuid(number)).await.unwrap().unwrap();
    }
    let seen = world.seen.lock().unwrap();
    let sent = seen.iter().filter(|(_, request)| !request.target.path.ends_with("/seal"));
    let named: Vec<[String; 2]> = sent
        .map(|(_, request)| ["idempotency-key", "semel-supersedes"].map(|name| header(request, name)))
        .collect();
    assert_eq!(named, [[uuid(1), String::new()], [uuid(2), uuid(1)], [uuid(3), uuid(1)]]);
}

#[tokio::test(start_paused = true)]
async fn what_was_forced_beside_one_that_may_have_arrived_says_that_it_may_be_there_twice() {
    let world =
        World::quick("ietf", |request, count| match (request.target.path.ends_with("/seal"), count) {
            (true, _) => answer(404, &[], ""),
            (false, 1) => Sent::TimedOut("no answer came".to_owned()),
            (false, _) => answer(201, &[("Semel-Guarantee", "fenced")], ""),
        });
    let (outbox, first) = after_an_answer(&world).await;
    let forced = Requeue { force: true, new_client_id: Some(uuid(2)), ..Requeue::default() };
    outbox.requeue(&first, forced).await.unwrap();
    let sending = outbox.start();
    pass(Duration::from_secs(5)).await;
    sending.stop(Duration::from_secs(1)).await;
    let second = outbox.receipt(&uuid(2)).await.unwrap().unwrap();
    assert_eq!(second.status, Status::Done);
    assert!(second.is_possibly_repeated() && !second.deduplicated, "{second:?}");
}
