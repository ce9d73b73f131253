//! What an order is, and its refund at a payment provider. Knows nothing of how orders are kept.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use semel_gate::Grant;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a client asks for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) item: String,
    pub(crate) quantity: i32,
}

/// An order that was taken.
#[derive(Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) item: String,
    pub(crate) quantity: i32,
}

impl NewOrder {
    /// The order as the client is told of it.
    pub(crate) fn created(&self, id: i64) -> Value {
        json!({"id": id, "item": self.item, "quantity": self.quantity})
    }
}

/// Refunds an order. The payment provider is elsewhere, so that no transaction of ours covers it: this route is fenced. The
/// child key is the same whenever this request is tried, so that the provider can recognise it as well.
pub(crate) async fn refund(grant: Grant, Path(id): Path<i64>) -> Json<Value> {
    let key = grant.derive("refund");
    println!("the payment provider is asked to refund order {id} under the key {key}");
    Json(json!({"refunded": id, "provider_key": key}))
}

/// What reading orders answers when the database does not.
pub(crate) fn unreadable(error: impl std::fmt::Display) -> Response {
    eprintln!("failed to read orders: {error}");
    (StatusCode::SERVICE_UNAVAILABLE, "the orders cannot be read now").into_response()
}
