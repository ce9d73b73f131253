//! A message as readers see it: one JSON object, the same on pages, in streams and in webhooks. Owns the words. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel_contract::time::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::event_id::EventId;
use crate::store::history::Stored;

#[derive(Serialize)]
struct Data<'a> {
    id: String,
    line: &'a str,
    broker_message_id: &'a str,
    client_message_id: &'a str,
    sender: &'a str,
    client_tx_id: Option<&'a str>,
    supersedes: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    content_type: Option<&'a str>,
    created_at: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    moderated: bool,
}

/// A message on its way to readers, written once for all of them.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    /// One JSON object, on one line.
    pub(crate) json: Bytes,
}

impl Event {
    pub(crate) fn of(line: &str, epoch: i64, stored: &Stored) -> Self {
        let id = EventId::of(epoch, stored.number, &stored.broker_message_id);
        let text =
            || String::from_utf8(stored.body.clone()).ok().and_then(|text| RawValue::from_string(text).ok());
        let is_shown = !stored.is_moderated;
        let body = if is_shown && stored.is_json { text() } else { None };
        let body_base64 = (is_shown && body.is_none()).then(|| STANDARD.encode(&stored.body));
        let data = Data {
            id: id.to_string(),
            line,
            broker_message_id: &stored.broker_message_id,
            client_message_id: &stored.client_message_id,
            sender: &stored.sender,
            client_tx_id: stored.client_tx_id.as_deref(),
            supersedes: stored.supersedes.as_deref(),
            body,
            body_base64,
            content_type: stored.content_type.as_deref(),
            created_at: Timestamp::from_millis(stored.created_at).to_string(),
            moderated: stored.is_moderated,
        };
        let json = serde_json::to_vec(&data).expect("text and numbers can be written");
        Self { id, json: json.into() }
    }
}

/// Messages that a reader asked for and cannot have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The line.
    pub line: String,
    /// What the reader had seen.
    pub from: String,
    /// The first that is still kept.
    pub oldest: String,
    /// `swept`, `epoch`, `ahead` or `check`.
    pub reason: &'static str,
}

impl Gap {
    /// Messages between these two are no longer kept.
    pub(crate) fn swept(line: &str, from: &EventId, oldest: &EventId) -> Self {
        Self { line: line.to_owned(), from: from.to_string(), oldest: oldest.to_string(), reason: "swept" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(body: &str, is_json: bool) -> Stored {
        Stored {
            line: 1,
            number: 7,
            broker_message_id: "01ARYZ6S410000000000000000".to_owned(),
            client_message_id: "a".to_owned(),
            sender: "alice".to_owned(),
            body: body.as_bytes().to_vec(),
            is_json,
            content_type: None,
            client_tx_id: Some("tx".to_owned()),
            supersedes: None,
            created_at: 0,
            is_moderated: false,
        }
    }

    #[test]
    fn bodies_are_shown_as_they_came_and_hidden_when_moderated() {
        let json = |stored: &Stored| -> serde_json::Value {
            serde_json::from_slice(&Event::of("topic:t", 1, stored).json).unwrap()
        };
        let shown = json(&stored(r#"{"a": 1.50}"#, true));
        assert_eq!(shown["body"]["a"], 1.5);
        assert_eq!(shown["client_tx_id"], "tx");
        assert_eq!(shown["line"], "topic:t");
        assert!(shown["id"].as_str().unwrap().starts_with("1.7."));
        let exact = Event::of("topic:t", 1, &stored("9007199254740993.10", true));
        assert!(String::from_utf8_lossy(&exact.json).contains("9007199254740993.10"), "digits are kept");
        assert_eq!(json(&stored("hi", false))["body_base64"], "aGk=");
        let hidden = json(&Stored { is_moderated: true, ..stored("1", true) });
        assert!(hidden.get("body").is_none() && hidden.get("body_base64").is_none());
        assert_eq!(hidden["moderated"], true);
    }
}
