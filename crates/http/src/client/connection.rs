//! One connection to a service, and one request at a time on it. A request is sent once, and whether something of it was
//! written is known when it fails.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use axum_core::body::Body;
use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use tokio::task::AbortHandle;

use super::NoAnswer;
use crate::error_chain::error_chain;
use crate::first_byte::{FirstByte, MaySend, Written};

/// What takes requests.
pub(crate) enum Sender {
    /// Over HTTP/1.1.
    Http1(http1::SendRequest<Body>),
    /// Over HTTP/2.
    Http2(SharedSender),
}

/// A sender over HTTP/2, which could take many requests at once.
#[derive(Clone)]
pub(crate) struct SharedSender {
    pub(crate) sender: http2::SendRequest<Body>,
    /// How many streams the service allows at a time, as it said last.
    pub(crate) streams_max: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// A connection that takes one request at a time. To drop it while a request is under way is to give that request up:
/// nothing more of it is written, and the connection is closed.
pub(crate) struct Connection {
    sender: Sender,
    first_byte: Arc<FirstByte>,
    driver: AbortHandle,
    /// Whether a request is under way: it was handed over, and its answer has not been read to the end.
    is_busy: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("is_busy", &self.is_busy).finish_non_exhaustive()
    }
}

/// What one try led to.
pub(crate) enum Tried {
    Answered(Response<Incoming>),
    /// The connection gave the request back before it wrote any of it.
    HandedBack(Box<Request<Body>>, String),
    Broken(NoAnswer),
}

impl Connection {
    pub(crate) fn new(sender: Sender, first_byte: Arc<FirstByte>, driver: AbortHandle) -> Self {
        Self { sender, first_byte, driver, is_busy: false }
    }

    /// What it speaks.
    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Whether it can take another request at once.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(shared) => shared.sender.is_ready(),
        }
    }

    /// Waits until it can take another request. False: it never will.
    pub(crate) async fn ready(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(sender) => sender.ready().await.is_ok(),
            Sender::Http2(shared) => shared.sender.ready().await.is_ok(),
        }
    }

    /// Says that the request was answered and the answer read.
    pub(crate) fn finish(&mut self) {
        self.is_busy = false;
    }

    /// Sends a request, unless `may_send` says no when its first byte would be written, and waits for an answer to begin
    /// until `late` ends, which then says why. The request is handed over before the first poll, so that it is not carried
    /// along.
    pub(crate) fn send<'a>(
        &'a mut self,
        request: Request<Body>,
        may_send: MaySend,
        late: impl Future<Output = String> + 'a,
    ) -> impl Future<Output = Tried> + 'a {
        self.is_busy = true;
        self.first_byte.arm(may_send);
        let sent = match &mut self.sender {
            Sender::Http1(sender) => Either::Left(sender.try_send_request(request)),
            Sender::Http2(shared) => Either::Right(shared.sender.try_send_request(request)),
        };
        let first_byte = &self.first_byte;
        async move {
            let ended = tokio::select! {
                biased;
                ended = sent => ended,
                why = late => return Tried::Broken(match first_byte.give_up() {
                    Written::Nothing => NoAnswer::NotSent(why),
                    Written::Something => NoAnswer::TimedOut(why),
                }),
            };
            match ended {
                Ok(response) => Tried::Answered(response),
                Err(error) => broken(error, first_byte),
            }
        }
    }

    /// Leaves the connection to what it became: it changed its protocol.
    pub(crate) fn detach(mut self) {
        self.is_busy = false;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_busy {
            self.first_byte.give_up();
            self.driver.abort();
        }
    }
}

/// What an error means that a connection reports of a request.
fn broken(mut error: TrySendError<Request<Body>>, first_byte: &FirstByte) -> Tried {
    let request = error.take_message();
    let why = error_chain(error.error());
    // From here on nothing is written, so that what is said now stays true.
    match (request, first_byte.give_up()) {
        (Some(request), _) => Tried::HandedBack(Box::new(request), why),
        (None, Written::Nothing) => Tried::Broken(NoAnswer::NotSent(why)),
        (None, Written::Something) if is_unprocessed(error.error()) => Tried::Broken(NoAnswer::NotSent(why)),
        (None, Written::Something) => Tried::Broken(NoAnswer::Reset(why)),
    }
}

/// What an error means that is told of a request on a shared connection.
pub(super) fn broken_on_shared(mut error: TrySendError<Request<Body>>) -> Tried {
    let request = error.take_message();
    let why = error_chain(error.error());
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
