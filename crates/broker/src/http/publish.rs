//! Publishing: one message as JSON, or several as NDJSON, each with its own answer.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel_contract::time::Timestamp;
use serde_json::json;

use super::Api;
use super::answer::{Told, of_published, promise, publish_response};
use crate::limits::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ENVELOPE_BYTES_MAX, INLINE_BYTES_MOST};
use crate::message::{Beside, Draft};

/// Publishes.
pub(crate) async fn publish(State(api): State<Api>, Path(mesh): Path<String>, request: Request) -> Response {
    let settings = api.broker.settings();
    match answer(&api, &mesh, request).await {
        Ok(response) => response,
        Err(told) => {
            let mut response = told.into_response();
            promise(response.headers_mut(), &settings);
            response
        }
    }
}

async fn answer(api: &Api, mesh: &str, request: Request) -> Result<Response, Told> {
    let (parts, body) = request.into_parts();
    let authorized = api.authorize(&parts, mesh).await?;
    let (caller, settings) = (authorized.caller, api.broker.settings());
    let is_batch = has_type(&parts.headers, "application/x-ndjson");
    // Base64 takes four bytes for three. What is known already may be larger than what is taken now.
    let single = INLINE_BYTES_MOST / 3 * 4 + ENVELOPE_BYTES_MAX;
    let bytes = api.broker.bodies().read(body, if is_batch { BATCH_BYTES_MAX } else { single }).await?;
    if is_batch {
        return batch(api, &caller, &bytes).await;
    }
    let beside = beside(&parts.headers)?;
    let draft = Draft::parse(&bytes, beside, mesh, &caller.member);
    let published = api.broker.publish_all(&caller, vec![draft]).await;
    let published = published.first().ok_or_else(|| Told::malformed("there is no message"))?;
    Ok(publish_response(published, &settings))
}

/// Several messages, one on each line. The answer has a line for each of them, in their order.
async fn batch(api: &Api, caller: &crate::identity::Caller, bytes: &[u8]) -> Result<Response, Told> {
    let settings = api.broker.settings();
    let lines: Vec<&[u8]> =
        bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    if lines.is_empty() || lines.len() > BATCH_MESSAGES_MAX {
        return Err(Told::malformed(&format!(
            "expected 1 to {BATCH_MESSAGES_MAX} messages, one on each line"
        )));
    }
    let parse = |line: &&[u8]| Draft::parse(line, Beside::default(), &caller.mesh, &caller.member);
    let drafts: Vec<_> = lines.iter().map(parse).collect();
    let mut text = String::new();
    for published in api.broker.publish_all(caller, drafts).await {
        let (status, mut body, retry_after) = of_published(&published);
        body["status"] = json!(status.as_u16());
        if let Some(after) = retry_after {
            body["retry_after"] = json!(after.as_secs().max(1));
        }
        text.push_str(&body.to_string());
        text.push('\n');
    }
    let mut response =
        (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-ndjson")], text).into_response();
    promise(response.headers_mut(), &settings);
    Ok(response)
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}

/// What the headers say of a message. A header that is there twice says nothing that can be trusted.
fn beside(headers: &HeaderMap) -> Result<Beside<'_>, Told> {
    let one = |name: &str| {
        let mut lines = headers.get_all(name).iter();
        let line = match (lines.next(), lines.next()) {
            (None, _) => return Ok(None),
            (Some(line), None) => line,
            (Some(_), Some(_)) => return Err(Told::malformed(&format!("{name} is there twice"))),
        };
        let text = line.to_str().map_err(|_| Told::malformed(&format!("{name} is not printable ASCII")))?;
        Ok(Some(text.trim()))
    };
    let first_sent = one("idempotency-first-sent")?.and_then(|text| Timestamp::parse(text).ok());
    Ok(Beside {
        key: one("idempotency-key")?,
        client_tx_id: one("x-client-tx-id")?,
        supersedes: one("semel-supersedes")?,
        first_sent,
    })
}
