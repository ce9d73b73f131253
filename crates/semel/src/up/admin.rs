//! What operators ask of `semel up`: whether it lives, whether it can work, and its metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_store::ClaimStore;

#[derive(Clone)]
struct Admin {
    store: Arc<dyn ClaimStore>,
    metrics: PrometheusHandle,
}

pub(crate) fn router(store: Arc<dyn ClaimStore>, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/", get(|| async { "semel up: /metrics, /healthz, /readyz\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .with_state(Admin { store, metrics })
}

async fn ready(State(admin): State<Admin>) -> Response {
    match admin.store.ready().await {
        Ok(()) => "ready\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn metrics_text(State(admin): State<Admin>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.metrics.render())
        .into_response()
}
