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
//! refused. A client that disconnects does not cancel its request: when the answer's future is dropped, the work goes on
//! in a task of its own. A future that is kept but not polled holds its work up, as with any handler.
//!
//! ```
//! use axum::{Router, routing::post};
//! use semel_contract::identity::Identity;
//! use semel_gate::{GateLayer, Route};
//! use semel_store::memory::MemoryStore;
//!
//! let gate = GateLayer::builder(MemoryStore::new())
//!     .identity(Identity::header("X-User"))
//!     .route(Route::post("/orders").name("create-order"))
//!     .build()?;
//! let app: Router = Router::new().route("/orders", post(|| async { "created" })).layer(gate);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answer;
mod arrival;
mod attempt;
mod capture;
mod context;
mod dispatch;
mod drain;
mod form;
mod forms;
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
mod no_answer;
mod observe;
mod once;
mod operations;
mod outlive;
mod pipeline;
#[cfg(feature = "postgres")]
pub mod postgres;
mod probe;
mod problems;
mod recall;
mod route;
pub mod settling;
mod shared;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod standing;
mod step;
mod sweeper;

pub use axum_core::body::Body;
pub use dispatch::Dispatch;
pub use grant::{Grant, NotGranted, SettleError};
pub use identity::{CallerExtension, Identified, Identify, Verified};
pub use layer::{BuildError, GateBuilder, GateLayer, GateService, ResponseFuture};
pub use no_answer::NoAnswer;
pub use once::OnceOutcome;
pub use pipeline::KeyHash;
pub use probe::{Finding, Probe};
pub use route::{Route, endpoint_of_path};
pub use step::Step;
#[cfg(feature = "failpoints")]
pub use step::on_step;
pub use sweeper::{sweep_for_ever, sweep_now, until_next};

/// A store in memory and a clock that tests move.
#[cfg(feature = "testing")]
pub mod testing {
    pub use semel_store::conformance::TestClock;
    pub use semel_store::memory::MemoryStore;
}
