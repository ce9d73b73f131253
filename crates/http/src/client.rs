//! A service that requests are sent to: where it is, how it is reached, and what came of a request that was sent to it.
//! Never sends a keyed request twice.

mod connect;
mod connection;
mod fetch;
mod own;
mod pace;
mod pool;
mod pooled_body;
mod send;

pub use fetch::{Fetched, Fetcher};
pub use own::OwnConnection;
pub use pace::{Activity, Paced};
pub use pool::Pool;
pub use pooled_body::PooledBody;

use std::path::PathBuf;
use std::time::Duration;

use crate::addresses::Addresses;
use crate::target::Target;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Not a byte of the request was processed, and none will be.
    NotSent(String),
    /// It broke off after something was sent.
    Reset(String),
    /// No answer began in time.
    TimedOut(String),
}

/// How the service is reached.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where it is.
    pub target: Target,
    /// How long it may take until an answer begins; for a body that is still being sent, since its last piece.
    pub timeout: Duration,
    /// How long reaching it may take, TLS included; also how long a request waits for a free connection.
    pub connect_timeout: Duration,
    /// How long a stream may be silent, in either direction.
    pub stream_idle: Duration,
    /// Whose certificates are believed, as a PEM file. Without it, those that browsers believe.
    pub ca: Option<PathBuf>,
    /// Which protocol is spoken.
    pub protocol: Protocol,
    /// Which `Host` it is told.
    pub host: HostSent,
    /// Keyed requests that are with it at a time, each on a connection of its own; as many others, and as many connections
    /// that changed their protocol.
    pub connections_max: usize,
    /// Which addresses its name may lead to.
    pub addresses: Addresses,
}

impl Upstream {
    /// A service at this address, reached as is usual.
    pub fn at(target: Target) -> Self {
        Self {
            target,
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            stream_idle: Duration::from_secs(3600),
            ca: None,
            protocol: Protocol::Http1,
            host: HostSent::Clients,
            connections_max: 4096,
            addresses: Addresses::Any,
        }
    }
}

/// Which protocol is spoken with a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: agreed upon over TLS, known beforehand without.
    Http2,
}

/// Which `Host` a service is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSent {
    /// The client's.
    Clients,
    /// Its own, from the URL.
    Own,
}
