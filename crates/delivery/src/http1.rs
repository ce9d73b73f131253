//! The transport over HTTP/1.1, with TLS by rustls. Follows no redirect and sends each request once: a connection that
//! gives a request back unsent says so.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum_core::body::Body;
use http_body_util::{BodyExt, Limited};
use rustls::ClientConfig;
use semel_http::{
    HostSent, HttpError, MaySend, NoAnswer, Pool, PooledBody, Upstream, client_tls, error_chain,
};
use tokio::time::Instant;

use crate::Invalid;
use crate::limits::ANSWER_BYTES_MAX;
use crate::message::Answer;
use crate::transport::{Outgoing, Sending, Sent, Transport};
use crate::url::Target;

/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Origins whose connections are kept.
const ORIGINS_MAX: usize = 256;

/// Sends over HTTP/1.1.
pub struct Http1 {
    /// Or why there is none: then nothing is sent over TLS.
    tls: Result<Arc<ClientConfig>, HttpError>,
    pools: Mutex<HashMap<String, Arc<Pool>>>,
}

impl std::fmt::Debug for Http1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Http1")
    }
}

impl Default for Http1 {
    fn default() -> Self {
        Self::new()
    }
}

impl Http1 {
    /// A transport that trusts the authorities of the web, and those in the file that `SSL_CERT_FILE` names.
    pub fn new() -> Self {
        Self { tls: client_tls(None).map(Arc::new), pools: Mutex::default() }
    }

    /// A transport that trusts the authorities in this PEM file, and no others.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn trusting_file(path: &Path) -> Result<Self, Invalid> {
        Ok(Self { tls: Ok(Arc::new(client_tls(Some(path))?)), pools: Mutex::default() })
    }

    /// The connections to an origin.
    fn pool(&self, target: &Target) -> Result<Arc<Pool>, String> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&target.origin) {
            return Ok(Arc::clone(pool));
        }
        let upstream = Upstream {
            connect_timeout: CONNECT_TIME_MAX,
            host: HostSent::Own,
            ..Upstream::at(target.origin.parse().map_err(|error: semel_http::BadTarget| error.to_string())?)
        };
        let pool = Pool::with_tls(upstream, self.tls.clone())?;
        if pools.len() >= ORIGINS_MAX {
            pools.retain(|_, pool| Arc::strong_count(pool) > 1);
        }
        if pools.len() < ORIGINS_MAX {
            pools.insert(target.origin.clone(), Arc::clone(&pool));
        }
        Ok(pool)
    }

    async fn send_once(&self, outgoing: Outgoing) -> Sent {
        let Outgoing { method, target, headers, body, timeout, may_send } = outgoing;
        let request = http::Request::builder().method(method.as_str()).uri(target.path_and_query());
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(name, value))
            .body(Body::from(body));
        let request = match request {
            Ok(request) => Box::new(request),
            Err(error) => return Sent::NotSent(format!("the request cannot be written: {error}")),
        };
        let pool = match self.pool(&target) {
            Ok(pool) => pool,
            Err(why) => return Sent::NotSent(why),
        };
        let (may_send, asked) = noting_when_asked(may_send);
        let response = match pool.send_once(request, may_send, timeout).await {
            Ok(response) => response,
            Err(NoAnswer::NotSent(why)) => return Sent::NotSent(why),
            Err(NoAnswer::Reset(why)) => return Sent::Broken(why),
            Err(NoAnswer::TimedOut(why)) => return Sent::TimedOut(why),
        };
        // One time for all of it, from the first byte: whoever sends has a claim that does not last longer.
        let ends = *asked.get_or_init(Instant::now) + timeout;
        match tokio::time::timeout_at(ends, read(response)).await {
            Ok(Ok(answer)) => Sent::Answered(answer),
            Ok(Err(why)) => Sent::Broken(why),
            Err(_) => Sent::TimedOut(format!("{} did not answer within {timeout:?}", target.origin)),
        }
    }
}

impl Transport for Http1 {
    fn send(&self, request: Outgoing) -> Sending<'_> {
        Box::pin(self.send_once(request))
    }
}

/// Notes when it was first asked whether a request may be sent: when its connection was ready, and never after the first
/// byte.
fn noting_when_asked(may_send: MaySend) -> (MaySend, Arc<OnceLock<Instant>>) {
    let asked = Arc::new(OnceLock::new());
    let noted = Arc::clone(&asked);
    let noting = MaySend::when(move || {
        noted.get_or_init(Instant::now);
        may_send.is_allowed()
    });
    (noting, asked)
}

/// Reads an answer. The status decides, so a body beyond the limit is cut and not an error.
async fn read(response: http::Response<PooledBody>) -> Result<Answer, String> {
    let (parts, body) = response.into_parts();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let status = parts.status.as_u16();
    let mut body = std::pin::pin!(Limited::new(body, ANSWER_BYTES_MAX));
    let mut bytes = Vec::new();
    while let Some(frame) = body.as_mut().frame().await {
        match frame {
            Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => break,
            Err(error) => return Err(error_chain(error.as_ref())),
        }
    }
    Ok(Answer { status, headers, body: bytes })
}
