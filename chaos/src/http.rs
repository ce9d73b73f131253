//! The little of HTTP/1.1 that this needs: one request and its answer on a connection, or requests as a server reads them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends one request on a connection of its own. An error means that no whole answer came.
pub(crate) fn send(port: u16, head: &str, body: &str, patience: Duration) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let length = body.len();
    // One of several hosts, where the head says so.
    let host = if head.contains("\r\nHost: ") { "" } else { "Host: 127.0.0.1\r\n" };
    let rest = format!("{host}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(format!("{head}\r\n{rest}").as_bytes())?;
    let (head, body) = message(&mut BufReader::new(stream))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other("no status"))?;
    Ok(Answer { status, head, body })
}

/// Reads a message: its head in lower case, and its body by the length that it names.
pub(crate) fn message(stream: &mut impl BufRead) -> std::io::Result<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let head = head.to_ascii_lowercase();
    let length = header(&head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

/// The value of a header.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}
