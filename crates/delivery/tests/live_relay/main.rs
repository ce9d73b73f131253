//! The relay on PostgreSQL.

mod base;
mod steady;
mod store;
mod upgrade;
