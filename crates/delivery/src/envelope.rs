//! What a caller hands in, checked. Past here a message is well formed, carries no credential and has its fingerprint.
//! Nothing that is refused here uses up an id.

use std::borrow::Cow;
use std::fmt;

use semel_contract::fingerprint::{Form, Input, Parts, Recipe};
use semel_contract::json::{Document, Json, Pointer};
use semel_contract::key::{Key, Source};
use semel_contract::profile::{Generator, Lane, Profile, presets};
use semel_contract::request::Body;
use semel_contract::time::Timestamp;

use crate::Entropy;
use crate::limits::{HEADERS_BYTES_MAX, NAME_CHARS_MAX, URL_BYTES_MAX};
use crate::message::{Enqueue, Request};
use crate::settings::Settings;
use crate::url::{BadUrl, Target};

/// The header that carries the key where a profile names none.
pub const KEY_HEADER: &str = "Idempotency-Key";
/// The header by which a client recognises its own echo.
pub const TX_HEADER: &str = "X-Client-Tx-Id";

/// A message that may be accepted.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Its id and key.
    pub client_message_id: String,
    /// Whether the caller chose it.
    pub is_callers: bool,
    /// For the echo.
    pub client_tx_id: String,
    /// What the id is used for.
    pub fingerprint: [u8; 32],
    /// On whose behalf.
    pub principal: String,
    /// Its queue.
    pub lane: String,
    /// The action.
    pub logical_key: Option<String>,
    /// What kind of action it is: the id is unique for its principal and this alone.
    pub operation: Option<String>,
    /// Its profile; empty for the outbox's.
    pub profile: String,
    /// When it happened.
    pub client_generated_at: Timestamp,
    /// What is sent.
    pub request: Request,
}

/// Why a message is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not well formed.
    Malformed(String),
    /// It is too large.
    TooLarge(String),
    /// It carries a credential.
    Credential(String),
    /// It is a path, and there is no upstream.
    NoUpstream,
    /// It is for a topic or a member, and there is no broker.
    NoBroker,
}

impl Refused {
    /// The code that callers see.
    pub fn code(&self) -> &'static str {
        match self {
            Refused::Malformed(_) => "malformed",
            Refused::TooLarge(_) => "too-large",
            Refused::Credential(_) => "credential-in-request",
            Refused::NoUpstream => "no-upstream",
            Refused::NoBroker => "no-broker",
        }
    }

    /// The status that callers see.
    pub fn status(&self) -> u16 {
        match self {
            Refused::Malformed(_) => 400,
            Refused::TooLarge(_) => 413,
            Refused::Credential(_) | Refused::NoUpstream | Refused::NoBroker => 422,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Malformed(why) | Refused::TooLarge(why) => f.write_str(why),
            Refused::Credential(where_it_is) => write!(
                f,
                "{where_it_is} is a credential, and credentials are never stored: give it to the outbox for its origin, with \
                 --credential ORIGIN=file:PATH, --credential ORIGIN=command:COMMAND or POST /v1/credentials; it is stamped \
                 on each attempt"
            ),
            Refused::NoUpstream => write!(f, "{}", BadUrl::NoUpstream),
            Refused::NoBroker => f.write_str(
                "a topic or a member needs a broker: say [outbox] broker = URL and mesh = NAME in semel.toml",
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// The header that carries the key in this profile.
pub fn key_header(profile: &Profile) -> &str {
    let named = profile.key.sources.iter().find_map(|source| match source {
        Source::Header(name) => Some(name.as_str()),
        Source::Json(_) => None,
    });
    named.unwrap_or(KEY_HEADER)
}

/// What stands between the parts of an id that is one principal's for one kind of action. No part can contain it.
const SCOPE_MARK: char = '\u{1f}';

/// The id under which the store keeps such a message: the key is its first part.
pub(crate) fn scoped_id(key: &str, principal: &str, operation: &str) -> String {
    format!("{key}{SCOPE_MARK}{principal}{SCOPE_MARK}{operation}")
}

/// The key of an id of the store, and its kind of action.
pub(crate) fn parts_of_id(stored: String) -> (String, Option<String>) {
    let mut parts = stored.splitn(3, SCOPE_MARK);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(key), Some(_), Some(operation)) => (key.to_owned(), Some(operation.to_owned())),
        _ => (stored, None),
    }
}

impl Draft {
    /// The id under which the store keeps it.
    pub(crate) fn stored_id(&self) -> Cow<'_, str> {
        match &self.operation {
            None => Cow::Borrowed(&self.client_message_id),
            Some(operation) => Cow::Owned(scoped_id(&self.client_message_id, &self.principal, operation)),
        }
    }

    /// Checks what a caller hands in.
    pub fn of(
        enqueue: Enqueue,
        settings: &Settings,
        now: Timestamp,
        entropy: &Entropy,
    ) -> Result<Self, Refused> {
        let malformed = |why: String| Refused::Malformed(why);
        let profile = match enqueue.profile.as_deref() {
            None | Some("") => Cow::Borrowed(&settings.profile),
            Some(name) => presets::preset(name)
                .map(Cow::Owned)
                .ok_or_else(|| malformed(format!("there is no profile {name:?}")))?,
        };
        let mut request = enqueue.request;
        check_request(&request, settings)?;
        let (id, tx_id) = take_own_headers(&mut request, &profile, enqueue.client_message_id)?;
        if let Some(id) = &id {
            Key::parse(&profile.key.format, id)
                .map_err(|problem| malformed(format!("client_message_id: {}", problem.detail)))?;
        }
        for (name, value) in [
            ("lane", &enqueue.lane),
            ("principal", &enqueue.principal),
            ("logical_key", &enqueue.logical_key),
            ("operation", &enqueue.operation),
        ] {
            if let Some(value) = value {
                check_name(name, value)?;
            }
        }
        if enqueue.operation.is_some() && !(profile.scope.principal && profile.scope.endpoint) {
            return Err(malformed(format!(
                "operation: servers of profile {} know one use of a key, so that an id cannot be used once for each operation",
                profile.name
            )));
        }
        let principal = enqueue.principal.unwrap_or_else(|| "default".to_owned());
        let is_callers = id.is_some();
        let id = id.unwrap_or_else(|| profile.generator.mint(entropy.bits(), now).as_str().to_owned());
        let lane = enqueue.lane.unwrap_or_else(|| match profile.lane {
            Lane::Independent => format!("message:{id}"),
            Lane::Fifo | Lane::Coalesce(_) => principal.clone(),
        });
        let client_generated_at = enqueue.client_generated_at.unwrap_or(now);
        // By what the caller gave: the same action again is the same, whenever it comes.
        let fingerprint = fingerprint(&request, &principal, &profile);
        if let Some(guard) = &profile.guard {
            stamp(&mut request, &guard.generated_at, client_generated_at);
        }
        Ok(Self {
            fingerprint,
            client_message_id: id,
            is_callers,
            client_tx_id: tx_id
                .unwrap_or_else(|| Generator::Uuid4.mint(entropy.bits(), now).as_str().to_owned()),
            principal,
            lane,
            logical_key: enqueue.logical_key,
            operation: enqueue.operation,
            profile: enqueue.profile.unwrap_or_default(),
            client_generated_at,
            request,
        })
    }
}

/// Writes into a JSON body when the action happened, where the caller left that out and its place is a member of the body
/// itself. The rest stays as it was written.
fn stamp(request: &mut Request, place: &Pointer, at: Timestamp) {
    let text = place.to_string();
    let Some(name) = text.strip_prefix('/').filter(|name| !name.contains(['/', '~'])) else { return };
    let is_json =
        request.header("content-type").is_some_and(|kind| kind.to_ascii_lowercase().contains("json"));
    let Ok(document) = Document::parse(&request.body) else { return };
    if !is_json || !matches!(document.root, Json::Object(_)) || document.root.get(place).is_some() {
        return;
    }
    let end = request.body.iter().rposition(|byte| *byte == b'}').expect("an object ends with its brace");
    let last = request.body[..end].iter().rfind(|byte| !byte.is_ascii_whitespace());
    let comma = if last == Some(&b'{') { "" } else { "," };
    let member = format!("{comma}{}:\"{at}\"", serde_json::Value::from(name));
    request.body.splice(end..end, member.into_bytes());
}

fn check_name(what: &str, value: &str) -> Result<(), Refused> {
    let is_good = (1..=NAME_CHARS_MAX).contains(&value.chars().count()) && !value.contains(char::is_control);
    match is_good {
        true => Ok(()),
        false => {
            Err(Refused::Malformed(format!("{what} must have 1 to {NAME_CHARS_MAX} printable characters")))
        }
    }
}

fn check_request(request: &Request, settings: &Settings) -> Result<(), Refused> {
    let malformed = |why: String| Err(Refused::Malformed(why));
    let is_method =
        http::Method::from_bytes(request.method.as_bytes()).is_ok_and(|method| method != "CONNECT");
    if !is_method {
        return malformed(format!("{:?} is not a method that can be sent", request.method));
    }
    if request.url.len() > URL_BYTES_MAX {
        return Err(Refused::TooLarge(format!("the address is longer than {URL_BYTES_MAX} bytes")));
    }
    Target::resolve(&request.url, settings.upstream.as_ref()).map_err(|error| match error {
        BadUrl::Malformed(_) => Refused::Malformed(format!("url: {error}")),
        BadUrl::NoUpstream => Refused::NoUpstream,
        BadUrl::Credential => Refused::Credential("the user name in url".to_owned()),
    })?;
    if request.body.len() > settings.payload_bytes_max {
        return Err(Refused::TooLarge(format!(
            "the body is larger than {} bytes",
            settings.payload_bytes_max
        )));
    }
    let bytes: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        return Err(Refused::TooLarge(format!("the headers are larger than {HEADERS_BYTES_MAX} bytes")));
    }
    for (name, value) in &request.headers {
        let lower = name.to_ascii_lowercase();
        if http::HeaderName::from_bytes(name.as_bytes()).is_err()
            || http::HeaderValue::from_str(value).is_err()
        {
            return malformed(format!("{name:?} is not a header that can be sent"));
        }
        if matches!(lower.as_str(), "authorization" | "cookie" | "proxy-authorization") {
            return Err(Refused::Credential(format!("{name} in request.headers")));
        }
        let is_connections = matches!(
            lower.as_str(),
            "host"
                | "content-length"
                | "transfer-encoding"
                | "connection"
                | "keep-alive"
                | "upgrade"
                | "te"
                | "trailer"
                | "expect"
                | "proxy-connection"
                | "idempotency-first-sent"
                | "semel-supersedes"
        );
        if is_connections {
            return malformed(format!("{name} is set by the outbox and cannot be given"));
        }
    }
    Ok(())
}

/// A key or transaction id among the headers is the message's own, not a header to send beside it.
fn take_own_headers(
    request: &mut Request,
    profile: &Profile,
    id: Option<String>,
) -> Result<(Option<String>, Option<String>), Refused> {
    let mut take = |name: &str| -> Result<Option<String>, Refused> {
        let is_it = |line: &(String, String)| line.0.eq_ignore_ascii_case(name);
        let values: Vec<String> =
            request.headers.iter().filter(|line| is_it(line)).map(|line| line.1.clone()).collect();
        request.headers.retain(|line| !is_it(line));
        match values.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.trim().trim_matches('"').to_owned())),
            _ => Err(Refused::Malformed(format!("{name} is given twice"))),
        }
    };
    let key = take(key_header(profile))?;
    let tx_id = take(TX_HEADER)?;
    match (id, key) {
        (Some(id), Some(key)) if id != key => Err(Refused::Malformed(
            "client_message_id and the key among the headers differ: give one of them".to_owned(),
        )),
        (id, key) => Ok((id.or(key), tx_id)),
    }
}

/// Headers that differ between two tries of one caller and mean nothing.
const VOLATILE: [&str; 6] = ["traceparent", "tracestate", "baggage", "x-request-id", "user-agent", "date"];

/// What a message asks for: method, address, meaningful headers, principal and body.
pub fn fingerprint(request: &Request, principal: &str, profile: &Profile) -> [u8; 32] {
    let mut headers: Vec<(String, &str)> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
        .filter(|(name, _)| !VOLATILE.contains(&name.as_str()))
        .collect();
    headers.sort();
    let params: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let recipe = Recipe {
        inputs: vec![Input::Method, Input::Route, Input::Params, Input::Principal, Input::Body],
        exclude: profile.fingerprint.as_ref().map(|recipe| recipe.exclude.clone()).unwrap_or_default(),
        include: Vec::new(),
    };
    let content_type = request.header("content-type").map(str::as_bytes);
    let body = Body::new(content_type, &request.body);
    // A body that is not JSON counts as it is, also where members would be left out.
    let form = recipe.form(&body).unwrap_or_else(|_| Form::Raw((&request.body).into()));
    let parts = Parts { method: &request.method, route: &request.url, params: &params, query: "", principal };
    recipe.fingerprint(&parts, &form, None).bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(change: impl FnOnce(&mut Enqueue)) -> Result<Draft, Refused> {
        let settings = Settings {
            upstream: Some(Target::absolute("http://127.0.0.1:1").unwrap()),
            payload_bytes_max: 100,
            ..Settings::default()
        };
        let mut enqueue = Enqueue::new(Request::json("POST", "/notes", r#"{"a":1,"b":2}"#));
        change(&mut enqueue);
        Draft::of(enqueue, &settings, Timestamp::from_millis(0), &Entropy::from_fn(|| 7))
    }

    fn with_header(name: &str, value: &str) -> Result<Draft, Refused> {
        draft(|enqueue| enqueue.request.headers.push((name.to_owned(), value.to_owned())))
    }

    #[test]
    fn equal_requests_have_equal_fingerprints_and_others_do_not() {
        let plain = draft(|_| ()).unwrap().fingerprint;
        let same = draft(|enqueue| enqueue.request.body = br#"{ "b": 2, "a": 1.0 }"#.to_vec()).unwrap();
        assert_eq!(same.fingerprint, plain, "spelling does not matter");
        assert_eq!(with_header("traceparent", "00-1").unwrap().fingerprint, plain);
        let changes: [fn(&mut Enqueue); 5] = [
            |enqueue| enqueue.request.body = br#"{"a":1,"b":3}"#.to_vec(),
            |enqueue| enqueue.request.url = "/notes2".to_owned(),
            |enqueue| enqueue.request.method = "PUT".to_owned(),
            |enqueue| enqueue.principal = Some("bob".to_owned()),
            |enqueue| enqueue.request.headers.push(("X-Mode".to_owned(), "b".to_owned())),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_ne!(draft(change).unwrap().fingerprint, plain, "change {at}");
        }
    }

    /// The example of `spec/contract.md`, whose value was made with the reference implementation's framing.
    #[test]
    fn the_fingerprint_is_the_contracts() {
        let draft = draft(|enqueue| {
            enqueue.principal = Some("anna".to_owned());
            enqueue.request = Request::json("POST", "/notes", r#"{"b": 2, "a": 1}"#);
            enqueue.request.headers.extend([
                ("X-Mode".to_owned(), "b".to_owned()),
                ("Traceparent".to_owned(), "00-1".to_owned()),
                ("Idempotency-Key".to_owned(), "\"k-1\"".to_owned()),
                ("X-Client-Tx-Id".to_owned(), "t-1".to_owned()),
            ]);
        });
        let hex: String = draft.unwrap().fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let contract = include_str!("../../../spec/contract.md");
        assert!(contract.contains(&format!("`{hex}`")), "{hex}");
        assert_eq!(hex, "cc4c12fde0e9c73200a735d1bcfd11193fcf8e97f33dc31e87f768cfb654902f");
    }

    /// Bytes that are no text are told apart, also where a reader of text would show the same sign for both.
    #[test]
    fn bodies_that_are_not_text_have_fingerprints_of_their_own() {
        let of = |body: &[u8]| {
            let draft = draft(|enqueue| {
                enqueue.request.headers =
                    vec![("content-type".to_owned(), "application/octet-stream".to_owned())];
                enqueue.request.body = body.to_vec();
            });
            draft.unwrap().fingerprint
        };
        assert_ne!(of(&[0xff, 0x00]), of(&[0xfe, 0x00]));
        assert_ne!(of("\u{fffd}".as_bytes()), of(&[0xff]));
        assert_eq!(of(&[0xff, 0x00]), of(&[0xff, 0x00]));
    }

    #[test]
    fn credentials_and_the_connections_own_headers_are_refused() {
        for name in ["Authorization", "cookie", "Proxy-Authorization"] {
            let refused = with_header(name, "x").unwrap_err();
            assert_eq!((refused.status(), refused.code()), (422, "credential-in-request"), "{name}");
        }
        for name in ["Host", "content-length", "Connection", "Idempotency-First-Sent", "bad name"] {
            assert_eq!(with_header(name, "x").unwrap_err().status(), 400, "{name}");
        }
        let in_url = draft(|enqueue| enqueue.request.url = "http://u:p@h/".to_owned()).unwrap_err();
        assert_eq!(in_url.code(), "credential-in-request");
    }

    #[test]
    fn limits_and_names_are_checked() {
        assert_eq!(draft(|enqueue| enqueue.request.body = vec![b'x'; 101]).unwrap_err().status(), 413);
        assert_eq!(draft(|enqueue| enqueue.lane = Some(String::new())).unwrap_err().status(), 400);
        assert_eq!(
            draft(|enqueue| enqueue.client_message_id = Some("a\nb".to_owned())).unwrap_err().status(),
            400
        );
        assert_eq!(draft(|enqueue| enqueue.profile = Some("nobody".to_owned())).unwrap_err().status(), 400);
        assert_eq!(draft(|enqueue| enqueue.request.method = "GET /".to_owned()).unwrap_err().status(), 400);
    }

    #[test]
    fn a_key_among_the_headers_is_the_id() {
        let taken = with_header("Idempotency-Key", "\"k-1\"").unwrap();
        assert_eq!(taken.client_message_id, "k-1");
        assert_eq!(taken.request.header("idempotency-key"), None);
        let both = draft(|enqueue| {
            enqueue.client_message_id = Some("other".to_owned());
            enqueue.request.headers.push(("Idempotency-Key".to_owned(), "k-1".to_owned()));
        });
        assert_eq!(both.unwrap_err().status(), 400);
    }
}
