//! What is sent: a durable queue that delivers, once.

#![warn(missing_docs)]

pub mod credentials;
pub mod date;
mod entropy;
pub mod http1;
pub mod limits;
pub mod message;
pub mod relay;
pub mod transport;
pub mod url;

pub use entropy::Entropy;
