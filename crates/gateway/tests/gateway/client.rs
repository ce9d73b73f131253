//! Clients that speak plain TCP and see every byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::upstream::message;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next answer; `None` when the connection ends instead.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        let read =
            tokio::time::timeout(Duration::from_secs(120), message(&mut self.socket, &mut self.buffer));
        let (head, body) = read.await.expect("an answer in time")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request).await;
        self.answer().await.expect("an answer")
    }
}

/// A keyed POST as bytes.
pub(crate) fn keyed(path: &str, key: &str, body: &str) -> String {
    post(path, &format!("Authorization: Bearer a\r\nIdempotency-Key: {key}\r\n"), body)
}

/// A POST as bytes.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop.example\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
