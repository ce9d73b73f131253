//! The demo shop: a small service with visible effects, and not idempotent on purpose. Every `POST /orders` that arrives
//! is one more order. Knows nothing of semel.

mod ledger;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path as Segment, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use ledger::Totals;
use ledger::{Ledger, LedgerError};

/// The shop, with what it has sold.
#[derive(Clone, Debug)]
pub(crate) struct Shop {
    ledger: Arc<Ledger>,
    /// How long an order takes.
    delay: Duration,
}

/// What a customer asks for.
#[derive(Debug, Deserialize)]
struct NewOrder {
    item: String,
    amount: i64,
}

impl Shop {
    /// A shop that remembers its orders in a file, or until the program ends.
    pub(crate) fn open(file: Option<&Path>, delay: Duration) -> Result<Self, LedgerError> {
        Ok(Self { ledger: Arc::new(Ledger::open(file)?), delay })
    }

    /// Its pages.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/orders", get(list).post(create))
            .route("/orders/{id}", get(show))
            .route("/effects", get(effects))
            .with_state(self.clone())
    }

    /// What it has sold so far.
    pub(crate) async fn totals(&self) -> Result<Totals, LedgerError> {
        self.with_ledger(|ledger| ledger.totals()).await
    }

    /// On a thread of its own: a file waits for its disk.
    async fn with_ledger<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let ledger = Arc::clone(&self.ledger);
        match tokio::task::spawn_blocking(move || work(&ledger)).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only the end of the program cancels it, and then nobody waits for an answer.
            Err(_) => std::future::pending().await,
        }
    }

    async fn take(self, new: NewOrder) -> Response {
        tokio::time::sleep(self.delay).await;
        let taken = self.with_ledger(move |ledger| ledger.order(&new.item, new.amount)).await;
        match taken {
            Ok(order) => {
                let location = format!("/orders/{}", order.id);
                (StatusCode::CREATED, [(header::LOCATION, location)], Json(order)).into_response()
            }
            Err(error) => failed(&error),
        }
    }
}

async fn create(State(shop): State<Shop>, body: axum::body::Bytes) -> Response {
    let new: NewOrder = match serde_json::from_slice(&body) {
        Ok(new) => new,
        Err(error) => return refused(&format!("expected {{\"item\": \"…\", \"amount\": 5}}: {error}")),
    };
    if new.amount < 1 || new.item.is_empty() || new.item.len() > ledger::ITEM_BYTES_MAX {
        return refused("an order has an item with a short name, and an amount of at least 1");
    }
    // Like most services, this one does not stop working when its client hangs up.
    tokio::spawn(shop.take(new)).await.unwrap_or_else(|error| failed(&error))
}

async fn list(State(shop): State<Shop>) -> Response {
    answered(shop.with_ledger(|ledger| ledger.orders()).await)
}

async fn show(State(shop): State<Shop>, Segment(id): Segment<i64>) -> Response {
    match shop.with_ledger(move |ledger| ledger.one(id)).await {
        Ok(Some(order)) => Json(order).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, message("there is no such order")).into_response(),
        Err(error) => failed(&error),
    }
}

async fn effects(State(shop): State<Shop>) -> Response {
    answered(shop.totals().await)
}

fn answered(result: Result<impl serde::Serialize, LedgerError>) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(error) => failed(&error),
    }
}

fn refused(why: &str) -> Response {
    (StatusCode::BAD_REQUEST, message(why)).into_response()
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, message(&format!("the shop failed: {error}"))).into_response()
}

fn message(text: &str) -> Json<Value> {
    Json(json!({"error": text}))
}
