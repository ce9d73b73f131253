//! The relay on PostgreSQL.

mod base;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../store/tests/live_postgres/server.rs"]
mod server;
mod servers;
mod steady;
mod store;
mod upgrade;
