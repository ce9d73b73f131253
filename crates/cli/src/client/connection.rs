//! One connection to a server: the HTTP kit's, with answers read whole. Whoever drops it hangs up, whatever was under way.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use semel_http::{NoAnswer, OwnConnection, Upstream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::{ANSWER_BYTES_MAX, Answer, Failure, Target};

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection(OwnConnection);

impl Connection {
    /// Opens a connection. Sends nothing.
    pub(crate) async fn open(target: &Target, within: Duration) -> Result<Self, Failure> {
        let service = target.service().map_err(|error| Failure::NotConnected(error.to_string()))?;
        let upstream = Upstream { connect_timeout: within, ..Upstream::at(service) };
        let opened = OwnConnection::open(&upstream).await;
        opened.map(Self).map_err(|why| Failure::NotConnected(why.into()))
    }

    /// A connection over a stream that is open already.
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, Failure> {
        let opened = OwnConnection::over(stream).await;
        opened.map(Self).map_err(|why| Failure::NotConnected(why.into()))
    }

    /// Whether another request can be sent on it, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Sends a request once and reads its answer. A caller that drops this future should drop the connection too.
    pub(crate) async fn send(
        &mut self,
        target: &Target,
        method: &Method,
        headers: &HeaderMap,
        body: Bytes,
        within: Duration,
    ) -> Result<Answer, Failure> {
        let request = request(target, method, headers, body)?;
        timeout(within, self.exchange(request)).await.unwrap_or(Err(Failure::TimedOut))
    }

    /// Sends the only request of this connection; its answer is read as it comes, for as long as that takes.
    pub(crate) async fn stream(mut self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let response = self.begun(request).await?;
        // The connection is hung up with the body, not before.
        Ok(response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _open = &self;
                frame
            }))
        }))
    }

    async fn begun(&mut self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let answered = self.0.send(request).await.map_err(|no_answer| match no_answer {
            NoAnswer::NotSent(why) | NoAnswer::Reset(why) | NoAnswer::TimedOut(why) => Failure::Broken(why),
        });
        answered.map(|response| response.map(Body::new))
    }

    async fn exchange(&mut self, request: Request<Body>) -> Result<Answer, Failure> {
        let started = Instant::now();
        let response = self.begun(request).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| Failure::Broken(error.to_string()))?;
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
            took: started.elapsed(),
        })
    }
}

fn request(
    target: &Target,
    method: &Method,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Request<Body>, Failure> {
    let host = HeaderValue::try_from(target.authority())
        .map_err(|_| Failure::NotConnected("the host cannot be named in a header".to_owned()))?;
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.path().clone().into();
    *request.headers_mut() = headers.clone();
    request.headers_mut().entry(header::HOST).or_insert(host);
    Ok(request)
}
