//! The OpenAPI document of the outbox.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

/// The document, as it is served.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn document() -> Response<Body> {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_route() {
        let document: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let api = include_str!("api.rs");
        let routed: Vec<&str> =
            api.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next()).collect();
        assert!(routed.len() > 10, "{routed:?}");
        for path in routed {
            assert!(paths.contains_key(path), "{path} is not in the document");
        }
    }
}
