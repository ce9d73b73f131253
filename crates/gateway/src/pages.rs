//! The pages of problems, which every refusal links to, served where the links lead.

use axum_core::body::Body;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};

/// Where the pages are.
const UNDER: &str = "/.well-known/semel/problems/";

macro_rules! pages {
    ($($slug:literal)*) => {
        /// Every page, by the last part of its problem's type.
        const PAGES: &[(&str, &str)] = &[$((
            $slug,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/problems/", $slug, ".md")),
        ),)*];
    };
}

pages! {
    "admission-limited"
    "answer-not-kept"
    "body-not-json"
    "body-too-large"
    "credential-changed"
    "fingerprint-mismatch"
    "first-sent-in-future"
    "handler-timeout"
    "header-missing"
    "identity-missing"
    "identity-refused"
    "identity-unavailable"
    "in-flight"
    "insufficient-energy"
    "key-ambiguous"
    "key-invalid"
    "key-missing"
    "key-sealed"
    "key-too-weak"
    "key-unknown"
    "not-settled"
    "ordering-violation"
    "outcome-unknown"
    "overloaded"
    "request-limited"
    "request-malformed"
    "settlement-pending"
    "stale-action"
    "store-unavailable"
    "superseded"
    "timestamp-invalid"
    "too-many-waiters"
    "too-old"
    "upstream-reset"
    "upstream-timeout"
    "upstream-unreachable"
}

/// The page that a request asks for; `None` where it asks for something else.
pub(crate) fn page(parts: &Parts) -> Option<Response<Body>> {
    let slug = parts.uri.path().strip_prefix(UNDER)?;
    let found = PAGES.iter().find(|(name, _)| *name == slug).map(|(_, text)| *text);
    let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
    let (status, text) = match (found, is_read) {
        (Some(text), true) => (StatusCode::OK, text),
        (Some(_), false) => (StatusCode::METHOD_NOT_ALLOWED, "a page is only read\n"),
        (None, _) => (StatusCode::NOT_FOUND, "there is no such problem\n"),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/markdown; charset=utf-8"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_contract::problem::Kind;

    #[test]
    fn every_problem_has_its_page_and_every_page_its_problem() {
        let mut kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
        let mut pages: Vec<&str> = PAGES.iter().map(|(slug, _)| *slug).collect();
        kinds.sort_unstable();
        pages.sort_unstable();
        assert_eq!(kinds, pages);
    }

    #[test]
    fn pages_are_found_by_their_links_only() {
        let asked = |method: &str, path: &str| {
            let request = http::Request::builder().method(method).uri(path).body(()).unwrap();
            page(&request.into_parts().0).map(|response| response.status().as_u16())
        };
        assert_eq!(asked("GET", "/.well-known/semel/problems/in-flight"), Some(200));
        assert_eq!(asked("POST", "/.well-known/semel/problems/in-flight"), Some(405));
        assert_eq!(asked("GET", "/.well-known/semel/problems/else"), Some(404));
        assert_eq!(asked("GET", "/orders"), None);
    }
}
