//! The page of `semel up`: one file without outside resources, and the counts that it asks for every second.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use semel_console::Metrics;
use semel_console::part::Section;
use semel_contract::record::State as RecordState;
use semel_store::{ClaimStore, Filter};
use serde::Serialize;
use serde_json::json;

use super::counts;
use crate::demo::Shop;

const PAGE: &str = include_str!("page.html");
/// What the page may load: nothing but itself and its counts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Unknown outcomes that are counted; more are shown as this many.
const UNKNOWN_MAX: u32 = 1000;

/// What does not change while it runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) gate: String,
    pub(crate) upstream: String,
    pub(crate) admin: String,
    /// Where changes are handed in that can be merged.
    pub(crate) relay: Option<String>,
    /// Where its operators look.
    pub(crate) relay_admin: Option<String>,
    /// Where members of the demo mesh connect.
    pub(crate) broker: Option<String>,
    pub(crate) data: String,
    /// How to look at the records.
    pub(crate) records: String,
    /// Whether the service behind the gate is the demo.
    pub(crate) demo: bool,
    pub(crate) commands: Vec<Command>,
}

impl Facts {
    /// The same for the console's first page.
    pub(crate) fn section(&self) -> Section {
        let service = if self.demo { "demo shop, bare" } else { "service, bare" };
        let mut rows = vec![
            ("gate, for clients".to_owned(), self.gate.clone()),
            (service.to_owned(), self.upstream.clone()),
            ("data".to_owned(), self.data.clone()),
            ("records".to_owned(), self.records.clone()),
        ];
        rows.extend(self.relay.iter().map(|relay| ("relay, for senders".to_owned(), relay.clone())));
        Section { title: "What runs here".to_owned(), rows, bounds: Vec::new() }
    }
}

/// A command to try.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Command {
    pub(crate) words: &'static str,
    pub(crate) line: String,
}

/// Everything that the page shows.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) facts: Facts,
    pub(crate) shop: Option<Shop>,
    pub(crate) store: Arc<dyn ClaimStore>,
    pub(crate) metrics: Metrics,
}

impl Page {
    /// The page at `/`, and its counts.
    pub(crate) fn router(self) -> Router {
        Router::new().route("/", get(page)).route("/counts", get(show)).with_state(Arc::new(self))
    }
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE).into_response()
}

async fn show(State(page): State<Arc<Page>>) -> Response {
    let filter = Filter { state: Some(RecordState::Unknown), limit: UNKNOWN_MAX, ..Filter::default() };
    let unknown = match page.store.list(&filter).await {
        Ok(entries) => entries.len(),
        Err(error) => return away(&error),
    };
    let shop = match &page.shop {
        Some(shop) => match shop.totals().await {
            Ok(totals) => Some(totals),
            Err(error) => return away(&error),
        },
        None => None,
    };
    let counts = counts::counts(&page.metrics.render());
    let gate = json!({
        "requests": counts.requests,
        "executed": counts.executed,
        "replays": counts.replays,
        "conflicts": counts.conflicts,
        "waits": counts.waits,
        "unknown": unknown,
    });
    let body = json!({"facts": page.facts, "shop": shop, "gate": gate});
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

fn away(error: &dyn std::fmt::Display) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error.to_string()}))).into_response()
}
