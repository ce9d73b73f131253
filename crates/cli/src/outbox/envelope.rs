//! The body of `POST /v1/send`, read strictly: a field that is not known is a mistake of the caller's.

use std::collections::BTreeMap;

use base64::Engine as _;
use semel_contract::time::Timestamp;
use semel_delivery::envelope::TX_HEADER;
use semel_delivery::{Enqueue, Refused, Request};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::mesh::{Mesh, Message, To};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    client_message_id: Option<String>,
    lane: Option<String>,
    principal: Option<String>,
    logical_key: Option<String>,
    client_generated_at: Option<String>,
    profile: Option<String>,
    request: Option<Asked>,
    // In the place of a request: a message for a topic or a member of the outbox's mesh.
    to: Option<To>,
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    mentions: Vec<String>,
    client_tx_id: Option<String>,
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

/// Reads the body of a send, by an outbox that publishes in this mesh.
pub(crate) fn read(body: &[u8], mesh: Option<&Mesh>) -> Result<Enqueue, Refused> {
    let malformed = |why: String| Refused::Malformed(why);
    let mut send: Send =
        serde_json::from_slice(body).map_err(|error| malformed(format!("the envelope: {error}")))?;
    let is_published = send.to.is_some()
        || [&send.body_base64, &send.content_type, &send.client_tx_id].iter().any(|one| one.is_some())
        || send.body.is_some()
        || !send.mentions.is_empty();
    let request = match (send.request.take(), is_published) {
        (Some(asked), false) => requested(asked)?,
        (None, true) => {
            // Its answers are read as a broker gives them.
            send.profile.get_or_insert_with(|| "mesh".to_owned());
            published(&send, mesh)?
        }
        (Some(_), true) => return Err(malformed("give a request, or `to` and a body, not both".to_owned())),
        (None, false) => {
            return Err(malformed("give a request, or `to` with a topic or a member".to_owned()));
        }
    };
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
        request,
    })
}

/// The request that publishes a message.
fn published(send: &Send, mesh: Option<&Mesh>) -> Result<Request, Refused> {
    let malformed = |why: &str| Refused::Malformed(why.to_owned());
    let to = send.to.as_ref().ok_or_else(|| malformed("`to` is missing: a topic or a member"))?;
    if send.body.is_some() == send.body_base64.is_some() {
        return Err(malformed("give one of body and body_base64"));
    }
    let mesh = mesh.ok_or(Refused::NoBroker)?;
    let message = Message {
        to,
        body: send.body.as_deref(),
        body_base64: send.body_base64.as_deref(),
        content_type: send.content_type.as_deref(),
        mentions: &send.mentions,
    };
    let text = serde_json::to_vec(&message).map_err(|error| Refused::Malformed(error.to_string()))?;
    let mut request = Request::json("POST", &mesh.url(), text);
    request.headers.extend(send.client_tx_id.iter().map(|tag| (TX_HEADER.to_owned(), tag.clone())));
    Ok(request)
}

/// The request that a caller wrote.
fn requested(asked: Asked) -> Result<Request, Refused> {
    let malformed = |why: String| Refused::Malformed(why);
    let Asked { method, url, headers, body, body_text, body_base64 } = asked;
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
    Ok(Request { method, url, headers: lines, body })
}

#[cfg(test)]
mod tests {
    use semel_delivery::url::Target;

    use super::*;

    #[test]
    fn bytes_of_a_body_are_kept_as_they_are() {
        let text = br#"{"request":{"method":"POST","url":"/x","body":{"b":1.0,"a":12345678901234567890}}}"#;
        assert_eq!(read(text, None).unwrap().request.body, br#"{"b":1.0,"a":12345678901234567890}"#);
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
            assert_eq!(read(bad.as_bytes(), None).unwrap_err().status(), 400, "{bad}");
        }
    }

    #[test]
    fn a_message_for_a_topic_is_what_its_broker_reads() {
        let broker = Target::absolute("http://127.0.0.1:7430/").unwrap();
        let mesh = Mesh::of(broker, "a team").unwrap();
        let read = |text: &str| read(text.as_bytes(), Some(&mesh));
        let enqueue = read(r#"{"to":{"topic":"news"},"body":{"a": 1.50},"mentions":["bob"]}"#).unwrap();
        assert_eq!(enqueue.request.url, "http://127.0.0.1:7430/v1/meshes/a%20team/messages");
        assert_eq!(enqueue.request.body, br#"{"to":{"topic":"news"},"body":{"a": 1.50},"mentions":["bob"]}"#);
        assert_eq!((enqueue.request.method.as_str(), enqueue.profile.as_deref()), ("POST", Some("mesh")));
        let direct = read(r#"{"to":{"member":"bob"},"body_base64":"aGk=","client_tx_id":"t1"}"#).unwrap();
        assert_eq!(direct.request.body, br#"{"to":{"member":"bob"},"body_base64":"aGk="}"#);
        assert_eq!(direct.request.header("x-client-tx-id"), Some("t1"));
        for bad in [
            r#"{"to":{"topic":"t"}}"#,
            r#"{"to":{},"body":1}"#,
            r#"{"to":{"topic":"t","member":"m"},"body":1}"#,
            r#"{"to":{"topic":"t"},"body":1,"body_base64":"aGk="}"#,
            r#"{"body":1}"#,
            r#"{"to":{"topic":"t"},"body":1,"request":{"method":"POST","url":"/x"}}"#,
        ] {
            assert_eq!(read(bad).unwrap_err().status(), 400, "{bad}");
        }
        let nowhere = super::read(br#"{"to":{"topic":"t"},"body":1}"#, None).unwrap_err();
        assert_eq!((nowhere.status(), nowhere.code()), (422, "no-broker"));
    }
}
