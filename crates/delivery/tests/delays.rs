//! When attempts are made, to the millisecond, by a clock that tests move.

mod scripted;

use std::time::Duration;

use scripted::{World, answer, message, pass, uuid};
use semel_delivery::Status;
use semel_delivery::transport::Sent;

async fn pauses_of(profile: &str, for_seconds: u64) -> Vec<u64> {
    let world = World::quick(profile, |_, _| answer(500, &[], ""));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(for_seconds)).await;
    let key = if profile == "scores" { "x-idempotency-key" } else { "idempotency-key" };
    assert!(world.keys(key).iter().all(|key| *key == uuid(1)), "the same key on every attempt");
    world.pauses()
}

// S0-146
#[tokio::test(start_paused = true)]
async fn walker_doubles_from_five_seconds_to_five_minutes_and_goes_on_by_the_quarter_hour() {
    let seconds = [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 900, 5, 10];
    let pauses = pauses_of("walker", 1815 + 900 + 20).await;
    assert_eq!(pauses, seconds.map(|seconds| seconds * 1000));
}

// S2-109
#[tokio::test(start_paused = true)]
async fn scores_makes_six_attempts_and_goes_on_after_five_minutes() {
    assert_eq!(pauses_of("scores", 340).await, [1, 2, 4, 8, 16, 300, 1, 2, 4].map(|seconds| seconds * 1000));
}

#[tokio::test(start_paused = true)]
async fn feed_doubles_to_thirty_two_seconds() {
    assert_eq!(pauses_of("feed", 130).await, [1, 2, 4, 8, 16, 32, 32, 32].map(|seconds| seconds * 1000));
}

#[tokio::test(start_paused = true)]
async fn the_receiver_says_when_to_come_back_in_seconds_as_a_date_or_in_milliseconds() {
    let world = World::quick("feed", |_, count| match count {
        1 => answer(429, &[("retry-after", "42")], ""),
        2 => answer(
            503,
            &[("date", "Sun, 06 Nov 1994 08:49:00 GMT"), ("retry-after", "Sun, 06 Nov 1994 08:50:30 GMT")],
            "",
        ),
        3 => answer(409, &[], r#"{"error":"in-flight","retry_after":1500}"#),
        4 => answer(409, &[], r#"{"error":"x"}"#),
        _ => answer(200, &[], ""),
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(200)).await;
    assert_eq!(world.pauses(), [42_000, 90_000, 1500, 1000]);
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.attempts, row.progress.failures),
        (Status::Done, 5, 0),
        "told waits cost nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_tried_again_with_the_same_key() {
    let world = World::quick("feed", |_, count| match count {
        1 => Sent::NotSent("refused".to_owned()),
        2 => Sent::Broken("reset".to_owned()),
        3 => Sent::TimedOut("late".to_owned()),
        _ => {
            answer(201, &[("idempotency-replayed", "true")], r#"{"broker_message_id":"b-7","history_id":9}"#)
        }
    });
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let sending = outbox.start();
    let in_doubt = async || outbox.receipt(&uuid(1)).await.unwrap().unwrap().is_possibly_delivered();
    pass(Duration::from_millis(500)).await;
    assert!(!in_doubt().await, "not a byte was sent");
    pass(Duration::from_secs(1)).await;
    assert!(in_doubt().await, "it broke off after something was sent");
    pass(Duration::from_secs(10)).await;
    sending.stop(Duration::from_secs(1)).await;
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.broker_message_id.as_deref(), row.history_id.as_deref()),
        (Status::Done, Some("b-7"), Some("9"))
    );
    assert!(!row.is_possibly_delivered() && !row.is_possibly_repeated(), "the server knew the key again");
    let log = outbox.attempts(row.id).await.unwrap();
    let outcomes: Vec<_> = log.iter().map(|attempt| attempt.outcome.clone().unwrap()).collect();
    assert_eq!(outcomes, ["not-sent", "broken", "timed-out", "answered"]);
    assert_eq!(world.keys("idempotency-key"), vec![uuid(1); 4]);
    let first = world.keys("idempotency-first-sent");
    assert!(first.iter().all(|time| *time == first[0] && !time.is_empty()), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_422_is_tried_once_more_and_then_dropped() {
    let world = World::quick("walker", |_, _| answer(422, &[], r#"{"error":"SOMETHING_NEW"}"#));
    let outbox = world.open().await;
    outbox.enqueue(message(1, "a")).await.unwrap();
    let _sending = outbox.start();
    pass(Duration::from_secs(100)).await;
    assert_eq!(world.pauses(), [5000]);
    let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Dead);
    assert!(row.last_error.unwrap().starts_with("unknown-422"));
}

#[tokio::test(start_paused = true)]
async fn answers_that_leave_open_what_happened_are_told_apart_from_those_that_do_not() {
    let applied = [("semel-outcome", "unknown")];
    let not_applied = [("semel-outcome", "not-applied")];
    let knows = [("semel-guarantee", "fenced")];
    type Headers = [(&'static str, &'static str)];
    let cases: [(u16, &Headers, &str, bool); 9] = [
        (500, &[], "", true),
        (502, &[], "", true),
        (500, &not_applied, "", false),
        (503, &[], "", false),
        (429, &[], "", false),
        (400, &[], "", false),
        (400, &applied, "", true),
        (409, &[], r#"{"type":"https://x.example/problems/outcome-unknown"}"#, true),
        (422, &knows, "", false),
    ];
    for (status, headers, body, is_open) in cases {
        let (headers, body) = (headers.to_vec(), body.to_owned());
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let world = World::quick("ietf", move |_, _| {
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (&**name, &**value)).collect();
            answer(status, &headers, &body)
        });
        let outbox = world.open().await;
        outbox.enqueue(message(1, "a")).await.unwrap();
        let sending = outbox.start();
        pass(Duration::from_millis(100)).await;
        sending.stop(Duration::from_secs(1)).await;
        let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
        assert_eq!((row.attempts, row.is_possibly_delivered()), (1, is_open), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_memory_may_have_been_told_twice() {
    for (headers, is_repeated) in [(vec![], true), (vec![("idempotency-replayed", "true")], false)] {
        let world = World::quick("feed", move |_, count| match count {
            1 => Sent::Broken("reset".to_owned()),
            _ => answer(200, &headers, ""),
        });
        let outbox = world.open().await;
        outbox.enqueue(message(1, "a")).await.unwrap();
        let _sending = outbox.start();
        pass(Duration::from_secs(5)).await;
        let row = outbox.receipt(&uuid(1)).await.unwrap().unwrap();
        assert_eq!((row.status, row.is_possibly_repeated()), (Status::Done, is_repeated));
    }
}
