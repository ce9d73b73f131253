//! What is sent: a durable local queue that delivers in order, once.
//!
//! 1. A message is on disk before its sender is told so, with its key and its place in its lane.
//! 2. A lane is first in, first out, with one message in flight; lanes do not wait for each other.
//! 3. Every attempt carries the same key, minted once; the time of the first attempt is on disk before its first byte.
//! 4. What became of a message is never guessed: an attempt that may have taken effect is said to be possibly delivered.
//! 5. An id that was accepted is never free again: its fingerprint is kept for ever.
//!
//! Against a server that knows keys again, such as one behind a semel gate, a message takes effect once. Against any
//! other, delivery is at least once, and the receipts say where it may have been more.
//!
//! ```no_run
//! use semel_delivery::{Enqueue, Outbox, Request, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = Outbox::open("notes.db", Settings::default()).await?;
//! let sending = outbox.start();
//! let request = Request::json("POST", "https://notes.example/notes", r#"{"text":"hello"}"#);
//! let accepted = outbox.enqueue(Enqueue::new(request)).await?;
//! let receipt = outbox.receipt(&accepted.receipt.client_message_id).await?;
//! # drop((sending, receipt)); Ok(())
//! # }
//! ```

#![warn(missing_docs)]

pub mod accept;
pub mod age;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod credentials;
pub mod date;
mod engine;
mod entropy;
pub mod envelope;
pub mod expiry;
pub mod hooks;
pub mod http1;
mod inbox;
mod invalid;
pub mod judge;
pub mod limits;
pub mod message;
pub mod operator;
mod outbox;
pub mod receive;
pub mod refusal;
#[cfg(feature = "relay")]
pub mod relay;
mod requeue;
mod settings;
pub mod sqlite;
pub mod store;
mod time;
pub mod transport;
pub mod url;
pub mod waiting;

pub use engine::Sending;
pub use entropy::Entropy;
pub use envelope::Refused;
pub use inbox::{Acknowledged, Inbox};
pub use invalid::Invalid;
pub use message::{Enqueue, Received, Request, Row, Status};
pub use operator::{Audited, Operator};
pub use outbox::{Accepted, Outbox, OutboxError};
pub use requeue::{NewBody, Requeue, Requeued};
pub use settings::{HeadPolicy, Settings};
