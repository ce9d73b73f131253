//! Which path leads where. One table: the OpenAPI document is tested against it.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use http::StatusCode;

use crate::refusal::Refusal;
use crate::{Console, health, history, openapi, records, resolve, upkeep};

/// The largest body that is read: a resolution's, in base64, and what is around it.
const BODY_BYTES_MAX: usize = resolve::BODY_BYTES_MAX * 4 / 3 + (64 << 10);

/// The API, which lets everybody in: whoever serves it puts a guard before it.
pub(crate) fn router(console: Console) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/records", get(records::list))
        .route("/v1/records/{id}", get(records::show))
        .route("/v1/records/{id}/resolve", post(resolve::resolve))
        .route("/v1/records/{id}/seal", post(records::seal))
        .route("/v1/search", get(records::search))
        .route("/v1/sweep", post(upkeep::sweep))
        .route("/v1/forget", post(upkeep::forget))
        .route("/v1/restored", post(upkeep::restored))
        .route("/v1/restores", get(upkeep::restores))
        .route("/v1/audit", get(history::audit))
        .route("/v1/cleanups", get(history::cleanups))
        .route("/v1/stale", get(history::stale))
        .route("/v1/clock", get(upkeep::clock))
        .route("/v1/clock/confirm", post(upkeep::confirm_clock))
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(console)
}

pub(crate) async fn no_such_path() -> axum::response::Response {
    Refusal::new(StatusCode::NOT_FOUND, "no-such-path", "see /openapi.json").into_response()
}

async fn no_such_method() -> axum::response::Response {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "no-such-method", "see /openapi.json").into_response()
}
