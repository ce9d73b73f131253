//! The body of `POST /v1/send`, read strictly: a field that is not known is a mistake of the caller's.

use std::collections::BTreeMap;

use base64::Engine as _;
use semel_contract::time::Timestamp;
use semel_delivery::{Enqueue, Refused, Request};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    client_message_id: Option<String>,
    lane: Option<String>,
    principal: Option<String>,
    logical_key: Option<String>,
    client_generated_at: Option<String>,
    profile: Option<String>,
    request: Asked,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, Lines>,
    body: Option<Box<RawValue>>,
    body_text: Option<String>,
    body_base64: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Many(Vec<String>),
}

/// Reads the body of a send.
pub(crate) fn read(body: &[u8]) -> Result<Enqueue, Refused> {
    let malformed = |why: String| Refused::Malformed(why);
    let send: Send =
        serde_json::from_slice(body).map_err(|error| malformed(format!("the envelope: {error}")))?;
    let Asked { method, url, headers, body, body_text, body_base64 } = send.request;
    let mut lines = Vec::new();
    for (name, values) in headers {
        match values {
            Lines::One(value) => lines.push((name, value)),
            Lines::Many(values) => lines.extend(values.into_iter().map(|value| (name.clone(), value))),
        }
    }
    let (usual, body) = match (body, body_text, body_base64) {
        (None, None, None) => (None, Vec::new()),
        (Some(json), None, None) => (Some("application/json"), json.get().as_bytes().to_vec()),
        (None, Some(text), None) => (Some("text/plain; charset=utf-8"), text.into_bytes()),
        (None, None, Some(encoded)) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded);
            (None, bytes.map_err(|error| malformed(format!("body_base64: {error}")))?)
        }
        _ => return Err(malformed("give one of body, body_text and body_base64".to_owned())),
    };
    let has_type = lines.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if let (Some(usual), false) = (usual, has_type) {
        lines.push(("content-type".to_owned(), usual.to_owned()));
    }
    let client_generated_at = send.client_generated_at.as_deref().map(Timestamp::parse).transpose();
    Ok(Enqueue {
        client_message_id: send.client_message_id,
        lane: send.lane,
        principal: send.principal,
        logical_key: send.logical_key,
        operation: None,
        client_generated_at: client_generated_at
            .map_err(|error| malformed(format!("client_generated_at: {error}")))?,
        profile: send.profile,
        request: Request { method, url, headers: lines, body },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_body_are_kept_as_they_are() {
        let text = br#"{"request":{"method":"POST","url":"/x","body":{"b":1.0,"a":12345678901234567890}}}"#;
        assert_eq!(read(text).unwrap().request.body, br#"{"b":1.0,"a":12345678901234567890}"#);
    }

    #[test]
    fn envelopes_that_are_not_understood_are_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"request":{"method":"POST"}}"#,
            r#"{"request":{"url":"/x"}}"#,
            r#"{"request":{"method":"POST","url":"/x","body":1,"body_text":"x"}}"#,
            r#"{"request":{"method":"POST","url":"/x","body_base64":"?"}}"#,
            r#"{"request":{"method":"POST","url":"/x"},"lnae":"x"}"#,
            r#"{"request":{"method":"POST","url":"/x"},"client_generated_at":"yesterday"}"#,
            r#"{"request":{"method":"POST","url":"/x"},"client_message_id":7}"#,
        ] {
            assert_eq!(read(bad.as_bytes()).unwrap_err().status(), 400, "{bad}");
        }
    }
}
