//! Messages to Redis Streams: one stream for each topic, which is read with `XREAD BLOCK`. Nothing there knows an id again.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Message, Subscription};

pub(super) struct Publisher(TcpStream);

fn said(error: std::io::Error) -> String {
    format!("Redis: {error}")
}

fn command(parts: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend(format!("${}\r\n{part}\r\n", part.len()).into_bytes());
    }
    bytes
}

async fn connect(target: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(target).await.map_err(said)?;
    stream.set_nodelay(true).map_err(said)?;
    Ok(stream)
}

/// How long the first answer in these bytes is, if it is whole.
fn length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' => match usize::try_from(number()?) {
            Ok(size) => (bytes.len() >= end + size + 2).then_some(end + size + 2),
            Err(_) => Some(end),
        },
        b'*' => {
            let mut at = end;
            for _ in 0..number()?.max(0) {
                at += length(&bytes[at..])?;
            }
            Some(at)
        }
        _ => Some(end),
    }
}

async fn answer(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<usize, String> {
    loop {
        if let Some(length) = (!bytes.is_empty()).then(|| length(bytes)).flatten() {
            return if bytes[0] == b'-' {
                Err(String::from_utf8_lossy(bytes).into_owned())
            } else {
                Ok(length)
            };
        }
        if stream.read_buf(bytes).await.map_err(said)? == 0 {
            return Err("Redis closed the connection".to_owned());
        }
    }
}

impl Publisher {
    pub(super) async fn open(target: SocketAddr) -> Result<Self, String> {
        Ok(Self(connect(target).await?))
    }

    pub(super) async fn publish(&mut self, message: &Message) -> Result<(), String> {
        let Message { id, topic, body, .. } = message;
        let text = command(&["XADD", &format!("bench:t{topic}"), "*", "id", id, "body", body]);
        self.0.write_all(&text).await.map_err(said)?;
        answer(&mut self.0, &mut Vec::new()).await.map(drop)
    }
}

/// Follows the first topic.
pub(super) struct Reader {
    stream: TcpStream,
    last: String,
}

pub(super) async fn subscribe(target: SocketAddr) -> Result<Subscription, String> {
    let mut stream = connect(target).await?;
    // From the newest that is there on.
    stream.write_all(&command(&["XREVRANGE", "bench:t0", "+", "-", "COUNT", "1"])).await.map_err(said)?;
    let mut bytes = Vec::new();
    answer(&mut stream, &mut bytes).await?;
    let last = last_id(&bytes).unwrap_or_else(|| "0-0".to_owned());
    Ok(Subscription::Asked(Reader { stream, last }))
}

/// The last id of an entry in an answer: two numbers with a dash.
fn last_id(bytes: &[u8]) -> Option<String> {
    let is_id = |text: &&str| {
        text.split_once('-').is_some_and(|(time, number)| {
            [time, number]
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        })
    };
    std::str::from_utf8(bytes).ok()?.split("\r\n").filter(is_id).last().map(str::to_owned)
}

impl Reader {
    /// Asks for more and adds what comes.
    pub(super) async fn more(&mut self, into: &mut Vec<u8>) -> Result<(), String> {
        let text = command(&["XREAD", "COUNT", "1000", "BLOCK", "0", "STREAMS", "bench:t0", &self.last]);
        self.stream.write_all(&text).await.map_err(said)?;
        let mut bytes = Vec::new();
        let length = answer(&mut self.stream, &mut bytes).await?;
        if let Some(last) = last_id(&bytes[..length]) {
            self.last = last;
        }
        into.extend_from_slice(&bytes[..length]);
        Ok(())
    }
}
