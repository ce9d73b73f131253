//! What is true in semel: keys, scopes, fingerprints, profiles, decisions, problems and schedules. Pure: no I/O, no
//! clock, no randomness, no async. The page `spec/contract.md` says all of this in words, and `spec/vectors/*.json` hold
//! this crate and every client library to the same answers.
//!
//! ```
//! use semel_contract::decide::{Arrival, Claim, Decision, decide};
//! use semel_contract::profile::presets;
//! use semel_contract::time::Timestamp;
//!
//! let profile = presets::ietf();
//! let arrival = Arrival { fingerprints: &[], first_sent: None };
//! let now = Timestamp::parse("2026-01-31T08:30:00Z").unwrap();
//! assert_eq!(decide(&profile, &arrival, None, now), Decision::Execute(Claim::New));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod age;
pub mod classify;
pub mod decide;
mod error_in_words;
pub mod fingerprint;
pub mod generator;
pub mod hex;
pub mod identity;
pub mod json;
pub mod keep;
pub mod key;
pub mod limits;
pub mod outcome;
pub mod planted;
pub mod problem;
pub mod profile;
pub mod record;
pub mod request;
pub mod restore;
pub mod route;
pub mod schedule;
pub mod scope;
pub mod staleness;
pub mod time;
pub mod transitions;

pub use error_in_words::BadSetting;
