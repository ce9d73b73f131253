//! HTTP/2 services that allow few streams: a keyed request finds one of its own or is surely not sent, and what was given
//! up is never sent later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum_core::body::Body;
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_gateway::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::world::{Wish, World};

fn over_http2(url: &str) -> Wish {
    let mut wish = Wish::behind(url);
    wish.behind.protocol = Protocol::Http2;
    wish.lease = Duration::from_secs(1);
    wish.behind.timeout = Duration::from_secs(3);
    wish
}

/// A keyed request; `body` may be empty, as with a DELETE.
fn delete(key: &str, body: &str) -> String {
    format!(
        "DELETE /orders/1 HTTP/1.1\r\nHost: shop.example\r\nAuthorization: Bearer a\r\nIdempotency-Key: {key}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A service that allows one stream on each connection, and whose `/events` never end. Counts its effects.
async fn one_stream() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let effects = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&effects);
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let counting = Arc::clone(&counting);
            let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let counting = Arc::clone(&counting);
                async move {
                    let body = match request.uri().path() {
                        "/events" => Body::from_stream(futures_util::stream::once(std::future::pending::<
                            Result<bytes::Bytes, std::convert::Infallible>,
                        >(
                        ))),
                        "/quick" => Body::from("quick"),
                        _ => Body::from(format!("effect {}", counting.fetch_add(1, Ordering::SeqCst))),
                    };
                    Ok::<_, std::convert::Infallible>(http::Response::new(body))
                }
            });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(1)
                    .serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    (format!("http://{address}"), effects)
}

/// Takes the service's stream and keeps it.
async fn watch(world: &World) -> crate::world::Client {
    let mut client = world.client().await;
    client.send("GET /events HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    let mut first = [0; 12];
    client.socket.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    client
}

#[tokio::test]
async fn a_keyed_request_finds_a_stream_while_others_take_all_there_are() {
    let (url, effects) = one_stream().await;
    let world = over_http2(&url).start().await;
    let watching = watch(&world).await;
    let answer = world.ask(delete("k1", "")).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "effect 0"), "{answer:?}");
    drop(watching);
    assert_eq!(world.ask(delete("k1", "")).await.body, "effect 0");
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_without_a_key_finds_a_stream_while_others_take_all_there_are() {
    let (url, _) = one_stream().await;
    let world = over_http2(&url).start().await;
    let _watching = watch(&world).await;
    let answer = world.ask("GET /quick HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "quick"), "{answer:?}");
}

/// An HTTP/2 service, frame by frame, that answers a first request on its first connection and then allows no stream until
/// it is told to.
struct Miser {
    url: String,
    /// Requests whose head it saw.
    asked: Arc<AtomicUsize>,
    generous: Arc<Notify>,
}

/// SETTINGS_MAX_CONCURRENT_STREAMS.
fn allow(streams: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3];
    frame.extend(streams.to_be_bytes());
    frame
}

/// `:status: 200`, and the end of the stream.
fn answer(stream: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 1, 1, 5];
    frame.extend(stream.to_be_bytes());
    frame.push(0x88);
    frame
}

async fn miser() -> Miser {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, generous) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counting, told) = (Arc::clone(&asked), Arc::clone(&generous));
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (counting, told) = (Arc::clone(&counting), Arc::clone(&told));
            tokio::spawn(async move {
                let mut preface = [0; 24];
                socket.read_exact(&mut preface).await.unwrap();
                socket.write_all(&allow(1)).await.unwrap();
                loop {
                    let mut head = [0; 9];
                    tokio::select! {
                        read = socket.read_exact(&mut head) => if read.is_err() { return },
                        () = told.notified() => {
                            let _ = socket.write_all(&allow(1)).await;
                            continue;
                        }
                    }
                    let length =
                        usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                    let mut payload = vec![0; length];
                    if socket.read_exact(&mut payload).await.is_err() {
                        return;
                    }
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    match (head[3], connection) {
                        (1, 0) => {
                            counting.fetch_add(1, Ordering::SeqCst);
                            let _ = socket.write_all(&[allow(0), answer(stream)].concat()).await;
                        }
                        (1, _) => {
                            counting.fetch_add(1, Ordering::SeqCst);
                            let _ = socket.write_all(&answer(stream)).await;
                        }
                        // Its settings are acknowledged, which is what else a peer would do.
                        (4, _) if head[4] == 0 => {
                            let _ = socket.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).await;
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    Miser { url, asked, generous }
}

#[tokio::test]
async fn what_was_given_up_while_it_waited_for_a_stream_was_not_sent_and_never_is() {
    for body in ["", "{}"] {
        let miser = miser().await;
        let world = over_http2(&miser.url).start().await;
        assert_eq!(world.ask(delete("k0", body)).await.status, 200);
        let given_up = world.ask(delete("k1", body)).await;
        assert_eq!((given_up.status, given_up.header("semel-outcome")), (502, None), "{given_up:?}");
        let again = world.ask(delete("k1", body)).await;
        assert_eq!(again.status, 200, "the key is free: {again:?}");
        miser.generous.notify_waiters();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(miser.asked.load(Ordering::SeqCst), 2, "one for k0, one for k1");
    }
}

#[tokio::test]
async fn a_stream_that_comes_free_after_the_lease_gets_nothing() {
    for body in ["", "{}"] {
        let miser = miser().await;
        let world = over_http2(&miser.url).start().await;
        assert_eq!(world.ask(delete("k0", body)).await.status, 200);
        let late = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            miser.generous.notify_waiters();
        };
        let (waited, ()) = tokio::join!(world.ask(delete("k1", body)), late);
        assert_eq!((waited.status, waited.header("semel-outcome")), (502, None), "{waited:?}");
        assert_eq!(miser.asked.load(Ordering::SeqCst), 1, "only k0");
    }
}
