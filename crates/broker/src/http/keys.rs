//! The keys API, as a gate has it: what became of an id of the caller's own, and the means to cancel one.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::access::Authorized;
use super::answer::{Told, of_receipt, promise};
use crate::broker::SealAnswer;
use crate::message::read_key;
use crate::published::{Receipt, Refusal};

/// The request whose id it is: `POST /v1/meshes/{mesh}/messages`.
#[derive(Debug, Deserialize)]
pub(crate) struct Asked {
    endpoint: Option<String>,
}

impl Asked {
    /// The mesh that the endpoint names.
    fn mesh(&self) -> Option<String> {
        let path = self.endpoint.as_deref()?.strip_prefix("POST ")?;
        let mesh = path.strip_prefix("/v1/meshes/")?.strip_suffix("/messages")?;
        let decoded = percent_decode(mesh)?;
        (!mesh.contains('/')).then_some(decoded)
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

async fn asked(api: &Api, asked: &Asked, parts: &Parts) -> Result<Authorized, Told> {
    match asked.mesh() {
        Some(mesh) => api.authorize(parts, &mesh).await,
        None => Err(Told::malformed("say which mesh it is: ?endpoint=POST%20/v1/meshes/MESH/messages")),
    }
}

fn committed(id: &str, asked: &Asked, receipt: &Receipt) -> Value {
    let answer = of_receipt(receipt);
    let mut body = json!({
        "key": id,
        "endpoint": asked.endpoint,
        "sealed": false,
        "identity": "verified",
        "state": "settled",
        "response": {"status": 201, "body": answer.to_string()},
    });
    body["broker_message_id"] = answer["broker_message_id"].clone();
    body["history_id"] = answer["history_id"].clone();
    body
}

fn shown(api: &Api, body: Value) -> Response {
    let mut response = Json(body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    promise(response.headers_mut(), &api.broker.settings());
    response
}

fn unknown() -> Told {
    Told::new(StatusCode::NOT_FOUND, "key_unknown", "nothing is known of this id of yours")
}

/// Cancels an id, or says what has it.
pub(crate) async fn seal(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(query): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = asked(&api, &query, &parts).await?.caller;
    read_key(&id)?;
    match api.broker.seal(&caller, &id).await? {
        SealAnswer::Sealed => Ok(shown(
            &api,
            json!({
                "key": id,
                "endpoint": query.endpoint,
                "sealed": true,
                "identity": "verified",
                "state": "sealed",
            }),
        )),
        SealAnswer::Committed(receipt) => Ok(shown(&api, committed(&id, &query, &receipt))),
        SealAnswer::Others => Err(unknown()),
        SealAnswer::Limited { retry_after } => Err(Refusal::RequestLimited { retry_after }.into()),
    }
}

/// Says what became of an id.
pub(crate) async fn show(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(query): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = asked(&api, &query, &parts).await?.caller;
    match api.broker.receipt(&caller, &id).await {
        Ok(view) => Ok(shown(&api, committed(&id, &query, &view.receipt))),
        Err(crate::broker::ReadError::NotAllowed) => Err(unknown()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_names_the_mesh() {
        let mesh = |text: &str| Asked { endpoint: Some(text.to_owned()) }.mesh();
        assert_eq!(mesh("POST /v1/meshes/acme/messages").as_deref(), Some("acme"));
        assert_eq!(mesh("POST /v1/meshes/a%20b/messages").as_deref(), Some("a b"));
        for text in ["GET /v1/meshes/acme/messages", "POST /v1/meshes/a/b/messages", "POST /orders", ""] {
            assert_eq!(mesh(text), None, "{text}");
        }
    }
}
