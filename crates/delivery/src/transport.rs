//! How a request gets to its server, as a trait. A transport sends at most once in each call: it follows no redirect and
//! never tries again by itself.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use semel_http::MaySend;

use crate::message::Answer;
use crate::url::Target;

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method.
    pub method: String,
    /// Where to.
    pub target: Target,
    /// Header lines, credentials included.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether it may still be sent: a transport asks between connect and the first byte, and sends nothing once this says
    /// no.
    pub may_send: MaySend,
}

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// There is an answer.
    Answered(Answer),
    /// Not a byte of the request was processed.
    NotSent(String),
    /// It broke off after something was sent: it may have taken effect.
    Broken(String),
    /// No answer came in time: it may have taken effect.
    TimedOut(String),
}

/// What a transport promises.
pub type Sending<'a> = Pin<Box<dyn Future<Output = Sent> + Send + 'a>>;

/// Sends requests.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request, once.
    fn send(&self, request: Outgoing) -> Sending<'_>;
}
