//! What passes, what is added and what is removed on the way.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, before, keyed, post};

#[tokio::test]
async fn headers_are_set_anew_or_removed_on_both_ways() {
    let upstream = Upstream::start(|_, _| {
        Reply::status(
            200,
            "Connection: X-Private\r\nX-Private: 1\r\nKeep-Alive: 5\r\nSemel-Guarantee: atomic\r\nX-Kept: 2\r\n",
            "ok",
        )
    })
    .await;
    let world = before(&upstream).await;
    let lines = "Authorization: a\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\n\
        X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nSemel-Fence: 9-9\r\nSemel-Outcome: applied\r\n\
        Accept-Encoding: gzip\r\nX-Request-Id: mine\r\n";
    for key in ["", "Idempotency-Key: k1\r\n"] {
        let answer = world.ask(post("/a?b=c", &format!("{lines}{key}"), "{}")).await;
        assert_eq!(answer.status, 200);
        assert_eq!((answer.header("x-private"), answer.header("keep-alive")), (None, None));
        assert_eq!((answer.header("x-kept"), answer.header("x-request-id")), (Some("2"), Some("mine")));
    }
    let seen = upstream.seen();
    for seen in &seen {
        assert_eq!(seen.line(), "POST /a?b=c HTTP/1.1");
        for gone in ["x-secret", "te", "connection", "semel-outcome"] {
            assert_eq!(seen.header(gone), None, "{gone}");
        }
        assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
        assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;host=\"shop.example\";proto=http"));
        assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
        assert_eq!((seen.header("host"), seen.header("x-request-id")), (Some("shop.example"), Some("mine")));
    }
    assert_eq!((seen[0].header("accept-encoding"), seen[0].header("semel-fence")), (Some("gzip"), None));
    assert_eq!(seen[1].header("accept-encoding"), Some("identity"));
    let fence = seen[1].header("semel-fence").expect("a keyed request has a fence");
    assert!(fence.parse::<semel_contract::record::Fence>().is_ok() && fence != "9-9", "{fence}");
}

#[tokio::test]
async fn a_request_without_an_id_gets_one() {
    let upstream = Upstream::start(|_, _| Reply::status(200, "X-Request-Id: theirs\r\n", "ok")).await;
    let world = before(&upstream).await;
    let answer = world.ask(post("/", "", "{}")).await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    assert_eq!(id.len(), 32);
    assert_eq!(upstream.seen()[0].header("x-request-id"), Some(id.as_str()));
}

#[tokio::test]
async fn the_first_event_of_a_stream_arrives_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                crate::upstream::message(&mut socket, &mut Vec::new()).await.unwrap();
                let head = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n";
                socket.write_all(head.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_secs(60)).await;
            });
        }
    });
    let world = Wish::behind(&format!("http://{address}")).start().await;
    for request in [post("/events", "", ""), keyed("/events", "k1", "")] {
        let mut client = world.client().await;
        let started = Instant::now();
        client.send(request).await;
        let mut read = Vec::new();
        while !read.windows(7).any(|window| window == b"data: 1") {
            assert_ne!(client.socket.read_buf(&mut read).await.unwrap(), 0);
        }
        // The service says nothing more for a minute: whoever waited for the end would be later.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn an_upgrade_joins_the_two_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (head, _) = crate::upstream::message(&mut socket, &mut Vec::new()).await.unwrap();
        socket
            .write_all(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n")
            .await
            .unwrap();
        let mut word = [0; 4];
        socket.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"ping");
        socket.write_all(b"pong").await.unwrap();
        head
    });
    let mut wish = Wish::behind(&format!("http://{address}"));
    wish.behind.connections_max = 1;
    let world = wish.start().await;
    let mut client = world.client().await;
    let asked = "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: z\r\n\r\n";
    let answer = client.ask(asked).await;
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")));
    assert_eq!(answer.header("sec-websocket-accept"), Some("y"));
    assert_eq!(world.ask(asked).await.status, 503, "there is room for one");
    client.send("ping").await;
    let mut word = [0; 4];
    client.socket.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"pong");
    let head = service.await.unwrap().to_ascii_lowercase();
    assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
}

#[tokio::test]
async fn a_client_that_asks_for_leave_to_send_gets_it() {
    let upstream =
        Upstream::start(|seen, _| Reply::status(200, "", &String::from_utf8_lossy(&seen.body))).await;
    let world = before(&upstream).await;
    for key in ["", "Authorization: a\r\nIdempotency-Key: k1\r\n"] {
        let mut client = world.client().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: x\r\n{key}Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer().await.unwrap().status, 100);
        client.send("body").await;
        let answer = client.answer().await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (200, "body"));
    }
    assert!(upstream.seen().iter().all(|seen| seen.header("expect").is_none()));
    // Who is refused is not asked for the body.
    let refused = post("/", "Idempotency-Key: k1\r\nExpect: 100-continue\r\n", "");
    assert_eq!(world.ask(refused.replace("Content-Length: 0", "Content-Length: 9")).await.status, 401);
}

#[tokio::test]
async fn a_get_with_a_key_passes_untouched() {
    let upstream = Upstream::start(|_, before| Reply::status(200, "", &before.to_string())).await;
    let world = before(&upstream).await;
    let get = "GET / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\n\r\n";
    assert_eq!(world.ask(get).await.body, "0");
    let again = world.ask(get).await;
    assert_eq!((again.body.as_str(), again.header("semel-guarantee")), ("1", None));
}

#[tokio::test]
async fn pages_of_named_origins_may_send_keys_and_others_may_not() {
    let upstream = Upstream::start(|_, _| {
        Reply::status(201, "Access-Control-Allow-Origin: *\r\nLocation: /orders/1\r\n", "made")
    })
    .await;
    let mut wish = Wish::behind(&upstream.url());
    wish.cors = Some(semel_gateway::Cors::new(&["https://app.example".to_owned()], false).unwrap());
    let world = wish.start().await;
    let preflight = |origin: &str| {
        format!(
            "OPTIONS /orders HTTP/1.1\r\nHost: shop.example\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: idempotency-key\r\n\r\n"
        )
    };
    let allowed = world.ask(preflight("https://app.example")).await;
    assert_eq!(allowed.status, 204, "{allowed:?}");
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(world.ask(preflight("https://evil.example")).await.status, 403);
    assert_eq!(upstream.count(), 0, "the service is not asked beforehand");
    let from = |origin: &str| {
        let headers = format!("Authorization: Bearer a\r\nIdempotency-Key: k1\r\nOrigin: {origin}\r\n");
        post("/orders", &headers, "{}")
    };
    // A replay for another page does not say what the first was told.
    for (origin, shown) in
        [("https://app.example", Some("https://app.example")), ("https://evil.example", None)]
    {
        let answer = world.ask(from(origin)).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (201, shown), "{answer:?}");
    }
    assert_eq!(upstream.count(), 1);
}

/// A gate or a library behind this one says so with a 202, which would read like success without it.
#[tokio::test]
async fn an_answer_without_a_key_keeps_the_word_that_nothing_is_known_yet() {
    let lines = "Semel-Outcome: pending\r\nRetry-After: 1\r\nSemel-Guarantee: atomic\r\n";
    let upstream = Upstream::start(move |_, _| Reply::status(202, lines, "{}")).await;
    let world = before(&upstream).await;
    let answer = world.ask(post("/orders", "", "{}")).await;
    assert_eq!((answer.status, answer.header("semel-outcome")), (202, Some("pending")));
    assert_ne!(answer.header("semel-guarantee"), Some("atomic"));
}
