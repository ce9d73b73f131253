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
mod entropy;
mod forward;
mod gateway;
mod gateway_error;
mod handle;
mod identity;
mod measure;
mod pages;
mod plan;
mod probe;
mod refusal;
#[cfg(feature = "otel")]
mod traces;
mod tunnel;

pub use access::{AccessLog, LineForm};
pub use gateway::Gateway;
pub use gateway_error::GatewayError;
pub use identity::{Callers, Peers};
pub use plan::Plan;
#[cfg(not(feature = "otel"))]
pub use plan::Traces;
pub use probe::Probes;
pub use semel_http::headers::REQUEST_ID;
pub use semel_http::{BadTarget, Certificates, Cors, HostSent, Limits, Protocol, Target, Upstream, serve};
#[cfg(feature = "otel")]
pub use traces::Traces;
