//! Messages that two readers could read differently never reach the service as requests of their own.

use std::time::Duration;

use crate::upstream::{Reply, Upstream};
use crate::world::{World, before, keyed, post};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n";

async fn shop() -> (Upstream, World) {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "ok")).await;
    let world = before(&upstream).await;
    (upstream, world)
}

/// Sends bytes and reads all answers until the connection ends, or falls silent once the expected ones are there.
async fn statuses(world: &World, bytes: &str, expected: usize) -> Vec<u16> {
    let mut client = world.client().await;
    client.send(bytes).await;
    let mut statuses = Vec::new();
    loop {
        let patience = match statuses.len() < expected {
            true => Duration::from_secs(20),
            false => Duration::from_millis(300),
        };
        match tokio::time::timeout(patience, client.answer()).await {
            Ok(Some(answer)) => statuses.push(answer.status),
            Ok(None) | Err(_) => return statuses,
        }
    }
}

fn smuggled(upstream: &Upstream) -> bool {
    upstream.seen().iter().any(|seen| seen.head.contains("smuggled"))
}

#[tokio::test]
async fn both_lengths_never_make_two_requests() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 500\r\n",
    ] {
        for key in ["", "Idempotency-Key: k1\r\nAuthorization: a\r\n"] {
            let (upstream, world) = shop().await;
            let bytes =
                format!("POST / HTTP/1.1\r\nHost: shop.example\r\n{key}{lines}\r\n0\r\n\r\n{SMUGGLED}");
            let statuses = statuses(&world, &bytes, 1).await;
            assert!(statuses.len() <= 1, "{lines:?}: {statuses:?}");
            assert!(!smuggled(&upstream), "{lines:?}");
        }
    }
}

#[tokio::test]
async fn ambiguous_heads_are_refused_and_the_connection_is_closed() {
    for lines in [
        "Host: shop.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "Host: shop.example\r\nContent-Length: 1, 2\r\n",
        "Host: shop.example\r\nContent-Length: +1\r\n",
        "Host: shop.example\r\nHost: shop.example\r\nContent-Length: 1\r\n",
        "Host: shop.example\r\nHost: other.example\r\nContent-Length: 1\r\n",
        "Content-Length: 1\r\n",
        "Host: a b\r\nContent-Length: 1\r\n",
        "Host: shop.example\r\nX-Folded: a\r\n b\r\nContent-Length: 1\r\n",
        "Host: shop.example\r\n X-Folded: a\r\nContent-Length: 1\r\n",
        "Host: shop.example\r\nTransfer-Encoding: gzip, chunked\r\n",
        "Host: shop.example\r\nTransfer-Encoding: xchunked\r\n",
        "Host: shop.example\r\nTransfer-Encoding : chunked\r\n",
        "Host: shop.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ] {
        let (upstream, world) = shop().await;
        let bytes = format!("POST / HTTP/1.1\r\n{lines}\r\nx{SMUGGLED}");
        let statuses = statuses(&world, &bytes, 1).await;
        assert_eq!(statuses, [400], "{lines:?}");
        assert_eq!(upstream.count(), 0, "{lines:?}");
    }
}

#[tokio::test]
async fn target_and_host_must_agree() {
    let (upstream, world) = shop().await;
    let other = "POST http://other.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(statuses(&world, other, 1).await, [400]);
    assert_eq!(upstream.count(), 0);
    let same = "POST http://shop.example/a?b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(statuses(&world, same, 1).await, [200]);
    assert_eq!(upstream.seen()[0].line(), "POST /a?b HTTP/1.1");
}

#[tokio::test]
async fn two_keys_are_refused() {
    let (upstream, world) = shop().await;
    let two = post("/", "Authorization: a\r\nIdempotency-Key: k1\r\nIdempotency-Key: k1\r\n", "{}");
    assert_eq!(world.ask(two).await.status, 400);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_body_of_a_replayed_request_is_not_read_as_a_request() {
    let (upstream, world) = shop().await;
    assert_eq!(world.ask(keyed("/", "k1", SMUGGLED)).await.status, 200);
    let mut client = world.client().await;
    for _ in 0..3 {
        let answer = client.ask(keyed("/", "k1", SMUGGLED)).await;
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, Some("true")));
    }
    // A refusal that comes before the body was read: it is drained, or the connection ends.
    let unnamed = post("/", "Idempotency-Key: k1\r\n", SMUGGLED);
    assert_eq!(statuses(&world, &unnamed, 1).await, [401]);
    assert_eq!(upstream.count(), 1);
    assert!(!upstream.seen().iter().any(|seen| seen.line().contains("smuggled")));
}

#[tokio::test]
async fn what_was_sent_along_with_a_replayed_request_is_answered_like_after_any_other() {
    let (upstream, world) = shop().await;
    assert_eq!(world.ask(keyed("/", "k1", "{}")).await.status, 200);
    let garbage = format!("{}garbage\r\n\r\n", keyed("/", "k1", "{}"));
    assert_eq!(statuses(&world, &garbage, 2).await, [200, 400]);
    assert_eq!(upstream.count(), 1);
    // Three at once: a replay, a request of its own, and a replay of that.
    let three = [keyed("/", "k1", "{}"), keyed("/", "k2", "{}"), keyed("/", "k2", "{}")].concat();
    let mut client = world.client().await;
    client.send(three).await;
    for replayed in [Some("true"), None, Some("true")] {
        let answer = client.answer().await.expect("an answer to each");
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, replayed));
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn the_same_length_said_twice_is_one_length_for_everybody() {
    let (upstream, world) = shop().await;
    let twice = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(world.ask(twice).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.head.to_lowercase().matches("content-length").count(), 1, "{}", seen.head);
}

#[tokio::test]
async fn a_body_that_is_too_large_gets_its_refusal() {
    let (upstream, world) = shop().await;
    let answer = world.ask(keyed("/", "k1", &"x".repeat((1 << 20) + 70_000))).await;
    assert_eq!(answer.status, 413);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_refused_body_is_read_to_its_end_so_that_its_client_gets_the_refusal() {
    let (upstream, world) = shop().await;
    let body = "x".repeat(200_000);
    let refused = post("/", "Idempotency-Key: k1\r\n", &body);
    let (first, rest) = refused.split_at(50_000);
    let mut client = world.client().await;
    client.send(first).await;
    assert_eq!(client.answer().await.expect("a refusal").status, 401);
    client.send(rest).await;
    assert_eq!(client.ask(keyed("/", "k1", "{}")).await.status, 200, "the connection can still be used");
    assert_eq!(upstream.count(), 1);
}
