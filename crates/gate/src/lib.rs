//! What may run: the idempotency layer, for axum and tower.
//!
//! 1. A request without a key, on a route where keys are optional, passes as if there were no gate.
//! 2. A request with a new key is claimed, run, and its answer kept; the answer goes out once it is durable.
//! 3. A request with a known key gets the first answer again, byte for byte; while the first still runs, it waits.
//! 4. A known key with another request is refused.
//! 5. Where it is not known whether the first took effect, that is what is said.
//!
//! On a route marked [`Route::atomic`] the handler commits its effect and its record in one transaction, by its
//! [`Grant`]; elsewhere the claim is committed first, under a lease with a fence.
//!
//! Deploy the layer inside whatever authenticates, and give it an identity: a request without one has no scope and is
//! refused. A client that disconnects does not cancel its request: whoever drops the answer's future leaves the work to a
//! task of its own. Whoever neither drops nor polls it holds the work up, as with any handler.
//!
//! ```
//! use std::sync::Arc;
//! use axum::{Router, routing::post};
//! use semel_contract::identity::Identity;
//! use semel_gate::{Gate, Route};
//! use semel_store::{clock::SystemClock, memory::MemoryStore};
//!
//! let store = Arc::new(MemoryStore::new());
//! let gate = Gate::on(store)
//!     .identity("trusted:X-User".parse::<Identity>()?)
//!     .route(Route::new("create-order", "POST /orders")?)
//!     .build()?;
//! let app: Router = Router::new().route("/orders", post(|| async { "created" })).layer(gate);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod answer;
mod arrival;
mod attempt;
mod capture;
mod dispatch;
mod drain;
mod grant;
mod guard;
mod held;
mod identity;
mod keeper;
mod keys;
mod known;
mod layer;
mod limit;
mod measure;
mod observe;
mod once;
mod outlive;
#[cfg(feature = "postgres")]
pub mod postgres;
mod probe;
mod recall;
mod route;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod step;
mod sweeper;
mod walk;

use std::sync::Arc;

use semel_store::ClaimStore;

pub use attempt::Broken;
pub use dispatch::Dispatch;
pub use grant::{Grant, NotDone, NotGranted};
pub use identity::{CallerExtension, Identified, Identify, Verified};
pub use layer::{BuildError, GateBuilder, GateLayer, GateService};
pub use once::Once;
pub use probe::{Finding, Probe};
pub use route::Route;
pub use step::Step;
#[cfg(feature = "failpoints")]
pub use step::on_step;
pub use sweeper::{sweep_for_ever, sweep_now};
pub use walk::KeyHash;

/// Where a gate begins.
#[derive(Clone, Copy, Debug)]
pub struct Gate;

impl Gate {
    /// A gate that keeps its records in this store.
    pub fn on(store: Arc<dyn ClaimStore>) -> GateBuilder {
        GateBuilder::new(store)
    }
}

/// A store in memory and a clock that tests move.
#[cfg(feature = "testing")]
pub mod testing {
    pub use semel_store::conformance::TestClock;
    pub use semel_store::memory::MemoryStore;
}
