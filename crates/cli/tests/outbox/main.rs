//! The outbox from outside: its daemon, its door, its table, its commands, and what `kill -9` does to it.

mod commands;
mod daemon;
mod door;
mod events;
mod guide;
mod kills;
mod secure;
mod server;
mod table;
