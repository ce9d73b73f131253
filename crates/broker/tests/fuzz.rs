//! What members may send to a broker: messages, ids of events, tickets, cursors, endpoints. Each is read, or refused with an answer
//! that says so; what is read is what another reader finds in it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use semel_broker::{
    Beside, Broker, Destination, Draft, EventId, Identity, MeshWish, Parts, Payload, Role, Settings,
    database, listen_router,
};
use semel_fuzz::{Target, Verdict};
use semel_store::clock::SystemClock;
use serde_json::Value;
use tower::ServiceExt;

fn read(text: &[u8]) -> Result<Draft, String> {
    let beside = Beside { key: Some("id"), ..Beside::default() };
    Draft::parse(text, beside, "m", "alice").map_err(|refusal| format!("{refusal:?}"))
}

#[test]
fn fuzz_message() {
    let words = [
        "\"to\":",
        "\"topic\":",
        "\"member\":",
        "\"body\":",
        "\"body_base64\":",
        "null",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "\\u0000",
        "\n",
        "1e999",
        "\"client_message_id\":\"id\"",
        "\"mentions\":[\"bob\"]",
        "\"supersedes\":\"x\"",
    ];
    Target::new("broker-message")
        .words(&words)
        .seed(r#"{"to":{"topic":"t"},"body":{"a":[1,2.50,null]},"mentions":["bob","bob"]}"#)
        .seed(r#"{"to":{"member":"bob"},"body_base64":"aGk=","client_message_id":"id","content_type":"text/plain"}"#)
        .seed("{\"to\":{\"topic\":\"t\"},\n \"body\": null}")
        .run(message);
}

fn message(text: &[u8]) -> Verdict {
    let Ok(draft) = read(text) else { return Ok("refused".into()) };
    let again = read(text).map_err(|why| format!("it is read once and not twice: {why}"))?;
    if !draft.fingerprint.same(&again.fingerprint) || draft.client_message_id.as_str() != "id" {
        return Err("read twice, it is another message".to_owned());
    }
    // Numbers beyond what this reader can hold are passed on as they are.
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return Ok("beyond another reader".into()) };
    let named = match &draft.destination {
        Destination::Topic(name) => value["to"]["topic"] == name.as_str() && value["to"]["member"].is_null(),
        Destination::Member(name) => value["to"]["member"] == name.as_str() && value["to"]["topic"].is_null(),
    };
    if !named {
        return Err(format!("it goes to {:?}", draft.destination));
    }
    match &draft.payload {
        Payload::Json(text) if text.contains(['\n', '\r']) => {
            Err("an event of it would have two lines".to_owned())
        }
        Payload::Json(text) => match serde_json::from_str::<Value>(text) {
            Ok(body) if body == value["body"] => Ok("json".into()),
            other => Err(format!("the body {} is read as {other:?}", value["body"])),
        },
        Payload::Bytes(_) if value["body_base64"].is_string() => Ok("bytes".into()),
        Payload::Bytes(bytes) => Err(format!("{bytes:?} come from nowhere")),
    }
}

#[test]
fn fuzz_event_id() {
    Target::new("broker-event-id")
        .words(&[".", "0", "ffff", "+", "-", "9223372036854775807"])
        .seed("1.2.00ff")
        .run(|text| {
            let Ok(text) = std::str::from_utf8(text) else { return Ok("no text".into()) };
            let Ok(id) = text.parse::<EventId>() else { return Ok("refused".into()) };
            match id.to_string().parse::<EventId>() {
                Ok(again) if again == id && id.epoch >= 0 && id.number >= 0 => Ok("read".into()),
                other => Err(format!("{id} is read as {other:?}")),
            }
        });
}

/// A mesh with one member, who is known by a header.
struct World {
    router: Router,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let router = runtime.block_on(async {
            let db = Arc::new(database::memory(Arc::new(SystemClock)).unwrap());
            let broker = Broker::open(Parts::new(db), Settings::default()).await.unwrap();
            broker.put_mesh("m", MeshWish { bytes_max: None, search: true }).await.unwrap();
            // The SHA-256 of `t`.
            let token = "e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8".to_owned();
            broker.put_member("m", "bob", Role::Member, &[token]).await.unwrap();
            broker.put_topic("m", "t", "subscribers").await.unwrap();
            broker.put_subscription("m", "t", "bob").await.unwrap();
            listen_router(broker, Identity::Tokens, None)
        });
        Self { router, runtime }
    }

    fn ask(&self, method: Method, path: &str, headers: &[(&str, &[u8])]) -> Option<StatusCode> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).ok()?;
        let asked = self.router.clone().oneshot(request);
        Some(self.runtime.block_on(asked).unwrap_or_else(|never| match never {}).status())
    }
}

/// One byte says which door it is, the others what is said at it.
#[test]
fn fuzz_doors() {
    let world = World::new();
    let by: (&str, &[u8]) = ("authorization", b"Bearer t");
    Target::new("broker-doors")
        .words(&[
            "%",
            "%2F",
            "POST%20/v1/meshes/m/messages",
            "topic%3At=1.2.00ff",
            ",",
            "=",
            "direct",
            "1.0.0000",
            ".",
        ])
        .seed("aWyJ0b2tlbiIsImFiIiwibSIsMV0.AAAA")
        .seed("bPOST%20/v1/meshes/m/messages")
        .seed("ctopic%3At=1.2.00ff,direct=1.0.0000")
        .seed("d1.2.00ff")
        .seed("edirect")
        .run(|text| {
            let Some((door, said)) = text.split_first() else { return Ok("nothing".into()) };
            let path = |before: &str| std::str::from_utf8(said).ok().map(|said| format!("{before}{said}"));
            let status = match door % 5 {
                2 => path("/v1/meshes/m/topics/t/events?ticket=")
                    .and_then(|path| world.ask(Method::GET, &path, &[])),
                3 => path("/.well-known/semel/keys/a/seal?endpoint=")
                    .and_then(|path| world.ask(Method::POST, &path, &[by])),
                4 => {
                    path("/v1/meshes/m/mentions?after=").and_then(|path| world.ask(Method::GET, &path, &[by]))
                }
                0 => world.ask(Method::GET, "/v1/meshes/m/topics/t/events", &[by, ("last-event-id", said)]),
                _ => path("/v1/meshes/m/events?line=").and_then(|path| world.ask(Method::GET, &path, &[by])),
            };
            match status {
                // The client itself cannot say it.
                None => Ok("unsaid".into()),
                Some(status) if status.is_server_error() => Err(format!("{status}")),
                Some(status) if door % 5 == 2 && status.is_success() => {
                    Err("a ticket that nobody sold".to_owned())
                }
                Some(status) => Ok(format!("{} {status}", door % 5).into()),
            }
        });
}
