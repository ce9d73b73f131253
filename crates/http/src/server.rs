//! The side that clients see: connections, their time-outs and limits, and the requests on them. What a request may do is
//! its handler's to say.

mod acceptor;
mod bodies;
mod certificates;
mod connection;
mod handler;
mod liveness;
mod service;
mod sniff;

pub use acceptor::{Acceptor, ConnectionSettings};
pub use bodies::receive;
pub use certificates::Certificates;
pub use handler::{Facts, Handler};
pub use service::serve;

use std::time::Duration;

/// What clients may take, in time and in size.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a request's head may take; the first one since its client connected, TLS included.
    pub header_timeout: Duration,
    /// How long a body may be silent while it is waited for.
    pub body_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// How long a client may leave a piece of its answer untaken.
    pub write_timeout: Duration,
    /// Connections at a time; more wait to be accepted.
    pub connections_max: usize,
    /// Header lines of a request.
    pub headers_max: usize,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            connections_max: 10_000,
            headers_max: 100,
            header_bytes_max: 64 << 10,
            streams_max: 250,
        }
    }
}
