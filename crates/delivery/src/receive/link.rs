//! The way to a broker: a stream of events, and acknowledgements. Reads the credential anew for each of them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _, Limited};
use semel_http::{Activity, HostSent, NoAnswer, Pool, Upstream};
use serde_json::{Value, json};

use super::{LineName, Receive};
use crate::Invalid;
use crate::credentials::{Credentials as _, Rule, Wallet};
use crate::url::{Target, encoded};

/// How long a broker may take to begin an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How much of a refusal is read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

/// Bytes of events, as they come.
pub type Stream = Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, String>> + Send>>;

/// What a link promises.
pub type Linked<'a, T> = Pin<Box<dyn Future<Output = Result<T, Unlinked>> + Send + 'a>>;

/// Why a broker did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlinked {
    /// It says no: the credential, the membership, the subscription.
    Refused(String),
    /// It does not understand what it was asked; the same again is no use.
    Malformed(String),
    /// It cannot be reached, or not now.
    Away(String),
}

/// The way to one line.
pub trait Link: Send + Sync + 'static {
    /// Events after this one; `0` is from the first that is kept.
    fn open<'a>(&'a self, after: &'a str) -> Linked<'a, Stream>;

    /// Says that everything up to this event is kept.
    fn acknowledge<'a>(&'a self, up_to: &'a str) -> Linked<'a, ()>;
}

/// The way over HTTP.
pub struct HttpLink {
    pool: Arc<Pool>,
    broker: Target,
    wallet: Wallet,
    /// The path of the line, without what is done to it.
    path: String,
    consumer: String,
}

impl std::fmt::Debug for HttpLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpLink").field("path", &self.path).finish_non_exhaustive()
    }
}

impl HttpLink {
    /// The way to a line. Nothing is sent.
    ///
    /// # Errors
    /// The address cannot be one, or certificates cannot be read.
    pub fn new(receive: &Receive, own_name: &str) -> Result<Self, Invalid> {
        let broker = receive.broker.clone();
        let upstream = Upstream {
            timeout: ANSWER_TIME_MAX,
            connect_timeout: CONNECT_TIME_MAX,
            host: HostSent::Own,
            ca: receive.ca.clone(),
            ..Upstream::at(broker.origin.parse().map_err(|error: semel_http::BadTarget| error.to_string())?)
        };
        let rule = receive.credential.clone().map(|place| Rule {
            principal: None,
            origin: broker.origin.clone(),
            target: None,
            header: "Authorization".to_owned(),
            place,
        });
        let line = match &receive.line {
            LineName::Topic(topic) => format!("topics/{}", encoded(topic)),
            LineName::Direct => "direct".to_owned(),
        };
        let base = broker.path.trim_end_matches('/');
        let path = format!("{base}/v1/meshes/{}/{line}", encoded(&receive.mesh));
        let consumer = receive.consumer.clone().unwrap_or_else(|| own_name.to_owned());
        Ok(Self {
            pool: Pool::new(upstream)?,
            broker,
            wallet: Wallet::new(rule.into_iter().collect()),
            path,
            consumer,
        })
    }

    async fn ask(
        &self,
        method: &str,
        path: String,
        body: Option<Value>,
    ) -> Result<http::Response<semel_http::PooledBody>, Unlinked> {
        let away = |why: String| Unlinked::Away(why);
        let credential = self.wallet.credential("default", &self.broker.origin).await;
        let credential = credential.map_err(Unlinked::Refused)?.unwrap_or_default();
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "text/event-stream, application/json");
        for (name, value) in credential.headers {
            request = request.header(name, value);
        }
        if body.is_some() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = request.body(body).map_err(|error| Unlinked::Refused(error.to_string()))?;
        let answered = self.pool.send(Box::new(request), &Activity::default()).await;
        let response = answered.map_err(|no_answer| match no_answer {
            NoAnswer::NotSent(why) | NoAnswer::Reset(why) | NoAnswer::TimedOut(why) => away(why),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let text = text.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Err(refusal(status, &text))
    }
}

/// What a status says. Whoever is refused is let in once somebody adds the member, the topic or the subscription.
fn refusal(status: u16, body: &[u8]) -> Unlinked {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let word = told["error"].as_str().unwrap_or_default();
    let reason = told["reason"].as_str().unwrap_or_default();
    let why = format!("{status} {word}: {reason}");
    let why = crate::limits::shorten(why.trim_end_matches([':', ' ']), crate::limits::ERROR_CHARS_MAX);
    match status {
        401 | 403 | 404 | 422 => Unlinked::Refused(why),
        429 | 500.. => Unlinked::Away(why),
        _ => Unlinked::Malformed(why),
    }
}

impl Link for HttpLink {
    fn open<'a>(&'a self, after: &'a str) -> Linked<'a, Stream> {
        Box::pin(async move {
            let path =
                format!("{}/events?consumer={}&after={}", self.path, encoded(&self.consumer), encoded(after));
            let response = self.ask("GET", path, None).await?;
            let stream = BodyDataStream::new(response.into_body());
            Ok(Box::pin(stream.map(|piece| piece.map_err(|error| semel_http::error_chain(&error)))) as Stream)
        })
    }

    fn acknowledge<'a>(&'a self, up_to: &'a str) -> Linked<'a, ()> {
        Box::pin(async move {
            let body = json!({"up_to": up_to, "consumer": self.consumer});
            let response = self.ask("POST", format!("{}/ack", self.path), Some(body)).await?;
            // Read to its end, so that the connection is used again.
            let _ = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_apart_from_a_broker_that_is_away() {
        let body = br#"{"error":"identity_refused","reason":"not a member"}"#;
        assert_eq!(refusal(403, body), Unlinked::Refused("403 identity_refused: not a member".to_owned()));
        assert_eq!(refusal(503, b""), Unlinked::Away("503".to_owned()));
        assert!(matches!(refusal(400, b"{}"), Unlinked::Malformed(_)));
    }
}
