//! What is made of a service that fails: released where surely nothing was sent, unknown otherwise.

use std::time::Duration;

use semel_contract::problem::Kind;
use tokio::net::TcpListener;

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, before, keyed};

fn says(answer: &crate::world::Answer, kind: Kind) -> bool {
    answer.body.contains(&format!("\"{}\"", kind.type_uri()))
}

#[tokio::test]
async fn a_retry_gets_the_first_answer_and_the_service_sees_one_request() {
    let upstream = Upstream::start(|_, before| {
        Reply::status(201, "X-Number: 7\r\nContent-Type: text/x\r\n", &format!("order {before}"))
    })
    .await;
    let world = before(&upstream).await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    let again = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.body.as_str()), (201, "order 0"));
    assert_eq!((again.status, again.body.as_str()), (201, "order 0"));
    assert_eq!(again.header("x-number"), Some("7"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(
        (first.header("semel-guarantee"), first.header("idempotency-replayed")),
        (Some("fenced"), None)
    );
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn fifty_at_once_are_one_effect_and_fifty_equal_answers() {
    let upstream = Upstream::start(|_, before| {
        Reply::after(Duration::from_millis(300), 201, "", &format!("order {before}"))
    })
    .await;
    let world = before(&upstream).await;
    let ask = || world.ask(keyed("/orders", "k1", "{}"));
    let answers = futures_util::future::join_all((0..50).map(|_| ask())).await;
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == "order 0"), "{answers:?}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_service_that_is_not_there_frees_the_key() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let world = Wish::behind(&format!("http://{address}")).start().await;
    let refused = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!(refused.status, 502);
    assert!(says(&refused, Kind::UpstreamUnreachable), "{refused:?}");
    assert_eq!((refused.header("retry-after"), refused.header("semel-outcome")), (Some("1"), None));
    // It comes up: the same key runs.
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        crate::upstream::message(&mut socket, &mut Vec::new()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, b"HTTP/1.1 201 X\r\ncontent-length: 2\r\n\r\nok")
            .await
            .unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.status, 201);
}

#[tokio::test]
async fn a_reset_after_sending_is_unknown_and_never_sent_again() {
    let upstream = Upstream::start(|_, _| Reply::Reset).await;
    let world = before(&upstream).await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.header("semel-outcome")), (502, Some("unknown")));
    assert!(says(&first, Kind::UpstreamReset), "{first:?}");
    let again = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!(again.status, 409);
    assert!(says(&again, Kind::OutcomeUnknown), "{again:?}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_service_that_does_not_answer_in_time_is_unknown() {
    let upstream = Upstream::start(|_, _| Reply::Silence).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.behind.timeout = Duration::from_millis(200);
    let world = wish.start().await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.header("semel-outcome")), (504, Some("unknown")));
    assert!(says(&first, Kind::UpstreamTimeout), "{first:?}");
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.status, 409);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_protocol_that_changes_unasked_is_no_answer() {
    let upstream = Upstream::start(|_, _| {
        Reply::Bytes(Duration::ZERO, b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n".to_vec())
    })
    .await;
    let world = before(&upstream).await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.header("semel-outcome")), (502, Some("unknown")), "{first:?}");
    let unkeyed = world.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(unkeyed.status, 502);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_unknown() {
    let upstream =
        Upstream::start(|_, _| Reply::Last(b"HTTP/1.1 201 X\r\ncontent-length: 100\r\n\r\nhalf".to_vec()))
            .await;
    let world = before(&upstream).await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.header("semel-outcome")), (502, Some("unknown")));
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.status, 409);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn an_answer_of_a_hundred_header_lines_is_read_and_one_more_is_unknown() {
    let lines = |count: usize| (0..count).map(|n| format!("X-{n}: {n}\r\n")).collect::<String>();
    let upstream = Upstream::start(move |_, before| match before {
        // With its length, a hundred.
        0 => Reply::status(201, &lines(99), "whole"),
        _ => Reply::status(201, &lines(100), "one too many"),
    })
    .await;
    let world = before(&upstream).await;
    let whole = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((whole.status, whole.body.as_str(), whole.header("x-98")), (201, "whole", Some("98")));
    let many = world.ask(keyed("/orders", "k2", "{}")).await;
    assert_eq!((many.status, many.header("semel-outcome")), (502, Some("unknown")), "{many:?}");
    assert_eq!(world.ask(keyed("/orders", "k2", "{}")).await.status, 409);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn an_upstream_that_knows_its_outcome_is_believed() {
    let upstream = Upstream::start(|_, before| match before {
        0 => Reply::status(500, "Semel-Outcome: not-applied\r\n", "rolled back"),
        1 => Reply::status(
            500,
            "Semel-Outcome: applied\r\nSemel-Guarantee: atomic\r\nSemel-Other: x\r\n",
            "done",
        ),
        _ => Reply::status(500, "", "never seen"),
    })
    .await;
    let world = before(&upstream).await;
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.body, "rolled back");
    let applied = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((applied.body.as_str(), applied.header("semel-guarantee")), ("done", Some("fenced")));
    assert_eq!(applied.header("semel-other"), None);
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.body, "done");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn what_found_no_connection_before_its_lease_ended_is_not_sent() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(1500), 201, "", "done")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.lease = Duration::from_secs(1);
    wish.behind.connections_max = 1;
    wish.behind.connect_timeout = Duration::from_secs(4);
    let world = wish.start().await;
    let first = async { world.ask(keyed("/orders", "k1", "{}")).await };
    let second = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.ask(keyed("/orders", "k2", "{}")).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.status, 201);
    assert_eq!((second.status, second.header("semel-outcome")), (502, None), "{second:?}");
    assert!(says(&second, Kind::UpstreamUnreachable), "{second:?}");
    assert_eq!(upstream.count(), 1);
    assert_eq!(world.ask(keyed("/orders", "k2", "{}")).await.status, 201, "the key is free");
}

#[tokio::test]
async fn when_all_connections_are_busy_for_too_long_nothing_is_sent() {
    let upstream = Upstream::start(|_, _| Reply::after(Duration::from_millis(600), 201, "", "done")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.behind.connections_max = 1;
    wish.behind.connect_timeout = Duration::from_millis(200);
    let world = wish.start().await;
    let ask = |key| world.ask(keyed("/orders", key, "{}"));
    let (first, second) = tokio::join!(ask("k1"), ask("k2"));
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 502]);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_connection_that_was_idle_for_a_second_gets_no_keyed_request() {
    let upstream = Upstream::start(|seen, _| Reply::status(200, "", &seen.connection.to_string())).await;
    let world = before(&upstream).await;
    assert_eq!(world.ask(keyed("/orders", "k1", "{}")).await.body, "0");
    assert_eq!(world.ask(keyed("/orders", "k2", "{}")).await.body, "0");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(world.ask(keyed("/orders", "k3", "{}")).await.body, "1");
}

#[tokio::test]
async fn a_large_answer_passes_and_its_retry_is_not_executed() {
    let large = "x".repeat(3 << 20);
    let sent = large.clone();
    let upstream = Upstream::start(move |_, _| Reply::status(201, "Location: /orders/1\r\n", &sent)).await;
    let world = before(&upstream).await;
    let first = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((first.status, first.body.len()), (201, large.len()));
    let again = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!(again.status, 409);
    assert!(says(&again, Kind::AnswerNotKept) && again.body.contains("/orders/1"), "{again:?}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_does_not_cancel_its_request() {
    let upstream = Upstream::start(|_, before| {
        Reply::after(Duration::from_millis(200), 201, "", &format!("order {before}"))
    })
    .await;
    let world = before(&upstream).await;
    let mut client = world.client().await;
    client.send(keyed("/orders", "k1", "{}")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(client);
    // A retry while the first still runs waits for it.
    let again = world.ask(keyed("/orders", "k1", "{}")).await;
    assert_eq!((again.status, again.body.as_str()), (201, "order 0"));
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_noticed_without_a_request() {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "ok")).await;
    before(&upstream).await.gateway.reach_upstream().await.unwrap();
    assert_eq!(upstream.count(), 0, "nothing was asked of it");
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{address}"), format!("https://{}", upstream.address)] {
        let why = Wish::behind(&url).start().await.gateway.reach_upstream().await.unwrap_err();
        assert!(why.to_string().contains(&format!("{url} could not be reached")), "{why}");
    }
}
