//! Managing: meshes, members, topics, subscriptions, webhooks, moderation. Operators manage every mesh, owners their own. A PUT says
//! all of what it makes; it answers 201 where that is new and 200 where it was there. A DELETE answers 204 either way.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
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
use crate::limits::LIST_MAX;
use crate::store::manage::{MemberWish, MeshWish, Put, Which};

type Answer = Result<Response, Told>;

/// What is kept of why a message was moderated.
const MODERATION_CHARS_MAX: usize = 1000;
/// What of that stands in the trail, whose reasons are shorter.
const TRAIL_CHARS_MAX: usize = 500;

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

/// Why something is removed: a DELETE has no body.
#[derive(Deserialize)]
pub(crate) struct Why {
    reason: Option<String>,
}

/// Reads a body and the reason beside what it says; none is an empty object.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<(T, Option<String>), Told> {
    let malformed = |error: serde_json::Error| Told::malformed(&error.to_string());
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let mut body: Value = serde_json::from_slice(body).map_err(malformed)?;
    let reason = match body.as_object_mut().and_then(|members| members.remove("reason")) {
        None | Some(Value::Null) => None,
        Some(Value::String(reason)) => Some(reason),
        Some(_) => return Err(Told::malformed("reason: expected a text")),
    };
    Ok((serde_json::from_value(body).map_err(malformed)?, reason))
}

/// The reason in a body that needs none.
pub(crate) fn reason_in(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    body["reason"].as_str().map(str::to_owned)
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

/// Where a page of a list begins, and how long it is.
#[derive(Deserialize)]
pub(crate) struct Page {
    after: Option<String>,
    limit: Option<usize>,
}

impl Page {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(LIST_MAX).clamp(1, LIST_MAX)
    }

    pub(crate) fn which(&self) -> Which<'_> {
        Which::After(self.after.as_deref().unwrap_or_default(), self.limit())
    }

    /// A list, and after which name the next page begins.
    pub(crate) fn answer<T: serde::Serialize>(
        &self,
        what: &str,
        rows: &[T],
        name: impl Fn(&T) -> &str,
    ) -> Response {
        let next = rows.last().filter(|_| rows.len() == self.limit()).map(name);
        Json(json!({what: rows, "next_after": next})).into_response()
    }
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
    let (MeshBody { limits, search }, why) = read(&api.read(body).await?)?;
    if limits.bytes.is_some_and(|bytes| bytes < 0) {
        return Err(Told::malformed("limits.bytes is negative"));
    }
    if owner.is_some() {
        // What a mesh may keep is the operator's to say: an owner does not raise it.
        let known = api.broker.meshes(Some(mesh.as_str())).await?;
        let most = known.first().and_then(|mesh| mesh.limits.bytes);
        let is_raised = most.is_some_and(|most| limits.bytes.is_none_or(|bytes| bytes > most));
        if is_raised {
            return Err(Told::outsider());
        }
    }
    let broker = api.acting(&parts.headers, owner.as_ref(), why.as_deref())?;
    let put = broker.put_mesh(&mesh, MeshWish { bytes_max: limits.bytes, search }).await?;
    Ok(put_answer(put, json!({"mesh": mesh, "limits": {"bytes": limits.bytes}, "search": search})))
}

pub(crate) async fn mesh(State(api): State<Api>, Path(mesh): Path<String>, parts: Parts) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.meshes(Some(mesh.as_str())).await?, "mesh")
}

pub(crate) async fn remove_mesh(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(why): Query<Why>,
    parts: Parts,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.reason.as_deref())?;
    broker.remove_mesh(&mesh).await?;
    Ok(removed())
}

pub(crate) async fn put_member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let (MemberBody { role, token_sha256, add_token_sha256 }, why) = read(&api.read(body).await?)?;
    let known = |role: String| {
        Role::parse(&role).ok_or_else(|| Told::malformed("the role is either `owner` or `member`"))
    };
    let wish = MemberWish {
        role: role.map(known).transpose()?,
        tokens: token_sha256,
        more_tokens: add_token_sha256,
    };
    let broker = api.acting(&parts.headers, owner.as_ref(), why.as_deref())?;
    let put = broker.change_member(&mesh, &member, &wish).await?;
    let made = api.broker.members(&mesh, Some(member.as_str())).await?;
    let made = made.first().ok_or_else(|| Told::missing("member"))?;
    Ok(put_answer(put, json!({"member": member, "role": made.role, "tokens": made.tokens})))
}

pub(crate) async fn member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.members(&mesh, Some(member.as_str())).await?, "member")
}

pub(crate) async fn members(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(page): Query<Page>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let found = api.broker.members(&mesh, page.which()).await?;
    Ok(page.answer("members", &found, |one| &one.member))
}

pub(crate) async fn remove_member(
    State(api): State<Api>,
    Path((mesh, member)): Path<(String, String)>,
    Query(why): Query<Why>,
    parts: Parts,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.reason.as_deref())?;
    broker.remove_member(&mesh, &member).await?;
    Ok(removed())
}

pub(crate) async fn put_topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let (TopicBody { publish }, why) = read(&api.read(body).await?)?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.as_deref())?;
    let put = broker.put_topic(&mesh, &topic, &publish).await?;
    Ok(put_answer(put, json!({"topic": topic, "publish": publish})))
}

pub(crate) async fn topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.topics(&mesh, Some(topic.as_str())).await?, "topic")
}

pub(crate) async fn topics(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(page): Query<Page>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let found = api.broker.topics(&mesh, page.which()).await?;
    Ok(page.answer("topics", &found, |one| &one.topic))
}

pub(crate) async fn remove_topic(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(why): Query<Why>,
    parts: Parts,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.reason.as_deref())?;
    broker.remove_topic(&mesh, &topic).await?;
    Ok(removed())
}

pub(crate) async fn put_subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let (Nothing {}, why) = read(&api.read(body).await?)?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.as_deref())?;
    let put = broker.put_subscription(&mesh, &topic, &member).await?;
    Ok(put_answer(put, json!({"topic": topic, "member": member})))
}

pub(crate) async fn subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.subscriptions(&mesh, &topic, Some(member.as_str())).await?, "subscription")
}

pub(crate) async fn subscriptions(
    State(api): State<Api>,
    Path((mesh, topic)): Path<(String, String)>,
    Query(page): Query<Page>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let found = api.broker.subscriptions(&mesh, &topic, page.which()).await?;
    Ok(page.answer("subscriptions", &found, |one| &one.member))
}

pub(crate) async fn remove_subscription(
    State(api): State<Api>,
    Path((mesh, topic, member)): Path<(String, String, String)>,
    Query(why): Query<Why>,
    parts: Parts,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.reason.as_deref())?;
    broker.remove_subscription(&mesh, &topic, &member).await?;
    Ok(removed())
}

pub(crate) async fn put_webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let (body, why): (WebhookBody, _) = read(&api.read(body).await?)?;
    let shown = json!({"webhook": name, "url": body.url, "topic": body.topic, "ordered": body.ordered});
    let broker = api.acting(&parts.headers, owner.as_ref(), why.as_deref())?;
    let put = broker.put_webhook(&mesh, &name, body).await?;
    Ok(put_answer(put, shown))
}

pub(crate) async fn webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    one(api.broker.webhooks(&mesh, Some(name.as_str())).await?, "webhook")
}

pub(crate) async fn webhooks(
    State(api): State<Api>,
    Path(mesh): Path<String>,
    Query(page): Query<Page>,
    parts: Parts,
) -> Answer {
    api.manage(&parts, &mesh).await?;
    let found = api.broker.webhooks(&mesh, page.which()).await?;
    Ok(page.answer("webhooks", &found, |one| &one.webhook))
}

pub(crate) async fn remove_webhook(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    Query(why): Query<Why>,
    parts: Parts,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), why.reason.as_deref())?;
    broker.remove_webhook(&mesh, &name).await?;
    Ok(removed())
}

pub(crate) async fn requeue(
    State(api): State<Api>,
    Path((mesh, name)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let body = api.read(body).await?;
    let broker = api.acting(&parts.headers, owner.as_ref(), reason_in(&body).as_deref())?;
    Ok(Json(json!({"requeued": broker.requeue_dead(&mesh, &name).await?})).into_response())
}

pub(crate) async fn moderate(
    State(api): State<Api>,
    Path((mesh, id)): Path<(String, String)>,
    parts: Parts,
    body: Body,
) -> Answer {
    let owner = api.manage(&parts, &mesh).await?;
    let (_, reason): (Value, _) = read(&api.read(body).await?)?;
    let reason: String = reason.unwrap_or_default().chars().take(MODERATION_CHARS_MAX).collect();
    let told: String = reason.chars().take(TRAIL_CHARS_MAX).collect();
    let who = owner.as_ref().map_or_else(|| operator(&parts.headers), |owner| owner.caller.member.clone());
    let broker = api.acting(&parts.headers, owner.as_ref(), Some(&told))?;
    let mut shown = of_receipt(&broker.moderate(&mesh, &id, &who, &reason).await?);
    shown["moderated"] = json!(true);
    Ok(Json(shown).into_response())
}
