//! HTTP as semel speaks it, towards clients and towards other services.
//!
//! 1. A request is sent once, on a connection that is its own until the answer has been read.
//! 2. Whether it may still go out is asked between connect and its first byte, by the connection itself ([`MaySend`]).
//! 3. What was given up is never written later, and what surely was not sent is told apart from what may have been
//!    ([`NoAnswer`]).
//! 4. Every connection, head, body and answer of a client has a deadline and a limit ([`Limits`]).
//! 5. There is one TLS set-up: the authorities that browsers believe, those of `SSL_CERT_FILE`, or those of a file.
//!
//! Nothing here follows a redirect, keeps a cookie or decides whether a request is repeated.

#![warn(missing_docs)]

mod addresses;
mod client;
mod cores;
mod cors;
mod error_chain;
mod first_byte;
pub mod framing;
pub mod headers;
mod percent;
mod server;
mod socket;
mod target;
mod tls;

pub use addresses::Addresses;
pub use client::{
    Activity, Fetched, Fetcher, HostSent, NoAnswer, OwnConnection, Paced, Pool, PooledBody, Protocol,
    Upstream,
};
pub use cores::{Beside, Cores};
pub use cors::Cors;
pub use error_chain::error_chain;
pub use first_byte::MaySend;
pub use percent::percent_encode;
pub use server::{Acceptor, Certificates, ConnectionSettings, Facts, Handler, Limits, serve};
pub use socket::prepare_socket;
pub use target::{BadTarget, Target};
pub use tls::client_tls;
