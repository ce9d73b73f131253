//! Small questions to other services: keys, checks and probes. Answers are bounded in size and time, and redirects are not
//! followed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};

use super::{Activity, HostSent, NoAnswer, Pool, Upstream};
use crate::HttpError;
use crate::target::{BadTarget, Target};

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Questions that are with one service at a time.
const ASKED_MAX: usize = 256;

/// Asks one service.
#[derive(Clone)]
pub struct Fetcher {
    pool: Arc<Pool>,
    target: Target,
    patience: Duration,
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("target", &self.target).finish_non_exhaustive()
    }
}

/// What it answered.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Fetcher {
    /// Asks the service of this URL, whose path is not looked at.
    ///
    /// # Errors
    /// The URL is not one, or the file of certificates cannot be read.
    pub fn of(url: &Uri, ca: Option<PathBuf>, patience: Duration) -> Result<Self, HttpError> {
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(format!("{url} has no host").into());
        };
        let target: Target =
            format!("{scheme}://{authority}").parse().map_err(|error: BadTarget| error.to_string())?;
        let upstream = Upstream {
            timeout: patience,
            connect_timeout: patience,
            ca,
            host: HostSent::Own,
            connections_max: ASKED_MAX,
            ..Upstream::at(target.clone())
        };
        Ok(Self { pool: Pool::new(upstream)?, target, patience })
    }

    /// Asks for a path, with headers.
    ///
    /// # Errors
    /// There is no answer, or it is too large or too slow.
    pub async fn ask(&self, path: &str, headers: HeaderMap) -> Result<Fetched, HttpError> {
        Ok(self.in_time(self.exchange(Method::GET, path, headers, Body::empty())).await?)
    }

    /// Posts something to a path. What is posted may come twice.
    ///
    /// # Errors
    /// There is no answer, or it is too large or too slow.
    pub async fn tell(&self, path: &str, headers: HeaderMap, body: Bytes) -> Result<Fetched, HttpError> {
        Ok(self.in_time(self.exchange(Method::POST, path, headers, Body::from(body))).await?)
    }

    async fn in_time(
        &self,
        exchange: impl Future<Output = Result<Fetched, String>>,
    ) -> Result<Fetched, String> {
        let answered = tokio::time::timeout(self.patience, exchange).await;
        answered.unwrap_or_else(|_| Err(format!("{} did not answer in time", self.target)))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        body: Body,
    ) -> Result<Fetched, String> {
        headers.remove(header::HOST);
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| format!("{path:?} is not a path"))?;
        *request.headers_mut() = headers;
        let answered = self.pool.send(Box::new(request), &Activity::default()).await;
        let response = answered.map_err(|no_answer| match no_answer {
            NoAnswer::NotSent(why) | NoAnswer::Reset(why) | NoAnswer::TimedOut(why) => why,
        })?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        Ok(Fetched { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }
}
