//! What the tools send with: connections of `semel-http` that the caller opens, a URL as people type it, and answers read
//! whole. A request is sent once: nothing here sends again, follows a redirect or keeps a cookie.

mod connection;
pub(crate) mod effects;
mod target;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

pub(crate) use connection::Connection;
pub(crate) use target::{Target, header_line};

use crate::exit::{Exit, Stop};

/// Longest body that is read of an answer.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What a server answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// From the first byte sent to the last one read.
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the request was processed; where to look for its result may be said instead of the result.
    pub(crate) fn is_processed(&self) -> bool {
        (200..400).contains(&self.status)
    }

    /// A header's value, where it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the server says that it gave an earlier answer again.
    pub(crate) fn is_replay(&self) -> bool {
        let says = |name| self.header(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        says("idempotency-replayed") || says("idempotent-replayed")
    }

    /// The beginning of the body, for a message.
    pub(crate) fn glimpse(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(100).collect();
        line.trim().to_owned()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no connection: nothing was sent.
    NotConnected(String),
    /// The connection broke: it may have been sent.
    Broken(String),
    /// It took too long: it was sent, perhaps.
    TimedOut,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NotConnected(why) => write!(f, "no connection: {why}"),
            Failure::Broken(why) => write!(f, "the connection broke: {why}"),
            Failure::TimedOut => f.write_str("no answer in time"),
        }
    }
}

/// Runs a command's work to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Stop::new(Exit::Io, format!("failed to start the runtime: {error}")))?;
    runtime.block_on(work)
}

/// A random version 4 UUID.
pub(crate) fn uuid() -> Result<String, Stop> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Stop::new(Exit::Io, format!("failed to get random numbers: {error}")))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_form_and_is_never_the_same() {
        let (one, other) = (uuid().unwrap(), uuid().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        assert_eq!(&one[14..15], "4");
        assert!("89ab".contains(&one[19..20]), "{one}");
    }
}
