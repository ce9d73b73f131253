//! Reading: receipts, histories, mentions, search; and acknowledging what was read.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::Api;
use super::answer::{Told, of_receipt};
use crate::broker::{LineName, ReadError};
use crate::message::check_name;

/// What is asked of a page.
#[derive(Debug, Deserialize)]
pub(crate) struct Asked {
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<usize>,
    q: Option<String>,
}

#[derive(Deserialize)]
struct Ack {
    up_to: String,
    #[serde(default)]
    consumer: String,
}

/// What became of a message of the caller's own.
pub(crate) async fn receipt(
    State(api): State<Api>,
    Path((mesh, id)): Path<(String, String)>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = api.authorize(&parts, &mesh).await?.caller;
    let view = match api.broker.receipt(&caller, &id).await {
        Ok(view) => view,
        // Another member's message is as unknown as one that was never sent.
        Err(ReadError::NotAllowed) => return Err(Told::missing("message of yours")),
        Err(error) => return Err(error.into()),
    };
    let mut body = of_receipt(&view.receipt);
    body["history_available"] = json!(view.receipt.history_available);
    body["recipients"] = json!(view.recipients);
    body["acknowledged"] = json!(view.acknowledged);
    Ok(Json(body).into_response())
}

/// A page of a topic.
pub(crate) async fn topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(asked): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = api.authorize(&parts, &mesh).await?.caller;
    let page =
        api.broker.history(&caller, &LineName::Topic(topic), asked.after.as_deref(), asked.limit).await?;
    Ok(Json(page).into_response())
}

/// A page of the caller's direct messages.
pub(crate) async fn direct(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(asked): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = api.authorize(&parts, &mesh).await?.caller;
    let page = api.broker.history(&caller, &LineName::Direct, asked.after.as_deref(), asked.limit).await?;
    Ok(Json(page).into_response())
}

/// Messages that mention the caller.
pub(crate) async fn mentions(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(asked): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = api.authorize(&parts, &mesh).await?.caller;
    let page = api.broker.mentions(&caller, asked.after.as_deref(), asked.limit).await?;
    Ok(Json(page).into_response())
}

/// Messages with some words.
pub(crate) async fn search(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(asked): Query<Asked>,
    parts: Parts,
) -> Result<Response, Told> {
    let caller = api.authorize(&parts, &mesh).await?.caller;
    let words = asked.q.as_deref().ok_or_else(|| Told::malformed("expected ?q=WORDS"))?;
    let page = api.broker.search(&caller, words, asked.after.as_deref(), asked.limit).await?;
    Ok(Json(page).into_response())
}

/// Acknowledges a topic.
pub(crate) async fn ack_topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Result<Response, Told> {
    acknowledge(&api, &parts, &mesh, LineName::Topic(topic), body).await
}

/// Acknowledges direct messages.
pub(crate) async fn ack_direct(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    parts: Parts,
    body: Body,
) -> Result<Response, Told> {
    acknowledge(&api, &parts, &mesh, LineName::Direct, body).await
}

async fn acknowledge(
    api: &Api,
    parts: &Parts,
    mesh: &str,
    line: LineName,
    body: Body,
) -> Result<Response, Told> {
    let caller = api.authorize(parts, mesh).await?.caller;
    let Ack { up_to, consumer } = serde_json::from_slice(&api.read(body).await?)
        .map_err(|error| Told::malformed(&error.to_string()))?;
    if !consumer.is_empty() {
        check_name("consumer", &consumer)?;
    }
    let acked = api.broker.acknowledge(&caller, &line, &up_to, &consumer).await?;
    Ok(Json(json!({"acknowledged": acked})).into_response())
}
