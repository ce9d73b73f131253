//! What the admin API says when it does not do what was asked: RFC 9457, with a stable `code`.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use semel_store::StoreError;
use serde_json::{Map, Value, json};

/// A refusal.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    pub(crate) fn no_record(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-record", format!("there is no record {id:?}"))
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "the store did not answer an operator");
        match error {
            StoreError::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", error.to_string())
            }
            StoreError::Full(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "store-full", error.to_string())
            }
            StoreError::Unknown(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "commit-unknown",
                format!("{error}; look at the record and the audit trail before you do it again"),
            ),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { status, code, detail, more } = self;
        let mut body = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("refused"),
            "status": status.as_u16(),
            "code": code,
            "detail": detail,
            // Older readers look for these.
            "error": code,
            "message": detail,
        });
        if let Value::Object(members) = &mut body {
            members.extend(more);
        }
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, content_type, body.to_string()).into_response()
    }
}
