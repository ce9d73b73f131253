//! Sends a request and says what came of it. A keyed request goes out once, after its right to go out was asked for
//! immediately before the first byte; what surely was not sent is told apart from what may have been.

use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use http::header;
use http::uri::Authority;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;

use super::connection::{Tried, broken_on_shared};
use super::pace::Activity;
use super::pool::{IDLE_KEYED_MAX, IDLE_MAX, Lane, Pool, PooledConnection, Room};
use super::pooled_body::PooledBody;
use super::{HostSent, NoAnswer};
use crate::first_byte::MaySend;

/// Why one try through the pool has no answer.
enum Unanswered {
    /// The connection gave the request back before it wrote any of it.
    HandedBack(Box<Request<Body>>, String),
    Broken(NoAnswer),
}

impl From<Unanswered> for NoAnswer {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::HandedBack(_, why) => NoAnswer::NotSent(why),
            Unanswered::Broken(why) => why,
        }
    }
}

impl Pool {
    /// Sends a request once. `may_send` is asked when a connection is ready, and again by the connection before the first
    /// byte; if it says no, nothing is sent. An answer is waited for as long as `patience` says.
    ///
    /// # Errors
    /// There is no answer; says whether something was sent.
    pub async fn send_once(
        self: &Arc<Self>,
        request: Box<Request<Body>>,
        may_send: MaySend,
        patience: Duration,
    ) -> Result<Response<PooledBody>, NoAnswer> {
        let connection = self.checkout(Room::Keyed, IDLE_KEYED_MAX).await.map_err(NoAnswer::NotSent)?;
        if !may_send.is_allowed() {
            return Err(NoAnswer::NotSent("no connection was ready before the lease ended".into()));
        }
        Ok(self.attempt(connection, request, may_send, &Activity::default(), patience).await?)
    }

    /// Sends a request without a key, as it streams in. One that an old connection gave back untouched is tried once
    /// more on a new one.
    ///
    /// # Errors
    /// There is no answer; says whether something was sent.
    pub async fn send(
        self: &Arc<Self>,
        request: Box<Request<Body>>,
        activity: &Activity,
    ) -> Result<Response<PooledBody>, NoAnswer> {
        let connection = self.checkout(Room::Others, IDLE_MAX).await.map_err(NoAnswer::NotSent)?;
        match self.attempt(connection, request, MaySend::always(), activity, self.upstream.timeout).await {
            Ok(response) => Ok(response),
            Err(Unanswered::Broken(why)) => Err(why),
            // Seldom, and in a box: otherwise every request would carry the room for it.
            Err(Unanswered::HandedBack(request, _)) => Box::pin(self.send_again(request, activity)).await,
        }
    }

    async fn send_again(
        self: &Arc<Self>,
        request: Box<Request<Body>>,
        activity: &Activity,
    ) -> Result<Response<PooledBody>, NoAnswer> {
        let connection = self.checkout(Room::Others, Duration::ZERO).await.map_err(NoAnswer::NotSent)?;
        let (may_send, patience) = (MaySend::always(), self.upstream.timeout);
        Ok(self.attempt(connection, request, may_send, activity, patience).await?)
    }

    async fn attempt(
        self: &Arc<Self>,
        mut pooled: PooledConnection,
        mut request: Box<Request<Body>>,
        may_send: MaySend,
        activity: &Activity,
        patience: Duration,
    ) -> Result<Response<PooledBody>, Unanswered> {
        if let Err(error) = self.address(&mut request, pooled.is_http2()) {
            let why = NoAnswer::NotSent(format!("the request has no address: {error}"));
            return Err(Unanswered::Broken(why));
        }
        let late = async {
            activity.idle_for(patience).await;
            format!("{} did not answer within {patience:?}", self.upstream.target)
        };
        let tried = match &mut pooled.lane {
            Lane::Own(connection) => connection.send(*request, may_send, late).await,
            Lane::Shared { sender, .. } => {
                let sent = sender.try_send_request(*request);
                tokio::select! {
                    biased;
                    ended = sent => ended.map_or_else(broken_on_shared, Tried::Answered),
                    why = late => Tried::Broken(NoAnswer::TimedOut(why)),
                }
            }
        };
        match tried {
            Tried::Answered(response) => {
                let is_detached = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                // Services whose handler has failed answer and then hang up (uvicorn does): a request that is sent meanwhile
                // is lost, and nobody knows whether it arrived.
                let is_last = response.status().is_server_error();
                Ok(response.map(|body| {
                    let body = PooledBody::new(body, Arc::clone(self), pooled);
                    match (is_detached, is_last) {
                        (true, _) => body.detach(),
                        (false, true) => body.last(),
                        (false, false) => body,
                    }
                }))
            }
            Tried::HandedBack(request, why) => Err(Unanswered::HandedBack(request, why)),
            Tried::Broken(why) => Err(Unanswered::Broken(why)),
        }
    }

    /// Makes the request what this connection wants: HTTP/1.1 with a path and `Host`, HTTP/2 with the whole URI.
    fn address(&self, request: &mut Request<Body>, is_http2: bool) -> Result<(), http::Error> {
        let target = &self.upstream.target;
        let path = target.path(request.uri())?;
        let is_of_known_length = request.body().size_hint().exact().is_some();
        let headers = request.headers_mut();
        if self.upstream.host == HostSent::Own || !headers.contains_key(header::HOST) {
            headers.insert(header::HOST, target.host_value());
        }
        if is_http2 {
            let host = headers.remove(header::HOST).unwrap_or_else(|| target.host_value());
            let authority = Authority::try_from(HeaderValue::as_bytes(&host))?;
            *request.uri_mut() = target.absolute(path, authority)?;
            *request.version_mut() = Version::HTTP_2;
        } else {
            headers.remove(header::TE);
            // Said here, or a GET would go on without the body that came with it.
            if !is_of_known_length && !headers.contains_key(header::CONTENT_LENGTH) {
                headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            *request.uri_mut() = Uri::from(path);
            *request.version_mut() = Version::HTTP_11;
        }
        Ok(())
    }
}
