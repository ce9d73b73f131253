//! Small questions to other services, over a connection each: keys, checks and probes. Answers are bounded in size and
//! time, and redirects are not followed.

use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};

use super::connect::{Connector, Sender};
use super::{Target, Upstream};

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Asks one service.
pub(crate) struct Fetcher {
    connector: Connector,
    target: Target,
    patience: Duration,
}

/// What it answered.
pub(crate) struct Fetched {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Fetcher {
    /// Asks the service of this URL, whose path is not looked at.
    ///
    /// # Errors
    /// The URL is not one, or the file of certificates cannot be read.
    pub(crate) fn of(url: &Uri, ca: Option<std::path::PathBuf>, patience: Duration) -> Result<Self, String> {
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(format!("{url} has no host"));
        };
        let target: Target =
            format!("{scheme}://{authority}").parse().map_err(|error: super::BadTarget| error.to_string())?;
        let upstream = Upstream { connect_timeout: patience, ca, ..Upstream::at(target.clone()) };
        Ok(Self { connector: Connector::new(&upstream)?, target, patience })
    }

    /// Asks, with a method, a path and headers.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: HeaderMap) -> Result<Fetched, String> {
        let asked = tokio::time::timeout(self.patience, self.exchange(method, path, headers)).await;
        asked.unwrap_or_else(|_| Err(format!("{} did not answer in time", self.target)))
    }

    async fn exchange(&self, method: &str, path: &str, headers: HeaderMap) -> Result<Fetched, String> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(lines) = request.headers_mut() {
            *lines = headers;
            lines.insert(header::HOST, self.target.host_value());
        }
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let Sender::One(mut sender) = self.connector.connect().await? else {
            return Err(format!("{} speaks HTTP/2 only", self.target));
        };
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
        Ok(Fetched { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }
}
