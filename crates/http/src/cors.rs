//! Which pages on other origins may use a server from a browser, and what they may read of its answers. Pure: decides by
//! headers alone. Without a word about it no other page may.

use std::fmt;

use axum_core::body::Body;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode, Uri};

use crate::HttpError;

/// What a page may read beside the few headers that every page may: all that a client needs in order to retry.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Date, Link, Location, Retry-After, Idempotency-Replayed, Idempotent-Replayed, Semel-Guarantee, \
     Semel-Outcome, Semel-Retention, Stripe-Should-Retry, X-Request-Id, X-Should-Retry",
);
/// For how many seconds a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Origins at most.
const ORIGINS_MAX: usize = 64;

/// Which pages on other origins may use a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    pages: Pages,
    with_credentials: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pages {
    All,
    Of(Vec<String>),
}

impl fmt::Display for Cors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pages {
            Pages::All => f.write_str("*")?,
            Pages::Of(origins) => f.write_str(&origins.join(", "))?,
        }
        f.write_str(if self.with_credentials { ", with cookies" } else { "" })
    }
}

impl Cors {
    /// Pages of these origins (`https://app.example`), or of all (`*`, alone). With `with_credentials` they may send cookies,
    /// which is not for all.
    ///
    /// # Errors
    /// One is not an origin, or they do not go together; says why.
    pub fn new(origins: &[String], with_credentials: bool) -> Result<Self, HttpError> {
        if origins.is_empty() || origins.len() > ORIGINS_MAX {
            return Err(format!("expected 1 to {ORIGINS_MAX} origins").into());
        }
        if origins == ["*"] {
            return match with_credentials {
                true => Err("cookies may be sent by named origins only, not by *".into()),
                false => Ok(Self { pages: Pages::All, with_credentials }),
            };
        }
        let origins = origins.iter().map(|text| read_origin(text)).collect::<Result<_, String>>()?;
        Ok(Self { pages: Pages::Of(origins), with_credentials })
    }

    /// The answer to a browser that asks beforehand what a page may send; `None` for every other request. Like every answer
    /// it goes through [`Cors::expose`].
    pub fn answer_preflight(&self, parts: &Parts) -> Option<Response<Body>> {
        let method = parts.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        if parts.method != Method::OPTIONS || !parts.headers.contains_key(header::ORIGIN) {
            return None;
        }
        let mut response = Response::new(Body::empty());
        if self.allowed(&parts.headers).is_none() {
            *response.status_mut() = StatusCode::FORBIDDEN;
            return Some(response);
        }
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
        if let Some(wanted) = parts.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            // Which page asks is what is decided here; what it sends is judged when it comes.
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        for name in [header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS] {
            if let Ok(value) = HeaderValue::from_str(name.as_str()) {
                headers.append(header::VARY, value);
            }
        }
        Some(response)
    }

    /// What the answer to a request says of the page that asked, where that page may read it.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut lines = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (lines.next(), lines.next()) else { return None };
        match &self.pages {
            Pages::All => Some(HeaderValue::from_static("*")),
            Pages::Of(origins) => origins
                .iter()
                .any(|known| known.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
                .then(|| origin.clone()),
        }
    }

    /// Lets the page that asked read an answer, in place of whatever the answer said about that before.
    pub fn expose(&self, allowed: Option<HeaderValue>, headers: &mut HeaderMap) {
        if matches!(self.pages, Pages::Of(_)) {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        for name in OWN {
            headers.remove(name);
        }
        let Some(allowed) = allowed else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        if self.with_credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }
}

/// What only this setting says of an answer.
const OWN: [HeaderName; 3] = [
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
];

/// An origin as browsers write it: scheme, host and port, in small letters, nothing behind.
fn read_origin(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} is not an origin: expected something like https://app.example");
    let uri: Uri = text.parse().map_err(|_| bad())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(bad()) };
    let plain = format!("{scheme}://{authority}");
    if !text.eq_ignore_ascii_case(&plain) || authority.as_str().contains('@') {
        return Err(bad());
    }
    Ok(plain.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn cors(origins: &[&str], with_credentials: bool) -> Result<Cors, HttpError> {
        Cors::new(&origins.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), with_credentials)
    }

    fn asked(method: &str, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().method(method).uri("/orders");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_page_of_a_named_origin_may_send_a_key_and_read_what_it_needs() {
        let cors = cors(&["https://app.example"], true).unwrap();
        let parts = asked(
            "OPTIONS",
            &[
                ("origin", "https://app.example"),
                ("access-control-request-method", "POST"),
                ("access-control-request-headers", "idempotency-key, authorization"),
            ],
        );
        let mut answer = cors.answer_preflight(&parts).unwrap();
        cors.expose(cors.allowed(&parts.headers), answer.headers_mut());
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(answer.status(), 204);
        assert_eq!(header("access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(header("access-control-allow-headers"), Some("idempotency-key, authorization"));
        assert_eq!(header("access-control-allow-credentials"), Some("true"));
        let mut headers = HeaderMap::new();
        headers.insert("access-control-allow-origin", HeaderValue::from_static("https://the.service"));
        cors.expose(cors.allowed(&parts.headers), &mut headers);
        assert_eq!(headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(headers["vary"], "Origin");
        let exposed = headers["access-control-expose-headers"].to_str().unwrap();
        for name in ["Date", "Location", "Retry-After", "Idempotency-Replayed", "X-Should-Retry"] {
            assert!(exposed.contains(name), "{exposed}");
        }
        for name in ["Semel-Guarantee", "Semel-Outcome", "Semel-Retention"] {
            assert!(exposed.contains(name), "{exposed}");
        }
    }

    /// The names of headers that a source of the client for browsers reads of answers: in `header("…")`, `headers.get("…")`,
    /// `headers.has("…")` and `headers["…"]`.
    fn read_of_answers(source: &str) -> Vec<&str> {
        let mut names = Vec::new();
        for begin in ["header(\"", "headers.get(\"", "headers.has(\"", "headers[\""] {
            for (at, _) in source.match_indices(begin) {
                let (before, rest) = (&source[..at], &source[at + begin.len()..]);
                let is_of_a_request = before.ends_with("request.");
                names.extend(rest.split('"').next().filter(|_| !is_of_a_request));
            }
        }
        names
    }

    fn sources(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                // What runs in a service reads requests.
                true if path.ends_with("server") => {}
                true => sources(&path, found),
                false => found.push(std::fs::read_to_string(path).unwrap()),
            }
        }
    }

    #[test]
    fn what_the_client_for_browsers_reads_is_exposed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/typescript/src");
        let mut found = Vec::new();
        sources(std::path::Path::new(folder), &mut found);
        let mut read: Vec<&str> = found.iter().flat_map(|source| read_of_answers(source)).collect();
        read.sort_unstable();
        read.dedup();
        assert!(read.len() >= 8 && read.contains(&"link"), "the reading is not found any more: {read:?}");
        let exposed: Vec<String> =
            EXPOSED.to_str().unwrap().split(", ").map(str::to_ascii_lowercase).collect();
        // Every page may read this one without being told.
        let is_readable = |name: &&str| *name == "content-type" || exposed.iter().any(|known| known == name);
        let hidden: Vec<&&str> = read.iter().filter(|name| !is_readable(name)).collect();
        assert!(hidden.is_empty(), "the client reads {hidden:?}, which no page may");
    }

    #[test]
    fn other_pages_may_nothing() {
        let cors = cors(&["https://app.example", "http://localhost:5173"], false).unwrap();
        for origin in ["https://evil.example", "https://app.example.evil", "null", "http://app.example", ""] {
            let headers = [("origin", origin), ("access-control-request-method", "POST")];
            let parts = asked("OPTIONS", &headers);
            let refused = cors.answer_preflight(&parts).unwrap();
            assert_eq!(refused.status(), 403, "{origin}");
            let mut headers = refused.headers().clone();
            cors.expose(cors.allowed(&parts.headers), &mut headers);
            assert!(!headers.contains_key("access-control-allow-origin"), "{origin}");
        }
        let twice = [("origin", "https://app.example"), ("origin", "https://app.example")];
        assert!(cors.allowed(&asked("GET", &twice).headers).is_none());
    }

    #[test]
    fn only_a_question_beforehand_is_answered_here() {
        let cors = cors(&["*"], false).unwrap();
        let origin = ("origin", "https://app.example");
        let method = ("access-control-request-method", "POST");
        assert!(cors.answer_preflight(&asked("OPTIONS", &[origin])).is_none());
        assert!(cors.answer_preflight(&asked("OPTIONS", &[method])).is_none());
        assert!(cors.answer_preflight(&asked("POST", &[origin, method])).is_none());
        let parts = asked("OPTIONS", &[origin, method]);
        let mut answer = cors.answer_preflight(&parts).unwrap();
        cors.expose(cors.allowed(&parts.headers), answer.headers_mut());
        assert_eq!(answer.headers()["access-control-allow-origin"], "*");
        assert!(!answer.headers().contains_key("access-control-allow-credentials"));
    }

    #[test]
    fn what_is_no_origin_is_refused_with_a_reason() {
        for bad in ["", "app.example", "https://app.example/", "https://u@app.example", "https://a/b", "null"]
        {
            assert!(cors(&[bad], false).unwrap_err().to_string().contains("is not an origin"), "{bad}");
        }
        assert!(cors(&["*"], true).is_err());
        assert!(cors(&["*", "https://app.example"], false).is_err());
        assert!(cors(&[], false).is_err());
    }
}
