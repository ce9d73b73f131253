//! A deterministic simulation of the production engines: the gate, the outbox, the relay and the broker. One seed decides everything:
//! how many machines there are, which faults happen, what clients do. Time is virtual, transports are in process, and the
//! same seed always does the same.
//!
//! 1. [`run::run`] plays one seed on one [`part::Part`]: faults, quiet, a pause, faults again, quiet again.
//! 2. Checkers look at the store, at the upstream's ledger and at the clients; the first broken promise ends the run.
//! 3. [`planted::Bug`]s are mistakes built in on purpose: the checkers must find every one of them. Those of the engines
//!    themselves are in `semel_contract::planted`.
//!
//! What is simulated is `semel-gate` with the store in memory of `semel-store`, and the engines of `semel-delivery` and
//! `semel-broker` with their SQLite stores in memory, as they are. What is not: the network's bytes, files, PostgreSQL and real threads; those
//! have tests with real processes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body_faults;
pub mod book;
pub mod bounds;
pub mod broker;
pub mod check;
pub mod client;
pub mod clock;
pub mod coverage;
pub mod delivery_faults;
pub mod edition;
pub mod faults;
pub mod faulty;
pub mod fleet;
mod handling;
mod judge;
pub mod ledger;
pub mod life;
pub mod log;
pub mod operator;
pub mod outbox;
pub mod part;
pub mod plan;
pub mod planted;
pub mod relay;
mod reloads;
pub mod report;
pub mod rng;
pub mod routes;
pub mod run;
pub mod script;
pub mod seen;
pub mod shadow;
pub mod stage;
pub mod upstream;
pub mod uptime;
mod watch;
mod way;
pub mod weather;
pub mod world;
