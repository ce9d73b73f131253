//! How long one exchange over HTTP may take: from its first byte to the last byte of its answer.

use std::time::Duration;

use semel_delivery::http1::Http1;
use semel_delivery::transport::{MaySend, Outgoing, Sent, Transport};
use semel_delivery::url::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

/// A server that sends the head of its answer after so long, and then a byte each time as long again.
async fn slow_server(pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = [0; 4096];
        let _ = stream.read(&mut read).await.unwrap();
        tokio::time::sleep(pause).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n").await.unwrap();
        loop {
            tokio::time::sleep(pause).await;
            if stream.write_all(b"x").await.is_err() {
                return;
            }
        }
    });
    format!("http://{address}")
}

#[tokio::test(start_paused = true)]
async fn head_and_body_share_one_time_out() {
    let origin = slow_server(Duration::from_millis(700)).await;
    let timeout = Duration::from_secs(1);
    let outgoing = Outgoing {
        method: "POST".to_owned(),
        target: Target::absolute(&format!("{origin}/notes")).unwrap(),
        headers: Vec::new(),
        body: b"{}".to_vec(),
        timeout,
        may_send: MaySend::always(),
    };
    let began = Instant::now();
    let sent = Http1::new().send(outgoing).await;
    assert!(matches!(sent, Sent::TimedOut(_)), "{sent:?}");
    let took = began.elapsed();
    assert!(took >= timeout && took < Duration::from_millis(1200), "it took {took:?}");
}
