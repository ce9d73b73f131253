//! The store in PostgreSQL passes the suite, and keeps the promises that only a shared database can break. Needs the
//! server of `cargo xtask test`: without it these tests fail, and never skip.

#![cfg(feature = "postgres")]

mod agreement;
#[path = "live_postgres/clocks.rs"]
mod clocks;
#[path = "live_postgres/faults.rs"]
mod faults;
#[path = "live_postgres/fixture.rs"]
mod fixture;
#[path = "live_postgres/handlers.rs"]
mod handlers;
#[path = "live_postgres/lifetimes.rs"]
mod lifetimes;
#[path = "live_postgres/limits.rs"]
mod limits;
#[path = "live_postgres/once.rs"]
mod once;
#[path = "live_postgres/once_fixture.rs"]
mod once_fixture;
#[path = "live_postgres/once_new.rs"]
mod once_new;
#[path = "live_postgres/once_shared.rs"]
mod once_shared;
#[path = "live_postgres/proxy.rs"]
mod proxy;
#[path = "live_postgres/races.rs"]
mod races;
#[path = "live_postgres/schema.rs"]
mod schema;
#[path = "live_postgres/server.rs"]
mod server;
#[path = "live_postgres/servers.rs"]
mod servers;
mod upgrades;

mod conformance {
    use crate::fixture::postgres;

    semel_store::conformance_tests!(postgres());
    semel_store::admin_conformance_tests!(postgres());
}
