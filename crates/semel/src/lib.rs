//! The library that programs add. Owns no code: it names, in one place, what a program that protects its routes needs.
//!
//! ```
//! use axum::Router;
//! use axum::http::StatusCode;
//! use axum::response::IntoResponse;
//! use axum::routing::post;
//! use semel::{Identity, Route};
//! # #[cfg(feature = "sqlite")]
//! use semel::sqlite::{Grant, SqliteStore};
//!
//! # #[cfg(feature = "sqlite")]
//! async fn create(grant: Grant, item: String) -> impl IntoResponse {
//!     grant.transact(move |db| {
//!         db.execute("INSERT INTO orders (item) VALUES (?1)", [&item])?;
//!         Ok((StatusCode::CREATED, format!("order {}", db.last_insert_rowid())))
//!     }).await
//! }
//!
//! # #[cfg(feature = "sqlite")]
//! # fn app(folder: &std::path::Path) -> Result<Router, Box<dyn std::error::Error>> {
//! let gate = semel::GateLayer::builder(SqliteStore::open("orders.db")?)
//!     .identity(Identity::header("X-User"))
//!     .route(Route::post("/orders").name("create-order").atomic())
//!     .build()?;
//! let app = Router::new().route("/orders", post(create)).layer(gate);
//! # Ok(app) }
//! ```
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `sqlite` | [`sqlite`]: records in one file, committed together with the handler's own writes |
//! | `postgres` | [`postgres`]: records in the application's own database, for any number of replicas |
//! | `testing` | a clock that tests move |
//!
//! Without a feature there is [`MemoryStore`], for tests and for trying it out: it forgets everything when the process
//! ends.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use semel_contract::identity::{Caller, Identity};
pub use semel_contract::problem::{Kind, Problem};
pub use semel_contract::profile::{Profile, presets};
pub use semel_contract::route::{Pattern, PatternError};
pub use semel_gate::{
    Body, BuildError, CallerExtension, GateBuilder, GateLayer, GateService, Grant, Identify, NotGranted,
    OnceOutcome, Probe, ResponseFuture, Route, SettleError, Verified, settling, sweep_for_ever, sweep_now,
};
pub use semel_store::memory::MemoryStore;
pub use semel_store::{ClaimStore, IntoStore, StoreError};

#[cfg(feature = "testing")]
pub use semel_gate::testing;

#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;

/// Records in one file, and grants that commit with them.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use semel_gate::sqlite::{Grant, Work, WorkError};
    pub use semel_store::sqlite::{OpenError, SqliteStore};
}

/// Records in the application's own PostgreSQL database, and grants that commit with its transactions.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use semel_gate::postgres::{Begun, Connection, Entered, Grant, TopLevel, Working};
    pub use semel_store::postgres::{Options, PostgresStore};
}
