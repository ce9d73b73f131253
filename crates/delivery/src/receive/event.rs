//! What a broker's event says: a message for the inbox, or a gap. Pure.

use base64::Engine as _;
use semel_contract::time::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::frames::Frame;
use crate::message::{BodyKind, Came, Gap, Published, Received};

#[derive(Deserialize)]
struct Data {
    id: Option<String>,
    line: String,
    broker_message_id: String,
    client_message_id: String,
    sender: String,
    client_tx_id: Option<String>,
    supersedes: Option<String>,
    #[serde(default, deserialize_with = "is_there")]
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
    content_type: Option<String>,
    created_at: Option<String>,
}

/// A body that is there: `null` is one, too.
fn is_there<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

#[derive(Deserialize)]
struct GapData {
    #[serde(default)]
    from: String,
    #[serde(default)]
    oldest: String,
    #[serde(default)]
    reason: String,
}

/// What came on a line, for the inbox. Empty where there was nothing but signs of life.
pub(super) fn came(mesh: &str, line: &str, frames: Vec<Frame>, now: Timestamp) -> Result<Came, String> {
    let mut came = Came { mesh: mesh.to_owned(), line: line.to_owned(), ..Came::default() };
    for frame in frames {
        if frame.id.is_empty() {
            return Err("an event has no id, by which its line could go on".to_owned());
        }
        match frame.event.as_str() {
            "gap" => came.gaps.push(gap(mesh, line, &frame, now)?),
            "" | "message" => came.messages.push(message(mesh, &frame, now)?),
            // What a later release says besides is no message.
            _ => {}
        }
        came.cursor = frame.id;
    }
    Ok(came)
}

fn message(mesh: &str, frame: &Frame, now: Timestamp) -> Result<Received, String> {
    let data: Data = serde_json::from_str(&frame.data)
        .map_err(|error| format!("event {} is no message: {error}", frame.id))?;
    let (body, payload) = match (data.body, data.body_base64) {
        (Some(json), _) => (BodyKind::Json, json.get().as_bytes().to_vec()),
        (None, Some(text)) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            (BodyKind::Bytes, bytes.map_err(|error| format!("event {}: body_base64: {error}", frame.id))?)
        }
        (None, None) => (BodyKind::Hidden, Vec::new()),
    };
    Ok(Received {
        mesh: mesh.to_owned(),
        sender: data.sender,
        message_id: data.client_message_id,
        supersedes: data.supersedes,
        received_at: now,
        payload,
        about: Some(Published {
            line: data.line,
            event_id: data.id.unwrap_or_else(|| frame.id.clone()),
            broker_message_id: data.broker_message_id,
            client_tx_id: data.client_tx_id,
            content_type: data.content_type,
            created_at: data.created_at,
            body,
        }),
        ..Received::default()
    })
}

fn gap(mesh: &str, line: &str, frame: &Frame, now: Timestamp) -> Result<Gap, String> {
    let data: GapData =
        serde_json::from_str(&frame.data).map_err(|error| format!("gap {}: {error}", frame.id))?;
    Ok(Gap {
        number: 0,
        at: now,
        mesh: mesh.to_owned(),
        line: line.to_owned(),
        since: data.from,
        oldest: data.oldest,
        reason: data.reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, id: &str, data: &str) -> Frame {
        Frame { event: event.to_owned(), id: id.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn what_came_goes_as_far_as_its_last_event() {
        let text = r#"{"id":"1.1.00ff","line":"topic:news","broker_message_id":"B","client_message_id":"m1",
            "sender":"bob","client_tx_id":"t","supersedes":"m0","body":{"a": 1.50},"created_at":"2026-01-01T00:00:00Z"}"#;
        let gap = r#"{"line":"topic:news","from":"1.1.00ff","oldest":"1.9.0000","reason":"swept"}"#;
        let frames = vec![frame("", "1.1.00ff", text), frame("gap", "1.8.0000", gap)];
        let came = came("team", "topic:news", frames, Timestamp::from_millis(5)).unwrap();
        assert_eq!((came.cursor.as_str(), came.messages.len(), came.gaps.len()), ("1.8.0000", 1, 1));
        let message = &came.messages[0];
        assert_eq!(message.payload, br#"{"a": 1.50}"#, "as it was written");
        assert_eq!((message.mesh.as_str(), message.supersedes.as_deref()), ("team", Some("m0")));
        assert_eq!(came.gaps[0].reason, "swept");
    }

    #[test]
    fn a_body_that_is_null_is_one_and_one_that_is_hidden_is_none() {
        let read = |body: &str| {
            let text = format!(
                r#"{{"line":"direct","broker_message_id":"B","client_message_id":"m","sender":"bob"{body}}}"#
            );
            let came = came("team", "direct", vec![frame("", "1.1.00ff", &text)], Timestamp::from_millis(5));
            let message = came.unwrap().messages.remove(0);
            (message.about.unwrap().body, message.payload)
        };
        assert_eq!(read(r#","body":null"#), (BodyKind::Json, b"null".to_vec()));
        assert_eq!(read(r#","body_base64":"aGk=""#), (BodyKind::Bytes, b"hi".to_vec()));
        assert_eq!(read(r#","moderated":true"#), (BodyKind::Hidden, vec![]));
    }

    #[test]
    fn what_is_no_event_is_refused_and_moves_no_cursor() {
        for frame in [frame("", "", "{}"), frame("", "1.1.00ff", "[]"), frame("gap", "1.1.00ff", "x")] {
            assert!(came("team", "direct", vec![frame], Timestamp::from_millis(0)).is_err());
        }
        let beats = came("team", "direct", vec![], Timestamp::from_millis(0)).unwrap();
        assert!(beats.cursor.is_empty());
    }
}
