//! The server that is examined, as the examiner reaches it: sends requests, each on a connection of its own, and counts
//! effects. Judges nothing.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::task::JoinSet;

use crate::client::effects::Counter;
use crate::client::{Answer, Connection, Failure, Target};

/// How long a count must stand still before it is believed, and the longest wait for that.
const QUIET: Duration = Duration::from_millis(50);
const QUIET_WITHIN: Duration = Duration::from_secs(2);

/// How long a connection may take where several are opened.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Who sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    One,
    Other,
}

/// What is sent as the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload {
    Usual,
    Changed,
}

/// The server under examination.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) target: Target,
    pub(crate) method: Method,
    pub(crate) key_header: HeaderName,
    pub(crate) one: HeaderMap,
    pub(crate) other: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) changed_body: Bytes,
    pub(crate) counter: Option<Counter>,
    pub(crate) timeout: Duration,
}

impl Subject {
    /// Sends one request with these key lines.
    pub(crate) async fn send(
        &self,
        keys: &[HeaderValue],
        payload: Payload,
        who: Who,
    ) -> Result<Answer, Failure> {
        let mut connection = Connection::open(&self.target, self.timeout).await?;
        let (headers, body) = self.request(keys, payload, who);
        connection.send(&self.target, &self.method, &headers, body, self.timeout).await
    }

    /// Sends one request so many times at once, on connections that are open before the first goes out; fewer times where
    /// the server does not take so many connections.
    pub(crate) async fn send_at_once(&self, key: &HeaderValue, times: usize) -> Vec<Result<Answer, Failure>> {
        let mut connections = Vec::new();
        for _ in 0..times {
            match Connection::open(&self.target, self.timeout.min(CONNECT_TIME_MAX)).await {
                Ok(connection) => connections.push(connection),
                Err(_) if connections.len() > 1 => break,
                Err(failure) => return vec![Err(failure)],
            }
        }
        let mut under_way = JoinSet::new();
        for mut connection in connections {
            let (headers, body) = self.request(std::slice::from_ref(key), Payload::Usual, Who::One);
            let (target, method, timeout) = (self.target.clone(), self.method.clone(), self.timeout);
            under_way.spawn(async move { connection.send(&target, &method, &headers, body, timeout).await });
        }
        under_way.join_all().await
    }

    fn request(&self, keys: &[HeaderValue], payload: Payload, who: Who) -> (HeaderMap, Bytes) {
        let mut headers = match who {
            Who::One => self.one.clone(),
            Who::Other => self.other.clone(),
        };
        for key in keys {
            headers.append(self.key_header.clone(), key.clone());
        }
        let body = match payload {
            Payload::Usual => self.body.clone(),
            Payload::Changed => self.changed_body.clone(),
        };
        (headers, body)
    }

    /// Effects so far, where they can be counted.
    pub(crate) async fn effects(&self) -> Result<Option<u64>, String> {
        match &self.counter {
            Some(counter) => counter.read().await.map(Some),
            None => Ok(None),
        }
    }

    /// How many effects there were since `before`, where they can be counted.
    pub(crate) async fn effects_since(&self, before: Option<u64>) -> Result<Option<i64>, String> {
        let after = match &self.counter {
            Some(counter) => Some(counter.settled(QUIET, QUIET_WITHIN).await?),
            None => None,
        };
        Ok(before.zip(after).map(|(before, after)| {
            i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
        }))
    }
}
