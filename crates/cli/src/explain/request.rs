//! A request to be explained, as typed or as one line of JSON. Checks only what HTTP itself would refuse.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_contract::key::is_header_name;
use semel_contract::problem::{Kind, Problem};
use serde::Deserialize;
use serde_json::Value;

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// One line of `--jsonl`. Other members are left to whoever wrote them.
#[derive(Deserialize)]
struct Line {
    method: String,
    path: String,
    headers: Option<Vec<(String, String)>>,
    body: Option<String>,
    body_base64: Option<String>,
}

impl Request {
    /// Reads one line.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, Problem> {
        let malformed = |why: String| Problem::new(Kind::RequestMalformed, why);
        let not_a_request =
            |error: serde_json::Error| malformed(format!("the line is not a request: {error}"));
        let members: serde_json::Map<String, Value> = serde_json::from_slice(line).map_err(not_a_request)?;
        let line: Line = serde_json::from_value(Value::Object(members)).map_err(not_a_request)?;
        let body = match (line.body, line.body_base64) {
            (Some(_), Some(_)) => return Err(malformed("give body or body_base64, not both".to_owned())),
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => {
                STANDARD.decode(text).map_err(|error| malformed(format!("body_base64: {error}")))?
            }
            (None, None) => Vec::new(),
        };
        let headers = line
            .headers
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| (name, value.into_bytes()))
            .collect();
        Ok(Self { method: line.method, path: line.path, headers, body })
    }

    /// What no HTTP message can look like.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let malformed = |why: &str| Err(Problem::new(Kind::RequestMalformed, why));
        if !is_header_name(&self.method) {
            return malformed("the method is not a token");
        }
        if !self.path.starts_with('/') || self.path.bytes().any(|b| b <= b' ' || b == b'#' || b == 127) {
            return malformed("the path must begin with / and contain no spaces or control characters");
        }
        if self.headers.iter().any(|(name, _)| !is_header_name(name)) {
            return malformed("a header's name is not a token");
        }
        if self.headers.iter().any(|(_, value)| value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0))) {
            return malformed("a header's value contains a line break or NUL");
        }
        Ok(())
    }

    /// The path without its query.
    pub(crate) fn path_only(&self) -> &str {
        self.path.split_once('?').map_or(&self.path, |(path, _)| path)
    }

    /// The query without its question mark.
    pub(crate) fn query(&self) -> &str {
        self.path.split_once('?').map_or("", |(_, query)| query)
    }
}
