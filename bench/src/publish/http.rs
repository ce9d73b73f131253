//! Messages over HTTP/1.1, to a semel broker or a semel outbox, and the broker's events.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Args, Message, Subscription, To};

pub(super) struct Publisher {
    stream: TcpStream,
    to: To,
    token: String,
    bytes: Vec<u8>,
}

async fn connect(target: std::net::SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(target).await.map_err(|error| format!("{target}: {error}"))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

impl Publisher {
    pub(super) async fn open(args: &Args) -> Result<Self, String> {
        let token = if args.to == To::Outbox { args.token.clone() } else { format!("{}-0", args.token) };
        let to = args.to;
        Ok(Self { stream: connect(args.target).await?, to, token, bytes: Vec::new() })
    }

    pub(super) async fn publish(&mut self, message: &Message) -> Result<(), String> {
        let Message { id, topic, body, .. } = message;
        let (path, body) = match self.to {
            To::Outbox => (
                "/v1/send",
                format!(
                    "{{\"client_message_id\":\"{id}\",\"lane\":\"0000000\",\"request\":{{\"method\":\"POST\",\
                     \"url\":\"/orders\",\"body\":\"{body}\"}}}}"
                ),
            ),
            To::Broker | To::Jetstream | To::Streams => (
                "/v1/meshes/bench/messages",
                format!(
                    "{{\"client_message_id\":\"{id}\",\"to\":{{\"topic\":\"t{topic}\"}},\"body\":\"{body}\"}}"
                ),
            ),
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        self.answered().await
    }

    /// Reads one answer.
    async fn answered(&mut self) -> Result<(), String> {
        self.bytes.clear();
        let (head, length) = loop {
            if self.stream.read_buf(&mut self.bytes).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection was closed".to_owned());
            }
            let Some(end) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&self.bytes[..end]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let length = length.ok_or_else(|| format!("an answer without a length: {head}"))?;
            break (head, end + 4 + length);
        };
        while self.bytes.len() < length {
            if self.stream.read_buf(&mut self.bytes).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection was closed".to_owned());
            }
        }
        match head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&self.bytes).into_owned()),
        }
    }
}

/// Follows the first topic, as one of the members.
pub(super) async fn subscribe(args: &Args, member: usize) -> Result<Subscription, String> {
    let mut stream = connect(args.target).await?;
    let request = format!(
        "GET /v1/meshes/bench/topics/t0/events HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}-{member}\r\n\r\n",
        args.token
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    while !bytes.windows(6).any(|six| six == b": open") {
        if stream.read_buf(&mut bytes).await.map_err(|error| error.to_string())? == 0
            || bytes.starts_with(b"HTTP/1.1 4")
        {
            return Err(format!("no stream: {}", String::from_utf8_lossy(&bytes)));
        }
    }
    Ok(Subscription::Pushed(stream))
}
