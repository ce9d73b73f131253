//! Messages to NATS JetStream, by its own text protocol: each with a `Nats-Msg-Id`, each acknowledged by the stream.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{Message, Subscription};

/// A connection, and where answers to it come.
pub(super) struct Publisher {
    stream: BufReader<TcpStream>,
    inbox: String,
}

fn said(error: std::io::Error) -> String {
    format!("NATS: {error}")
}

impl Publisher {
    pub(super) async fn open(target: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(target).await.map_err(said)?;
        stream.set_nodelay(true).map_err(said)?;
        let inbox = format!("_INBOX.{}", stream.local_addr().map_err(said)?.port());
        let mut opened = Self { stream: BufReader::new(stream), inbox };
        let hello = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}}\r\nSUB {} 1\r\nPING\r\n",
            opened.inbox
        );
        opened.stream.write_all(hello.as_bytes()).await.map_err(said)?;
        while opened.line().await? != "PONG" {}
        Ok(opened)
    }

    async fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await.map_err(said)? == 0 {
            return Err("NATS closed the connection".to_owned());
        }
        if line.starts_with("-ERR") {
            return Err(format!("NATS: {line}"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next message on the inbox.
    async fn answer(&mut self) -> Result<String, String> {
        loop {
            let line = self.line().await?;
            if line == "PING" {
                self.stream.write_all(b"PONG\r\n").await.map_err(said)?;
            }
            if line.starts_with("MSG ") || line.starts_with("HMSG ") {
                let size = line.rsplit(' ').next().and_then(|size| size.parse::<usize>().ok());
                let mut bytes = vec![0; size.ok_or_else(|| format!("NATS: {line}"))? + 2];
                self.stream.read_exact(&mut bytes).await.map_err(said)?;
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }

    async fn ask(&mut self, subject: &str, body: &Value) -> Result<String, String> {
        let body = body.to_string();
        let text = format!("PUB {subject} {} {}\r\n{body}\r\n", self.inbox, body.len());
        self.stream.write_all(text.as_bytes()).await.map_err(said)?;
        let answer = self.answer().await?;
        if answer.contains("\"error\"") { Err(format!("NATS: {answer}")) } else { Ok(answer) }
    }

    pub(super) async fn publish(&mut self, message: &Message) -> Result<(), String> {
        let Message { id, topic, body, .. } = message;
        let head = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let text = format!(
            "HPUB bench.t{topic} {} {} {}\r\n{head}{body}\r\n",
            self.inbox,
            head.len(),
            head.len() + body.len()
        );
        self.stream.write_all(text.as_bytes()).await.map_err(said)?;
        let answer = self.answer().await?;
        match answer.contains("\"seq\":") && !answer.contains("\"error\"") {
            true => Ok(()),
            false => Err(format!("NATS: {answer}")),
        }
    }
}

/// Makes the stream, or finds that it is there.
pub(super) async fn make_stream(target: SocketAddr) -> Result<(), String> {
    let mut connection = Publisher::open(target).await?;
    let wish = json!({
        "name": "BENCH", "subjects": ["bench.>"], "storage": "file", "retention": "limits", "max_consumers": -1,
        "max_msgs": -1, "max_bytes": -1, "discard": "old", "max_age": 0, "num_replicas": 1,
        "duplicate_window": 120_000_000_000_u64,
    });
    connection.ask("$JS.API.STREAM.CREATE.BENCH", &wish).await.map(drop)
}

/// A consumer of its own on the first topic, pushed to without acknowledgements.
pub(super) async fn subscribe(target: SocketAddr, number: usize, seed: u64) -> Result<Subscription, String> {
    let mut connection = Publisher::open(target).await?;
    let subject = format!("deliver.{seed}.{number}");
    let text = format!("SUB {subject} 2\r\n");
    connection.stream.write_all(text.as_bytes()).await.map_err(said)?;
    let wish = json!({
        "stream_name": "BENCH",
        "config": {
            "deliver_subject": subject, "deliver_policy": "new", "ack_policy": "none", "filter_subject": "bench.t0",
            "replay_policy": "instant", "inactive_threshold": 5_000_000_000_u64,
        },
    });
    connection.ask("$JS.API.CONSUMER.CREATE.BENCH", &wish).await?;
    Ok(Subscription::Pushed(connection.stream.into_inner()))
}
