//! The outbox for applications in other languages: one file, one owner, blocking nobody. Owns what Kotlin and Python see of the
//! Rust outbox; what is sent when, and what becomes of it, is `semel-delivery`'s.
//!
//! 1. A message is accepted by the commit, not by the caller's waiting: a call that was cancelled changes nothing about it.
//! 2. One process owns the file. A second one hands its calls to the owner, and takes over when the owner is gone.
//! 3. After a fork the child refuses: the file, its locks and the threads are its parent's.

#![warn(missing_docs)]

mod calls;
mod core;
mod errors;
mod host;
mod import;
#[cfg(feature = "lab")]
mod lab;
mod link;
mod notices;
mod owner;
mod types;

pub use core::Core;
pub use errors::{CoreError, HostError};
pub use host::Host;
pub use import::Route;
#[cfg(feature = "lab")]
pub use lab::Lab;
pub use types::{
    Accepted, Credential, Event, Header, Imported, LaneState, Message, Notice, NoticeKind, Options, Rebuild,
    Receipt, Severity, Status,
};

uniffi::setup_scaffolding!();
