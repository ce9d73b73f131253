//! What operators see on the admin address. The one place where its router is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use semel_gateway::Gateway;
use semel_store::ClaimStore;

use crate::config::Config;
use crate::store::Opened;

/// How long the store may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// What the admin router is made of.
#[derive(Clone)]
pub(crate) struct Admin {
    /// The store.
    pub(crate) store: Opened,
    /// The gateway.
    pub(crate) gateway: Gateway,
    /// Set when the gateway takes no more requests.
    pub(crate) is_stopping: Arc<AtomicBool>,
}

/// The router of the admin address.
pub(crate) fn admin_router(admin: &Admin, _config: &Config) -> Router {
    let (records, is_stopping) = (Arc::clone(&admin.store.records), Arc::clone(&admin.is_stopping));
    let readyz = move || ready(Arc::clone(&records), Arc::clone(&is_stopping));
    Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(readyz))
}

async fn ready(records: Arc<dyn ClaimStore>, is_stopping: Arc<AtomicBool>) -> (StatusCode, String) {
    if is_stopping.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
    }
    match tokio::time::timeout(READY_WITHIN, records.ready()).await {
        Ok(Ok(())) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(Err(error)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n".to_owned()),
    }
}
