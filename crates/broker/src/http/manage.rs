//! Managing: meshes, members, topics, subscriptions, webhooks, moderation. Operators manage every mesh, owners their own. A PUT says
//! all of what it makes; it answers 201 where that is new and 200 where it was there. A DELETE answers 204 either way.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Api;
use super::answer::{Told, of_receipt};
use crate::broker::WebhookBody;
use crate::identity::Role;
use crate::store::manage::{MemberWish, MeshWish, Put};

type Answer = Result<Response, Told>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeshBody {
    #[serde(default)]
    limits: Limits,
    #[serde(default = "is_usual")]
    search: bool,
}

fn is_usual() -> bool {
    true
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    bytes: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberBody {
    role: Option<String>,
    token_sha256: Option<Vec<String>>,
    #[serde(default)]
    add_token_sha256: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicBody {
    #[serde(default = "subscribers")]
    publish: String,
}

fn subscribers() -> String {
    "subscribers".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
struct Moderation {
    #[serde(default)]
    reason: String,
}

/// Reads a body; none is an empty object.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Told> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Told::malformed(&error.to_string()))
}

/// Which operator acts, as the address says that let it in.
pub(crate) fn operator(headers: &HeaderMap) -> String {
    headers.get("semel-actor").and_then(|who| who.to_str().ok()).unwrap_or("operator").to_owned()
}

fn put_answer(put: Put, body: Value) -> Response {
    let status = match put {
        Put::Created => StatusCode::CREATED,
        Put::Kept => StatusCode::OK,
    };
    (status, Json(body)).into_response()
}

fn removed() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

fn one<T: serde::Serialize>(found: Vec<T>, what: &str) -> Answer {
    let found = found.into_iter().next().ok_or_else(|| Told::missing(what))?;
    Ok(Json(found).into_response())
}

pub(crate) async fn put_mesh(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let MeshBody { limits, search } = read(&api.read(body).await?)?;
    if limits.bytes.is_some_and(|bytes| bytes < 0) {
        return Err(Told::malformed("limits.bytes is negative"));
    }
    if owner.is_some() {
        // What a mesh may keep is the operator's to say: an owner does not raise it.
        let known = api.broker.meshes(Some(&mesh)).await?;
        let most = known.first().and_then(|mesh| mesh.limits.bytes);
        let is_raised = most.is_some_and(|most| limits.bytes.is_none_or(|bytes| bytes > most));
        if is_raised {
            return Err(Told::outsider());
        }
    }
    let put = api.broker.put_mesh(&mesh, MeshWish { bytes_max: limits.bytes, search }).await?;
    Ok(put_answer(put, json!({"mesh": mesh, "limits": {"bytes": limits.bytes}, "search": search})))
}

pub(crate) async fn mesh(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.meshes(Some(&mesh)).await?, "mesh")
}

pub(crate) async fn remove_mesh(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    api.broker.remove_mesh(&mesh).await?;
    Ok(removed())
}

pub(crate) async fn put_member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let MemberBody { role, token_sha256, add_token_sha256 } = read(&api.read(body).await?)?;
    let known = |role: String| {
        Role::parse(&role).ok_or_else(|| Told::malformed("the role is either `owner` or `member`"))
    };
    let wish = MemberWish {
        role: role.map(known).transpose()?,
        tokens: token_sha256,
        more_tokens: add_token_sha256,
    };
    let put = api.broker.change_member(&mesh, &member, &wish).await?;
    let made = api.broker.members(&mesh, Some(&member)).await?;
    let made = made.first().ok_or_else(|| Told::missing("member"))?;
    Ok(put_answer(put, json!({"member": member, "role": made.role, "tokens": made.tokens})))
}

pub(crate) async fn member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.members(&mesh, Some(&member)).await?, "member")
}

pub(crate) async fn members(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    Ok(Json(json!({"members": api.broker.members(&mesh, None).await?})).into_response())
}

pub(crate) async fn remove_member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    api.broker.remove_member(&mesh, &member).await?;
    Ok(removed())
}

pub(crate) async fn put_topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let TopicBody { publish } = read(&api.read(body).await?)?;
    let put = api.broker.put_topic(&mesh, &topic, &publish).await?;
    Ok(put_answer(put, json!({"topic": topic, "publish": publish})))
}

pub(crate) async fn topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.topics(&mesh, Some(&topic)).await?, "topic")
}

pub(crate) async fn topics(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    Ok(Json(json!({"topics": api.broker.topics(&mesh, None).await?})).into_response())
}

pub(crate) async fn remove_topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    api.broker.remove_topic(&mesh, &topic).await?;
    Ok(removed())
}

pub(crate) async fn put_subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let Nothing {} = read(&api.read(body).await?)?;
    let put = api.broker.put_subscription(&mesh, &topic, &member).await?;
    Ok(put_answer(put, json!({"topic": topic, "member": member})))
}

pub(crate) async fn subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.subscriptions(&mesh, &topic, Some(&member)).await?, "subscription")
}

pub(crate) async fn subscriptions(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    Ok(Json(json!({"subscriptions": api.broker.subscriptions(&mesh, &topic, None).await?})).into_response())
}

pub(crate) async fn remove_subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    api.broker.remove_subscription(&mesh, &topic, &member).await?;
    Ok(removed())
}

pub(crate) async fn put_webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let body: WebhookBody = read(&api.read(body).await?)?;
    let shown = json!({"webhook": name, "url": body.url, "topic": body.topic, "ordered": body.ordered});
    let put = api.broker.put_webhook(&mesh, &name, body).await?;
    Ok(put_answer(put, shown))
}

pub(crate) async fn webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.webhooks(&mesh, Some(&name)).await?, "webhook")
}

pub(crate) async fn webhooks(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    Ok(Json(json!({"webhooks": api.broker.webhooks(&mesh, None).await?})).into_response())
}

pub(crate) async fn remove_webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    api.broker.remove_webhook(&mesh, &name).await?;
    Ok(removed())
}

pub(crate) async fn requeue(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    Ok(Json(json!({"requeued": api.broker.requeue_dead(&mesh, &name).await?})).into_response())
}

pub(crate) async fn moderate(
    State(api): State<Api>,
    Path((mesh, id)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let Moderation { reason } = read(&api.read(body).await?)?;
    let reason: String = reason.chars().take(1000).collect();
    let who = owner.map_or_else(|| operator(&parts.headers), |owner| owner.caller.member);
    let mut shown = of_receipt(&api.broker.moderate(&mesh, &id, &who, &reason).await?);
    shown["moderated"] = json!(true);
    Ok(Json(shown).into_response())
}
