//! Deadlines that really fire: silent clients, dripping clients, half handshakes, bodies that stop, and limits.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::upstream::{Reply, Upstream};
use crate::world::{Wish, World, keyed, post};

const PATIENCE: Duration = Duration::from_millis(1500);

async fn hasty(tls: bool) -> (Upstream, World) {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "ok")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.limits.header_timeout = PATIENCE;
    wish.limits.idle_timeout = 2 * PATIENCE;
    wish.limits.body_timeout = PATIENCE;
    wish.limits.write_timeout = 2 * PATIENCE;
    if tls {
        wish.tls = Some(crate::secure::certificates("gate.example").0);
    }
    (upstream, wish.start().await)
}

/// How long the gateway bears a client that sends these bytes, one after another, and then nothing.
async fn borne(world: &World, bytes: &[u8], pause: Duration) -> Duration {
    let mut client = world.client().await;
    let started = Instant::now();
    let (mut reader, mut writer) = client.socket.split();
    let dripping = async {
        for byte in bytes {
            if writer.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        std::future::pending::<()>().await;
    };
    let closing = async {
        let mut sink = Vec::new();
        let _ = reader.read_to_end(&mut sink).await;
    };
    tokio::select! {
        () = dripping => {}
        () = closing => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("never closed"),
    }
    started.elapsed()
}

/// Not by much too early or too late: less than what lies between two of the deadlines.
#[track_caller]
fn on_time(borne: Duration, after: Duration) {
    assert!(borne >= after - Duration::from_millis(200), "too early: {borne:?}");
    assert!(borne < after + Duration::from_millis(1200), "too late: {borne:?}");
}

#[tokio::test]
async fn a_client_that_says_nothing_is_closed_on_time() {
    let (_upstream, world) = hasty(false).await;
    on_time(borne(&world, b"", Duration::ZERO).await, PATIENCE);
}

#[tokio::test]
async fn a_head_that_drips_is_closed_on_time() {
    let (upstream, world) = hasty(false).await;
    let head = format!("POST / HTTP/1.1\r\nHost: x\r\nX-Slow: {}", "x".repeat(500));
    on_time(borne(&world, head.as_bytes(), Duration::from_millis(20)).await, PATIENCE);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn half_a_preface_and_half_a_handshake_are_closed_on_time() {
    let (_upstream, plain) = hasty(false).await;
    let (_upstream, secure) = hasty(true).await;
    let all = tokio::join!(
        borne(&plain, b"PRI * HTTP/2", Duration::ZERO),
        borne(&plain, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Duration::ZERO),
        borne(&secure, b"", Duration::ZERO),
        borne(&secure, b"\x16\x03\x01\x02\x00\x01", Duration::ZERO),
    );
    for borne in [all.0, all.1, all.2, all.3] {
        on_time(borne, PATIENCE);
    }
}

#[tokio::test]
async fn a_second_head_has_the_same_time_and_an_idle_connection_more() {
    let (_upstream, world) = hasty(false).await;
    let begun = async {
        let mut client = world.client().await;
        assert_eq!(client.ask(post("/", "", "{}")).await.status, 200);
        let started = Instant::now();
        client.send("POST / HTT").await;
        assert!(client.answer().await.is_none());
        started.elapsed()
    };
    let idle = async {
        let mut client = world.client().await;
        assert_eq!(client.ask(post("/", "", "{}")).await.status, 200);
        let started = Instant::now();
        assert!(client.answer().await.is_none());
        started.elapsed()
    };
    let (begun, idle) = tokio::join!(begun, idle);
    on_time(begun, PATIENCE);
    on_time(idle, 2 * PATIENCE);
}

#[tokio::test]
async fn a_body_that_stops_is_given_up() {
    let (upstream, world) = hasty(false).await;
    for request in [post("/", "", "0123456789"), keyed("/", "k1", "0123456789")] {
        let mut client = world.client().await;
        let started = Instant::now();
        client.send(request.trim_end_matches("56789")).await;
        // A refusal or the end of the connection, but not for ever.
        let _ = client.answer().await;
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
    assert!(upstream.seen().is_empty(), "half a body is no request");
}

#[tokio::test]
async fn a_slow_service_is_waited_for() {
    let upstream = Upstream::start(|_, _| Reply::after(2 * PATIENCE, 200, "", "late")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.limits.header_timeout = PATIENCE / 2;
    wish.limits.idle_timeout = PATIENCE / 2;
    wish.limits.write_timeout = PATIENCE / 2;
    wish.behind.timeout = Duration::from_secs(15);
    let world = wish.start().await;
    let (plain, with_key) = tokio::join!(world.ask(post("/", "", "{}")), world.ask(keyed("/", "k1", "{}")));
    assert_eq!((plain.body.as_str(), with_key.body.as_str()), ("late", "late"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let large = "x".repeat(64 << 20);
    let upstream = Upstream::start(move |_, _| Reply::status(200, "", &large)).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.limits.write_timeout = PATIENCE;
    let world = wish.start().await;
    let mut client = world.client().await;
    let started = Instant::now();
    client.send(post("/", "", "{}")).await;
    while upstream.count() == 0 || world.gateway.connections() > 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "never closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(started.elapsed() >= PATIENCE);
}

#[tokio::test]
async fn heads_are_bounded() {
    let (upstream, world) = hasty(false).await;
    let many: String = (0..101).map(|number| format!("X-{number}: 1\r\n")).collect();
    assert_eq!(world.ask(post("/", &many, "{}")).await.status, 431);
    let long = format!("X-Long: {}\r\n", "x".repeat(70 << 10));
    assert_eq!(world.ask(post("/", &long, "{}")).await.status, 431);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn connections_are_bounded_and_the_next_waits_its_turn() {
    let upstream = Upstream::start(|_, _| Reply::status(200, "", "ok")).await;
    let mut wish = Wish::behind(&upstream.url());
    wish.limits.connections_max = 2;
    let world = wish.start().await;
    let mut first = world.client().await;
    assert_eq!(first.ask(post("/", "", "{}")).await.status, 200);
    let _second = world.client().await;
    let mut third = world.client().await;
    third.send(post("/", "", "{}")).await;
    let waiting = tokio::time::timeout(Duration::from_millis(200), third.answer()).await;
    assert!(waiting.is_err(), "there is no room yet");
    drop(first);
    assert_eq!(third.answer().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_long_upload_may_take_its_time_and_a_silent_service_may_not() {
    let upstream = Upstream::start(|seen, _| match seen.line().contains("silent") {
        true => Reply::Silence,
        false => Reply::status(200, "", &seen.body.len().to_string()),
    })
    .await;
    let mut wish = Wish::behind(&upstream.url());
    wish.behind.timeout = PATIENCE;
    let world = wish.start().await;
    let upload = async {
        let mut client = world.client().await;
        client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n").await;
        for _ in 0..8 {
            tokio::time::sleep(PATIENCE / 4).await;
            client.send("x").await;
        }
        assert_eq!(client.answer().await.unwrap().body, "8");
    };
    let silence = async {
        let started = Instant::now();
        assert_eq!(world.ask(post("/silent", "", "{}")).await.status, 504);
        started.elapsed()
    };
    let ((), silent) = tokio::join!(upload, silence);
    on_time(silent, PATIENCE);
}
