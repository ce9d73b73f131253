//! What operators alone do: look at every mesh, and keep the store in order.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Api;
use super::answer::Told;
use super::history::Asked;
use crate::broker::ReadError;

type Answer = Result<Response, Told>;

pub(crate) async fn meshes(State(api): State<Api>) -> Answer {
    Ok(Json(json!({"meshes": api.broker.meshes(None).await?})).into_response())
}

pub(crate) async fn history(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Answer {
    match api.broker.topic_history(&mesh, &topic, asked.after.as_deref(), asked.limit).await {
        Ok(page) => Ok(Json(page).into_response()),
        Err(ReadError::NotAllowed) => Err(Told::missing("topic")),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn orphans(State(api): State<Api>) -> Answer {
    let found = api.broker.orphans().await?;
    let count = found.findings.len();
    Ok(Json(json!({"orphans": count, "looked": found.looked, "findings": found.findings})).into_response())
}

pub(crate) async fn rebuild(State(api): State<Api>) -> Answer {
    Ok(Json(json!({"lines": api.broker.rebuild().await?})).into_response())
}

pub(crate) async fn restored(State(api): State<Api>) -> Answer {
    Ok(Json(json!({"epoch": api.broker.restored().await?})).into_response())
}

pub(crate) async fn sweep(State(api): State<Api>) -> Answer {
    let swept = api.broker.sweep().await?;
    let body = json!({"ids": swept.ids, "messages": swept.messages, "unacknowledged": swept.unacknowledged});
    Ok(Json(body).into_response())
}

pub(crate) async fn metrics(State(api): State<Api>) -> Answer {
    let text = api.broker.metrics().await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
