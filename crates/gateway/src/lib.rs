//! The gate as a reverse proxy: HTTP/1.1 and HTTP/2 in and out, in front of any service.
//!
//! 1. A keyed request is claimed, sent on once, and its answer kept; the gate decides, this crate forwards.
//! 2. What surely was not sent frees its key; what may have been sent is unknown, and said to be.
//! 3. Everything else streams through in both directions, upgrades included.
//! 4. Every connection, head, body and answer has a deadline and a limit.
//!
//! Deploy it so that clients cannot reach the service but through it.

#![warn(missing_docs)]

mod access;
mod door;
mod entropy;
mod forward;
mod gateway;
mod headers;
mod identity;
mod measure;
mod pages;
mod probe;
mod refusal;
mod serve;
mod server;
mod tunnel;
mod walk;

pub use access::AccessLog;
pub use gateway::{Gateway, Plan};
pub use headers::REQUEST_ID;
pub use identity::{Callers, Peers};
pub use probe::Probes;
pub use semel_http::{BadTarget, HostSent, Protocol, Target, Upstream};
pub use serve::serve;
pub use server::{Certificates, Limits};
