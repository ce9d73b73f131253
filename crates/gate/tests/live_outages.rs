//! The gate while its database fails: servers that end without warning, replies that never come, sessions that are ended,
//! leases that lapse. Whatever fails: what was acknowledged took effect, nothing takes effect twice, and what is not known
//! is said. Needs the server of `cargo xtask test`: without it these tests fail, and never skip.

#![cfg(feature = "postgres")]

#[path = "outages/client.rs"]
mod client;
#[path = "outages/commits.rs"]
mod commits;
#[path = "outages/input.rs"]
mod input;
#[path = "outages/proxy.rs"]
mod proxy;
#[path = "outages/server.rs"]
mod server;
#[path = "outages/sessions.rs"]
mod sessions;
#[path = "outages/sharing.rs"]
mod sharing;
#[path = "outages/shop.rs"]
mod shop;
#[path = "outages/shutdowns.rs"]
mod shutdowns;

/// Storms take turns: each measures what it alone does to the machine.
async fn turn() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    TURN.lock().await
}
