//! HTTP as semel speaks it, towards clients and towards other services.
//!
//! 1. A request is sent once, on a connection that is its own until the answer has been read.
//! 2. Whether it may still go out is asked between connect and its first byte, by the connection itself ([`MaySend`]).
//! 3. What was given up is never written later, and what surely was not sent is told apart from what may have been
//!    ([`NoAnswer`]).
//! 4. Every connection, head, body and answer of a client has a deadline and a limit ([`Limits`]).
//! 5. Bodies that are read whole have room within one bound ([`BodyRoom`]); this alone is there without the feature `net`.
//! 6. There is one TLS set-up: the authorities that browsers believe, those of `SSL_CERT_FILE`, or those of a file.
//!
//! Nothing here follows a redirect, keeps a cookie or decides whether a request is repeated.

#![warn(missing_docs)]

mod addresses;
mod body_room;
#[cfg(feature = "net")]
mod client;
#[cfg(feature = "net")]
mod cores;
mod cors;
mod error_chain;
#[cfg(feature = "net")]
mod first_byte;
pub mod framing;
pub mod headers;
mod http_error;
mod percent;
#[cfg(feature = "net")]
mod server;
#[cfg(feature = "net")]
mod socket;
#[cfg(feature = "net")]
mod target;
#[cfg(feature = "net")]
mod tls;

pub use addresses::Addresses;
pub use body_room::{BodyBounds, BodyRoom, Ended, UnreadBody};
#[cfg(feature = "net")]
pub use client::{
    Activity, Fetched, Fetcher, HostSent, NoAnswer, OwnConnection, Paced, Pool, PooledBody, Protocol,
    Upstream,
};
#[cfg(feature = "net")]
pub use cores::{Beside, Cores};
pub use cors::Cors;
pub use error_chain::error_chain;
#[cfg(feature = "net")]
pub use first_byte::MaySend;
pub use http_error::HttpError;
pub use percent::percent_encode;
#[cfg(feature = "net")]
pub use server::{Acceptor, Certificates, ConnectionSettings, Facts, Handler, Limits, receive, serve};
#[cfg(feature = "net")]
pub use socket::prepare_socket;
#[cfg(feature = "net")]
pub use target::{BadTarget, Target};
#[cfg(feature = "net")]
pub use tls::client_tls;
