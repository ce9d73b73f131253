//! What semel keeps. The claim store is a trait ([`ClaimStore`]); its backends agree because each passes the same suite
//! ([`conformance`]). Stores keep and compare; what a record means is decided in `semel-contract`.

#![warn(missing_docs)]

pub mod admin;
#[cfg(feature = "at-rest")]
pub mod at_rest;
pub mod claims;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod entry;
pub mod forms;
pub mod hints;
#[cfg(feature = "sqlite")]
pub mod inbox;
pub mod limits;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
mod redis_link;
#[cfg(feature = "redis")]
pub mod signals;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod tally;

pub use admin::AdminStore;
pub use claims::{
    About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Entry, FencedWrite, Filter, Id, IntoStore,
    KnownAmong, Order, Reply, Resolution, Resolved, Sealed, Settlement, StoreError, Swept, Terms,
    is_reserved, is_same_attempt,
};
pub use forms::{FORM_PAUSE, Form, Forms, KnownForm};
