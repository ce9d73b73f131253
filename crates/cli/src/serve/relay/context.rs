//! What the handlers for operators share: what they work on, who acts, and what is said where the store fails.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use semel_delivery::relay::Engine;
use semel_delivery::relay::given::SharedWallet;
use semel_delivery::relay::store::StoreError;

use crate::problems::refusal;

/// What the handlers work on.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) engine: Arc<Engine>,
    pub(crate) credentials: Arc<SharedWallet>,
    pub(crate) is_stopping: Arc<AtomicBool>,
}

pub(super) fn away(error: &StoreError) -> Response<Body> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", &error.to_string())
}

pub(super) fn actor(headers: &HeaderMap) -> String {
    let named = headers.get("semel-actor").and_then(|name| name.to_str().ok()).map(str::trim);
    named.filter(|name| !name.is_empty() && name.len() <= 100).unwrap_or("operator").to_owned()
}
