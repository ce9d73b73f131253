//! A message as its sender hands it over: where it goes, what it says, and the fingerprint of both. Parses at the door; past
//! it a [`Draft`] is proof that names, sizes and the id were checked. Pure.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_contract::fingerprint::{Fingerprint, Form, Input, Parts, Recipe};
use semel_contract::json::Pointer;
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::request::Body;
use semel_contract::time::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::limits::{MENTIONS_MAX, NAME_CHARS_MAX};
use crate::published::Refusal;

/// The endpoint at which messages are published, as fingerprints and seals name it.
pub const ROUTE: &str = "/v1/meshes/{mesh}/messages";

/// What counts in a fingerprint: all that the profile `mesh` counts, without what a retry may say differently.
static RECIPE: LazyLock<Recipe> = LazyLock::new(|| {
    let exclude = ["/client_message_id", "/client_tx_id", "/supersedes"];
    let inputs = presets::mesh().fingerprint.map_or_else(|| Input::ALL.to_vec(), |recipe| recipe.inputs);
    let exclude = exclude.iter().filter_map(|pointer| Pointer::parse(pointer).ok()).collect();
    Recipe { inputs, exclude, include: Vec::new() }
});

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// To everybody who is subscribed to a topic.
    Topic(String),
    /// To one member.
    Member(String),
}

impl Destination {
    /// `topic` or `member`.
    pub fn kind(&self) -> &'static str {
        match self {
            Destination::Topic(_) => "topic",
            Destination::Member(_) => "member",
        }
    }

    /// The topic's or the member's name.
    pub fn name(&self) -> &str {
        match self {
            Destination::Topic(name) | Destination::Member(name) => name,
        }
    }
}

/// What a message says. The broker does not look into it, but for the words of the search index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// JSON, as it was written.
    Json(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Payload {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Bytes(bytes) => bytes,
        }
    }

    /// `json` or `bytes`.
    pub fn kind(&self) -> &'static str {
        match self {
            Payload::Json(_) => "json",
            Payload::Bytes(_) => "bytes",
        }
    }
}

/// A message that can be published.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The sender's own id of it.
    pub client_message_id: Key,
    /// Where it goes.
    pub destination: Destination,
    /// What it says.
    pub payload: Payload,
    /// What the payload is, in its sender's words.
    pub content_type: Option<String>,
    /// Who is mentioned, each once.
    pub mentions: Vec<String>,
    /// The sender's tag, by which it knows its own echo.
    pub client_tx_id: Option<String>,
    /// The id of the message whose place this one takes.
    pub supersedes: Option<String>,
    /// What it asks for, hashed, with its sender.
    pub fingerprint: Fingerprint,
    /// When its first attempt was sent, where the sender says so.
    pub first_sent: Option<Timestamp>,
}

/// What stands beside a message in its request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// `Idempotency-Key`.
    pub key: Option<&'a str>,
    /// `X-Client-Tx-Id`.
    pub client_tx_id: Option<&'a str>,
    /// `Semel-Supersedes`.
    pub supersedes: Option<&'a str>,
    /// `Idempotency-First-Sent`.
    pub first_sent: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Written<'a> {
    to: To,
    #[serde(borrow, default, deserialize_with = "present")]
    body: Option<&'a RawValue>,
    body_base64: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    mentions: Vec<String>,
    client_tx_id: Option<String>,
    client_message_id: Option<String>,
    supersedes: Option<String>,
}

/// A value that is there, also where it is null.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

#[derive(Deserialize)]
struct To {
    topic: Option<String>,
    member: Option<String>,
}

impl Draft {
    /// Reads one message of this sender. How large it may be is asked only of a message that is not known yet.
    ///
    /// # Errors
    /// It is malformed, or has no id or two.
    pub fn parse(text: &[u8], beside: Beside<'_>, mesh: &str, sender: &str) -> Result<Self, Refusal> {
        let written: Written<'_> = serde_json::from_slice(text)
            .map_err(|error| Refusal::Malformed(format!("the message: {error}")))?;
        let client_message_id = read_id(beside.key, written.client_message_id.as_deref())?;
        let destination = read_destination(written.to)?;
        let payload = read_payload(written.body, written.body_base64.as_deref())?;
        let mentions = read_mentions(written.mentions)?;
        let client_tx_id = short("client_tx_id", written.client_tx_id.as_deref().or(beside.client_tx_id))?;
        let supersedes = short("supersedes", written.supersedes.as_deref().or(beside.supersedes))?;
        let content_type = short("content_type", written.content_type.as_deref())?;
        let fingerprint = fingerprint(text, mesh, sender);
        let first_sent = beside.first_sent;
        Ok(Self {
            client_message_id,
            destination,
            payload,
            content_type,
            mentions,
            client_tx_id,
            supersedes,
            fingerprint,
            first_sent,
        })
    }
}

/// Checks a name of a mesh, member, topic, webhook or consumer.
///
/// # Errors
/// It is empty, too long, or has characters that cannot be shown.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    let is_fine = !name.is_empty()
        && name.chars().count() <= NAME_CHARS_MAX
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    match is_fine {
        true => Ok(()),
        false => Err(Refusal::Malformed(format!(
            "the {what} must have 1 to {NAME_CHARS_MAX} characters, none of them a control character"
        ))),
    }
}

/// Reads an id of a message.
///
/// # Errors
/// It has other than 1 to 255 printable ASCII characters.
pub(crate) fn read_key(text: &str) -> Result<Key, Refusal> {
    Key::parse(&Format::Printable255, text).map_err(|problem| Refusal::Malformed(problem.to_string()))
}

fn read_id(header: Option<&str>, member: Option<&str>) -> Result<Key, Refusal> {
    match (header, member) {
        (Some(header), Some(member)) if header != member => Err(Refusal::Malformed(
            "Idempotency-Key and client_message_id are both there, and they differ".to_owned(),
        )),
        (Some(text), _) | (None, Some(text)) => read_key(text),
        (None, None) => Err(Refusal::Malformed(
            "the message has no id: send Idempotency-Key or client_message_id, and the same one with every retry".to_owned(),
        )),
    }
}

fn read_destination(to: To) -> Result<Destination, Refusal> {
    let destination = match (to.topic, to.member) {
        (Some(topic), None) => Destination::Topic(topic),
        (None, Some(member)) => Destination::Member(member),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Refusal::Malformed("`to` must name either a topic or a member".to_owned()));
        }
    };
    check_name(destination.kind(), destination.name())?;
    Ok(destination)
}

fn read_payload(json: Option<&RawValue>, base64: Option<&str>) -> Result<Payload, Refusal> {
    // Some clients write every member, and null for what is not there.
    let json = json.filter(|json| base64.is_none() || json.get() != "null");
    match (json, base64) {
        // Line breaks can stand between tokens only; without them an event is one line.
        (Some(json), None) => Ok(Payload::Json(json.get().replace(['\n', '\r'], " "))),
        (None, Some(text)) => STANDARD
            .decode(text)
            .map(Payload::Bytes)
            .map_err(|error| Refusal::Malformed(format!("body_base64: {error}"))),
        (Some(_), Some(_)) => Err(Refusal::Malformed("there are both body and body_base64".to_owned())),
        (None, None) => Err(Refusal::Malformed("there is neither body nor body_base64".to_owned())),
    }
}

fn read_mentions(mut mentions: Vec<String>) -> Result<Vec<String>, Refusal> {
    if mentions.len() > MENTIONS_MAX {
        return Err(Refusal::Malformed(format!("a message mentions at most {MENTIONS_MAX} members")));
    }
    mentions.iter().try_for_each(|member| check_name("mentioned member", member))?;
    mentions.sort_unstable();
    mentions.dedup();
    Ok(mentions)
}

fn short(what: &str, text: Option<&str>) -> Result<Option<String>, Refusal> {
    match text {
        None => Ok(None),
        Some(text) if text.len() <= 255 && !text.chars().any(char::is_control) => Ok(Some(text.to_owned())),
        Some(_) => Err(Refusal::Malformed(format!("{what} must have at most 255 characters"))),
    }
}

/// What a message asks for, hashed: destination, body and mentions as they stand in it, and its sender. The id itself and the
/// sender's tag do not count, so that it is the same message however they are told.
fn fingerprint(text: &[u8], mesh: &str, sender: &str) -> Fingerprint {
    let recipe = &*RECIPE;
    let body = Body::new(Some(b"application/json"), text);
    // Numbers that JSON readers do not agree upon: then the text itself counts.
    let form = recipe.form(&body).unwrap_or_else(|_| Form::Raw(text.into()));
    let parts =
        Parts { method: "POST", route: ROUTE, params: &[("mesh", mesh)], query: "", principal: sender };
    recipe.fingerprint(&parts, &form, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, key: Option<&str>) -> Result<Draft, Refusal> {
        Draft::parse(text.as_bytes(), Beside { key, ..Beside::default() }, "m", "alice")
    }

    #[test]
    fn the_id_stands_in_the_header_or_in_the_message_and_both_are_one_message() {
        let header = parse(r#"{"to":{"topic":"t"},"body":1}"#, Some("a")).unwrap();
        let member = parse(r#"{"to":{"topic":"t"},"body":1,"client_message_id":"a"}"#, None).unwrap();
        assert_eq!(header.client_message_id, member.client_message_id);
        assert!(header.fingerprint.same(&member.fingerprint));
        let both = parse(r#"{"to":{"topic":"t"},"body":1,"client_message_id":"a"}"#, Some("b"));
        assert!(matches!(both, Err(Refusal::Malformed(_))));
        assert!(matches!(parse(r#"{"to":{"topic":"t"},"body":1}"#, None), Err(Refusal::Malformed(_))));
    }

    #[test]
    fn another_body_destination_mention_or_sender_is_another_message() {
        let first = parse(r#"{"to":{"topic":"t"},"body":{"a":1,"b":2}}"#, Some("a")).unwrap();
        let spaced = parse(r#"{ "to": {"topic":"t"}, "body": {"b":2,"a":1.0} }"#, Some("a")).unwrap();
        assert!(first.fingerprint.same(&spaced.fingerprint), "spaces and order do not count");
        for other in [
            r#"{"to":{"topic":"t"},"body":{"a":1,"b":3}}"#,
            r#"{"to":{"topic":"u"},"body":{"a":1,"b":2}}"#,
            r#"{"to":{"member":"t"},"body":{"a":1,"b":2}}"#,
            r#"{"to":{"topic":"t"},"body":{"a":1,"b":2},"mentions":["x"]}"#,
        ] {
            assert!(!parse(other, Some("a")).unwrap().fingerprint.same(&first.fingerprint), "{other}");
        }
        let text = br#"{"to":{"topic":"t"},"body":{"a":1,"b":2}}"#;
        let beside = Beside { key: Some("a"), ..Beside::default() };
        let bob = Draft::parse(text, beside, "m", "bob").unwrap();
        assert!(!bob.fingerprint.same(&first.fingerprint));
    }

    #[test]
    fn integers_that_readers_round_are_told_apart() {
        let body = |number: &str| format!(r#"{{"to":{{"topic":"t"}},"body":{number}}}"#);
        let one = parse(&body("9007199254740993"), Some("a")).unwrap();
        let other = parse(&body("9007199254740992"), Some("a")).unwrap();
        assert!(!one.fingerprint.same(&other.fingerprint));
    }

    #[test]
    fn the_json_null_is_a_body() {
        let null = parse(r#"{"to":{"topic":"t"},"body": null}"#, Some("a")).unwrap();
        assert_eq!(null.payload, Payload::Json("null".to_owned()));
        let beside = parse(r#"{"to":{"topic":"t"},"body":null,"body_base64":"AA=="}"#, Some("a")).unwrap();
        assert_eq!(beside.payload, Payload::Bytes(vec![0]), "a null beside bytes says nothing");
    }

    #[test]
    fn what_is_malformed_is_refused_as_such() {
        for text in [
            "",
            "[]",
            r#"{"body":1}"#,
            r#"{"to":{},"body":1}"#,
            r#"{"to":{"queue":"t"},"body":1}"#,
            r#"{"to":{"topic":"t","member":"m"},"body":1}"#,
            r#"{"to":{"topic":""},"body":1}"#,
            r#"{"to":{"topic":"t"}}"#,
            r#"{"to":{"topic":"t"},"body":1,"body_base64":"AA=="}"#,
            r#"{"to":{"topic":"t"},"body_base64":"%"}"#,
        ] {
            assert!(matches!(parse(text, Some("a")), Err(Refusal::Malformed(_))), "{text}");
        }
    }
}
