//! Sends a request and says what became of it. A keyed request goes out once, after its right to go out was asked for
//! immediately before the first byte; what surely was not sent is told apart from what may have been.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum_core::body::Body;
use futures_util::future::Either;
use http::header;
use http::uri::Authority;
use http::{HeaderValue, Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::client::conn::TrySendError;

use super::connect::Sender;
use super::in_time::InTime;
use super::lent::Lent;
use super::pace::Activity;
use super::pool::{IDLE_KEYED_MAX, IDLE_MAX, Loan, Pool, Room};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Not a byte of the request was processed.
    NotSent(String),
    /// It broke off after something was sent.
    Reset(String),
    /// No answer began in time.
    TimedOut(String),
}

/// What became of one try.
enum Tried {
    Answered(Response<Lent>),
    /// The connection gave the request back before it wrote any of it.
    HandedBack(Box<Request<Body>>, String),
    Broken(NoAnswer),
}

impl Pool {
    /// Sends a request whose key was claimed. `in_time` is asked when a connection is ready; if it says no, nothing is
    /// sent. Never tries twice.
    pub(crate) async fn send_keyed(
        self: &Arc<Self>,
        mut request: Box<Request<Body>>,
        in_time: impl Fn() -> bool + Send + Unpin + 'static,
    ) -> Result<Response<Lent>, NoAnswer> {
        let loan = self.lend(Room::Keyed, IDLE_KEYED_MAX).await.map_err(NoAnswer::NotSent)?;
        if !in_time() {
            return Err(NoAnswer::NotSent("no connection was ready before the claim's lease ended".into()));
        }
        // An HTTP/2 connection may let a request wait for its turn: then it is asked again before the body goes.
        if let Sender::Many(_) = &loan.sender {
            *request = std::mem::take(&mut *request).map(|body| Body::new(InTime { body, in_time }));
        }
        match self.attempt(loan, request, &Activity::default()).await {
            Tried::Answered(response) => Ok(response),
            Tried::HandedBack(_, why) => Err(NoAnswer::NotSent(why)),
            Tried::Broken(why) => Err(why),
        }
    }

    /// Sends a request without a key, as it streams in. One that an old connection gave back untouched is tried once
    /// more on a new one.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: Box<Request<Body>>,
        activity: &Activity,
    ) -> Result<Response<Lent>, NoAnswer> {
        let loan = self.lend(Room::Others, IDLE_MAX).await.map_err(NoAnswer::NotSent)?;
        match self.attempt(loan, request, activity).await {
            Tried::Answered(response) => Ok(response),
            Tried::Broken(why) => Err(why),
            // Seldom, and in a box: otherwise every request would carry the room for it.
            Tried::HandedBack(request, _) => Box::pin(self.send_again(request, activity)).await,
        }
    }

    async fn send_again(
        self: &Arc<Self>,
        request: Box<Request<Body>>,
        activity: &Activity,
    ) -> Result<Response<Lent>, NoAnswer> {
        let loan = self.lend(Room::Others, Duration::ZERO).await.map_err(NoAnswer::NotSent)?;
        match self.attempt(loan, request, activity).await {
            Tried::Answered(response) => Ok(response),
            Tried::HandedBack(_, why) => Err(NoAnswer::NotSent(why)),
            Tried::Broken(why) => Err(why),
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        mut loan: Loan,
        mut request: Box<Request<Body>>,
        activity: &Activity,
    ) -> Tried {
        if let Err(error) = self.address(&mut request, &loan.sender) {
            return Tried::Broken(NoAnswer::NotSent(format!("the request has no address: {error}")));
        }
        let late = activity.idle_for(self.upstream.timeout);
        // Handed over before the first poll, so that it is not carried along.
        let sent = match &mut loan.sender {
            Sender::One(sender) => Either::Left(sender.try_send_request(*request)),
            Sender::Many(sender) => Either::Right(sender.try_send_request(*request)),
        };
        let ended = tokio::select! {
            biased;
            ended = sent => ended,
            () = late => {
                let why = format!("{} did not answer within {:?}", self.upstream.target, self.upstream.timeout);
                return Tried::Broken(NoAnswer::TimedOut(why));
            }
        };
        match ended {
            Ok(response) => {
                let Loan { sender, permit } = loan;
                Tried::Answered(response.map(|body| match sender {
                    Sender::One(sender) => Lent::of(body, Arc::clone(self), sender, permit),
                    Sender::Many(_) => Lent::shared(body),
                }))
            }
            Err(error) => broken(error),
        }
    }

    /// Makes the request what this connection wants: HTTP/1.1 with a path and `Host`, HTTP/2 with the whole URI.
    fn address(&self, request: &mut Request<Body>, sender: &Sender) -> Result<(), http::Error> {
        let target = &self.upstream.target;
        let path = target.path(request.uri())?;
        let is_of_known_length = request.body().size_hint().exact().is_some();
        let headers = request.headers_mut();
        if self.upstream.host == super::HostSent::Own || !headers.contains_key(header::HOST) {
            headers.insert(header::HOST, target.host_value());
        }
        match sender {
            Sender::One(_) => {
                headers.remove(header::TE);
                // Said here, or a GET would go on without the body that came with it.
                if !is_of_known_length && !headers.contains_key(header::CONTENT_LENGTH) {
                    headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
                }
                *request.uri_mut() = Uri::from(path);
                *request.version_mut() = Version::HTTP_11;
            }
            Sender::Many(_) => {
                let host = headers.remove(header::HOST).unwrap_or_else(|| target.host_value());
                let authority = Authority::try_from(HeaderValue::as_bytes(&host))?;
                *request.uri_mut() = target.absolute(path, authority)?;
                *request.version_mut() = Version::HTTP_2;
            }
        }
        Ok(())
    }
}

fn broken(mut error: TrySendError<Request<Body>>) -> Tried {
    let request = error.take_message();
    let why = in_full(error.error());
    match request {
        Some(request) => Tried::HandedBack(Box::new(request), why),
        None if is_unprocessed(error.error()) => Tried::Broken(NoAnswer::NotSent(why)),
        None => Tried::Broken(NoAnswer::Reset(why)),
    }
}

/// Whether an HTTP/2 peer said that it did not process the request: it refused the stream, or went away naming an
/// earlier one as its last.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (is_refused || error.is_go_away());
        }
        cause = error.source();
    }
    false
}

/// An error with its causes.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}
