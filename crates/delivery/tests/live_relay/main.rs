//! The relay on PostgreSQL.

mod base;
#[path = "../../../store/tests/live_postgres/server.rs"]
mod server;
mod servers;
mod steady;
mod store;
mod upgrade;
