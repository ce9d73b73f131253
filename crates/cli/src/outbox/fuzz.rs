//! Any bytes as the envelope of a message: refused, or read as they stand, and never more than what may be sent.

use base64::Engine as _;
use semel_contract::time::Timestamp;
use semel_delivery::envelope::Draft;
use semel_delivery::url::Target as Url;
use semel_delivery::{Enqueue, Entropy, Settings};
use semel_fuzz::{Target, Verdict};
use serde_json::{Value, json};

use super::envelope::read;

#[test]
fn fuzz_envelope() {
    let settings = Settings {
        upstream: Url::absolute("http://127.0.0.1:1").ok(),
        payload_bytes_max: 500,
        ..Settings::default()
    };
    Target::new("envelope")
        .words(&[
            "\"client_message_id\":", "\"lane\":", "\"principal\":", "\"logical_key\":", "\"client_generated_at\":", "\"profile\":", "\"request\":",
            "\"method\":", "\"url\":", "\"headers\":", "\"body\":", "\"body_text\":", "\"body_base64\":", "\"POST\"", "\"CONNECT\"", "\"/x\"", "\"http://a/b\"",
            "\"http://u:p@a/\"", "\"stripe\"", "\"2026-01-01T00:00:00Z\"", "{", "}", "[", "]", ",", "null", "\"Authorization\":\"x\"", "\"Host\":\"x\"",
            "\"Idempotency-Key\":[\"a\",\"b\"]", "\"X-Client-Tx-Id\":\"t\"", "\"Content-Type\":\"text/plain\"", "aGVsbG8=", "\\u0000", "\\r\\n", "1.0", "12345678901234567890", " ",
        ])
        .seed(r#"{"client_message_id":"m1","lane":"a","principal":"p","logical_key":"l","client_generated_at":"2026-01-01T00:00:00Z","profile":"ietf","request":{"method":"POST","url":"/notes","headers":{"X-A":"1","X-B":["1","2"]},"body":{"b":1.0,"a":12345678901234567890}}}"#)
        .seed(r#"{"request":{"method":"PUT","url":"http://127.0.0.1:9/x","body_text":"hi"}}"#)
        .seed(r#"{"request":{"method":"DELETE","url":"/x","headers":{"Idempotency-Key":"\"k-1\""},"body_base64":"aGVsbG8="}}"#)
        .run(|input| {
            let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(input).is_ok();
            let enqueue = match (read(input, None), is_json) {
                (Err(refused), _) => return Ok(format!("not read: {}", refused.code()).into()),
                (Ok(_), false) => return Err("it is read, but is not JSON".to_owned()),
                (Ok(enqueue), true) => enqueue,
            };
            // A number that no double holds is JSON, and is sent as it stands; the other reader refuses it.
            if let Ok(elsewhere) = serde_json::from_slice::<Value>(input) {
                the_body_is_as_it_stood(&enqueue, &elsewhere)?;
            }
            let written = written(&enqueue);
            let again = read(written.as_bytes(), None).map_err(|why| format!("written as {written} it is refused: {why:?}"))?;
            if shown(&again) != shown(&enqueue) {
                return Err(format!("{enqueue:?}, but written anew {again:?}"));
            }
            drafted(enqueue, again, &settings)
        });
}

fn the_body_is_as_it_stood(enqueue: &Enqueue, elsewhere: &Value) -> Result<(), String> {
    let body = &elsewhere["request"]["body"];
    let text = elsewhere["request"]["body_text"].as_str();
    let is_same = match (body, text) {
        (Value::Null, None) => true,
        (Value::Null, Some(text)) => enqueue.request.body == text.as_bytes(),
        (body, _) => serde_json::from_slice::<Value>(&enqueue.request.body).ok().as_ref() == Some(body),
    };
    if is_same { Ok(()) } else { Err(format!("the body is {:?}", enqueue.request.body)) }
}

/// The same envelope, written by somebody else.
fn written(enqueue: &Enqueue) -> String {
    let mut headers = serde_json::Map::new();
    for (name, value) in &enqueue.request.headers {
        let lines = headers.entry(name.clone()).or_insert_with(|| json!([]));
        lines.as_array_mut().expect("a list was put there").push(json!(value));
    }
    let body = base64::engine::general_purpose::STANDARD.encode(&enqueue.request.body);
    json!({
        "request": { "method": enqueue.request.method, "url": enqueue.request.url, "headers": headers, "body_base64": body },
        "client_message_id": enqueue.client_message_id,
        "lane": enqueue.lane,
        "principal": enqueue.principal,
        "logical_key": enqueue.logical_key,
        "client_generated_at": enqueue.client_generated_at.map(|at| at.to_string()),
        "profile": enqueue.profile,
    })
    .to_string()
}

/// Everything that it says; the lines of one header keep their order, headers have none.
fn shown(enqueue: &Enqueue) -> String {
    let mut enqueue = enqueue.clone();
    enqueue.request.headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    format!("{enqueue:?}")
}

/// What is accepted can be sent, carries no credential, and has one fingerprint however it was written.
fn drafted(enqueue: Enqueue, again: Enqueue, settings: &Settings) -> Verdict {
    let draft = |enqueue| Draft::of(enqueue, settings, Timestamp::from_millis(0), &Entropy::from_fn(|| 7));
    let (first, second) = match (draft(enqueue), draft(again)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(first), Err(second)) if first == second => {
            return Ok(format!("refused: {}", first.code()).into());
        }
        (first, second) => return Err(format!("{first:?}, but written anew {second:?}")),
    };
    if (first.fingerprint, &first.client_message_id, &first.lane)
        != (second.fingerprint, &second.client_message_id, &second.lane)
    {
        return Err(format!("{first:?}, but written anew {second:?}"));
    }
    let mut request = http::Request::builder().method(first.request.method.as_str());
    for (name, value) in &first.request.headers {
        let lower = name.to_ascii_lowercase();
        let is_ours =
            ["authorization", "cookie", "host", "content-length", "transfer-encoding", "idempotency-key"];
        if is_ours.contains(&lower.as_str()) {
            return Err(format!("{name} is sent as the caller gave it"));
        }
        request = request.header(name, value);
    }
    let url =
        Url::resolve(&first.request.url, settings.upstream.as_ref()).map_err(|error| format!("{error}"))?;
    request.body(()).map_err(|error| format!("it cannot be sent to {url:?}: {error}"))?;
    Ok(format!(
        "accepted with {} headers, id given: {}",
        first.request.headers.len().min(5),
        first.is_callers
    )
    .into())
}
