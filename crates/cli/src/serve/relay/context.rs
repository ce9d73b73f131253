//! What the handlers for operators share: what they work on, who acts, and what is said where the store fails.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use semel_delivery::relay::Engine;
use semel_delivery::relay::given::SharedWallet;
use semel_delivery::relay::store::StoreError;
use semel_delivery::{Invalid, Operator};
use semel_http::BodyRoom;

use crate::problems::refusal;

/// What the handlers work on.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) engine: Arc<Engine>,
    pub(crate) credentials: Arc<SharedWallet>,
    pub(crate) is_stopping: Arc<AtomicBool>,
    /// Room for what operators send, the same as that of senders.
    pub(crate) bodies: Arc<BodyRoom>,
}

pub(super) fn away(error: &StoreError) -> Response<Body> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", &error.to_string())
}

/// The longest name of somebody.
const NAME_CHARS_MAX: usize = 200;

/// Who acts, as the guard or a command has named them, and why.
pub(super) fn acting(headers: &HeaderMap, reason: Option<&str>) -> Result<Operator, Box<Response<Body>>> {
    let named = headers.get(semel_console::ACTOR).and_then(|name| name.to_str().ok()).map(str::trim);
    let named = named.filter(|name| !name.is_empty() && name.len() <= NAME_CHARS_MAX).unwrap_or("operator");
    let refused = |why: Invalid| Box::new(refusal(StatusCode::BAD_REQUEST, "bad-reason", &why.to_string()));
    Operator::new(named, reason).map_err(refused)
}

/// The reason in a body that needs none.
pub(super) fn reason_in(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    body["reason"].as_str().map(str::to_owned)
}
