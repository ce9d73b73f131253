//! Refusals that are no problem of the contract: a path that is not there, a method, a body that cannot be read, what an
//! operator may not do. RFC 9457 like all others, with the members `error` and `message` that older readers look for.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};

/// How much of a refusal's text is kept.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A refusal: its status, a stable word, what happened.
pub(crate) fn refusal(status: StatusCode, code: &str, why: &str) -> Response<Body> {
    refusal_with(status, code, why, &Map::new())
}

/// The same with more members.
pub(crate) fn refusal_with(
    status: StatusCode,
    code: &str,
    why: &str,
    more: &Map<String, Value>,
) -> Response<Body> {
    let mut body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("refused"),
        "status": status.as_u16(),
        "detail": why,
        "code": code,
        "error": code,
        "message": why,
    });
    for (name, value) in more {
        body[name] = value.clone();
    }
    let mut response = Response::new(Body::from(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Writes what a framework says about a request that it refuses as everything else is written.
pub(crate) async fn rendered(response: Response<Body>) -> Response<Body> {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !(status.is_client_error() || status.is_server_error())
        || kind.is_some_and(|kind| kind.contains("json"))
    {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, TEXT_BYTES_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let (code, usual) = words(status);
    let why = if text.is_empty() { usual } else { &text };
    let mut rendered = refusal(status, code, why);
    for name in [header::ALLOW, header::RETRY_AFTER, header::WWW_AUTHENTICATE] {
        if let Some(value) = parts.headers.get(&name) {
            rendered.headers_mut().insert(name, value.clone());
        }
    }
    rendered
}

/// The stable word of a status, and what is said where nothing was.
fn words(status: StatusCode) -> (&'static str, &'static str) {
    match status {
        StatusCode::NOT_FOUND => ("no-such-path", "there is nothing here; see /openapi.json"),
        StatusCode::METHOD_NOT_ALLOWED => ("no-such-method", "not with this method; see /openapi.json"),
        StatusCode::PAYLOAD_TOO_LARGE => ("body-too-large", "the body is too large"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ("not-json", "send JSON, with Content-Type: application/json"),
        StatusCode::UNPROCESSABLE_ENTITY => ("request-malformed", "the body does not say what is expected"),
        status if status.is_client_error() => ("request-malformed", "the request cannot be read"),
        _ => ("failed", "something failed here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seen(response: Response<Body>) -> (u16, String, Value) {
        let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, kind, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn what_a_framework_says_becomes_a_problem_and_nothing_else_does() {
        let mut bare = Response::new(Body::from("Expected request with `Content-Type: application/json`"));
        *bare.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let (status, kind, body) = seen(rendered(bare).await).await;
        assert_eq!((status, kind.as_str()), (415, "application/problem+json"));
        assert_eq!((body["status"].as_u64(), body["code"].as_str()), (Some(415), Some("not-json")));
        assert!(body["detail"].as_str().unwrap().starts_with("Expected"));
        let mut empty = Response::new(Body::empty());
        *empty.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        empty.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        let response = rendered(empty).await;
        assert_eq!(response.headers()[header::ALLOW], "POST");
        let own = refusal(StatusCode::CONFLICT, "not-in-doubt", "it is not");
        assert_eq!(seen(rendered(own).await).await.2["code"], "not-in-doubt");
        let page = rendered(Response::new(Body::from("ok"))).await;
        assert!(!page.headers().contains_key(header::CONTENT_TYPE), "what is well is left alone");
    }
}
