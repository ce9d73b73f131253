//! The relay's HTTP surface for senders.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::routing::{get, post};
use semel_contract::key::Presence;
use semel_contract::problem::{Kind, Problem};
use semel_contract::profile::{FirstSent, Profile};
use semel_contract::request::{Body as RequestBody, Headers};
use semel_contract::time::Timestamp;
use semel_delivery::relay::debounce::Mode;
use semel_delivery::relay::store::StoreError;
use semel_delivery::relay::store::accept::{Accepted, Age, Submission};
use semel_delivery::relay::target::usual_profile;
use semel_delivery::relay::upstream::Place;
use semel_delivery::relay::{Engine, Target, Worker, intake};
use semel_http::{BodyRoom, UnreadBody};
use serde::Deserialize;

use super::answer;
use super::callers::{Identities, Peer};
use super::hints::RedisHints;

/// Largest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// What the handlers work on.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) engine: Arc<Engine>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) identities: Identities,
    pub(crate) hints: Option<Arc<RedisHints>>,
    /// How long after its first attempt a request is taken in that nobody knows.
    pub(crate) age_max: Duration,
    /// Room for what senders send.
    pub(crate) bodies: Arc<BodyRoom>,
}

/// The routes.
pub(crate) fn router(intake: Intake) -> Router {
    Router::new()
        .route("/v1/relay/{target}", post(submit))
        .route("/v1/relay/{target}/lanes", get(lanes))
        .route("/v1/relay/pending", get(pending))
        .route("/openapi.json", get(super::openapi::document))
        .layer(axum::middleware::map_request(receive))
        .layer(axum::middleware::map_response(crate::problems::rendered))
        .with_state(intake)
}

/// A body that falls silent ends; who is refused before it was read gets to read why.
async fn receive(request: Request) -> Request {
    semel_http::receive(request, semel_http::Limits::default().body_timeout)
}

struct Lines<'a>(&'a HeaderMap);

impl Headers for Lines<'_> {
    fn values<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        Box::new(self.0.get_all(name).iter().map(HeaderValue::as_bytes))
    }
}

/// A problem as this profile writes it.
pub(crate) fn problem(profile: &Profile, problem: &Problem) -> Response<Body> {
    let rendered = profile.wire.render(problem, Some(profile.status_of(problem.kind)), "");
    let mut response = Response::new(Body::from(rendered.body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in rendered.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

fn away(profile: &Profile, error: &StoreError) -> Response<Body> {
    tracing::error!(%error, "a request could not be answered");
    let why = Problem::new(Kind::StoreUnavailable, "send it again with the same key");
    problem(profile, &why.retry_after(std::time::Duration::from_secs(1)))
}

fn unknown_target() -> Response<Body> {
    crate::problems::refusal(StatusCode::NOT_FOUND, "unknown-target", "there is no such target")
}

async fn submit(
    State(intake): State<Intake>,
    peer: Peer,
    Path(name): Path<String>,
    parts: http::request::Parts,
    body: Body,
) -> Response<Body> {
    let Some(target) = intake.engine.targets.get(&name) else { return unknown_target() };
    match accept_submission(&intake, target, peer.0, &parts, body).await {
        Ok(response) => response,
        Err(Refused::Problem(why)) => problem(&target.profile, &why),
        Err(Refused::Store(error)) => away(&target.profile, &error),
    }
}

enum Refused {
    Problem(Problem),
    Store(StoreError),
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Refused::Problem(problem)
    }
}

impl From<UnreadBody> for Refused {
    fn from(unread: UnreadBody) -> Self {
        Refused::Problem(unread.problem())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Refused::Store(error)
    }
}

async fn accept_submission(
    intake: &Intake,
    target: &Target,
    peer: std::net::SocketAddr,
    parts: &http::request::Parts,
    body: Body,
) -> Result<Response<Body>, Refused> {
    // Who sends comes first: nothing is read for a stranger.
    let principal = intake.identities.principal(peer, parts).await?;
    let body = intake.bodies.read(body, BODY_BYTES_MAX).await?;
    let malformed = |why: String| Problem::new(Kind::RequestMalformed, why);
    let (key, first_sent) = key(intake, &target.profile, &parts.headers, &body)?;
    let mut modes = parts.headers.get_all("x-sync-mode").iter();
    let mode = match (modes.next(), modes.next()) {
        (None, _) => Mode::Interactive,
        (Some(mode), None) => mode
            .to_str()
            .ok()
            .and_then(|mode| Mode::parse(mode.trim()))
            .ok_or_else(|| malformed("X-Sync-Mode is interactive or background".to_owned()))?,
        (Some(_), Some(_)) => return Err(malformed("X-Sync-Mode is there twice".to_owned()).into()),
    };
    let items = intake::items(&body, target.items_max).map_err(|why| malformed(why.into()))?;
    for (at, item) in items.iter().enumerate() {
        let place = Place { lane: &item.lane, group: &item.group, principal: &principal };
        let admitted = target.upstream.admits(&place, item.label.as_deref());
        admitted.map_err(|why| malformed(format!("items[{at}]: {why}")))?;
    }
    let submission = Submission {
        target: target.name.clone(),
        principal,
        key,
        fingerprint: intake::fingerprint(&target.name, &items),
        mode,
        debounce: target.debounce,
        groups: target.groups,
        items,
        age: first_sent.map(|sent| Age::since(sent, intake.age_max, target.profile.lifetime.skew)),
    };
    let (engine, worker) = (&intake.engine, &intake.worker);
    let (request, is_known, found) = match engine.store.accept(&submission).await? {
        Accepted::Mismatch => {
            let why = "this key was used for other items; use a new key for a new request";
            return Err(Problem::new(Kind::FingerprintMismatch, why).into());
        }
        Accepted::TooOld => {
            let why = "it was first sent longer ago than requests are remembered, so that it may have been done already";
            return Err(Problem::new(Kind::TooOld, why).into());
        }
        Accepted::FromFuture => {
            let why = "the first attempt is said to lie in the future";
            return Err(Problem::new(Kind::FirstSentInFuture, why).into());
        }
        Accepted::Known { request } => {
            engine.meters.replayed.add(1);
            (request, true, None)
        }
        Accepted::New { request, lanes, found } => {
            engine.meters.accepted.add(submission.items.len() as u64);
            if mode == Mode::Background
                && let Some(hints) = intake.hints.clone()
            {
                let (target, quiet, items) =
                    (target.name.clone(), target.debounce.quiet, submission.items.clone());
                // Nobody waits for it.
                tokio::spawn(async move {
                    for item in items {
                        hints.debounces(&target, &item.group, &item.lane, quiet).await;
                    }
                });
            }
            if mode == Mode::Interactive {
                // It is accepted: whatever the store says now, the answer is not an error.
                if let Err(error) = worker.wait(&submission, request, &lanes).await {
                    tracing::warn!(%error, "the answer does not wait");
                }
            }
            (request, false, (mode == Mode::Background).then_some(found))
        }
    };
    let found = match found {
        Some(found) => found,
        None => {
            let found = engine.store.request(request).await?;
            found.ok_or_else(|| StoreError::Failed("the request is gone".to_owned()))?
        }
    };
    Ok(answer::request(&target.profile, &found, is_known))
}

/// The request's key, and when it says that it was first sent.
fn key(
    intake: &Intake,
    profile: &Profile,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(String, Option<Timestamp>), Problem> {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let found = profile.key.read(&Lines(headers), &RequestBody::new(content_type, body))?;
    match found {
        Some(found) if intake.identities.identity.is_shared() && !found.key.is_random_uuid() => Err(
            Problem::new(Kind::KeyTooWeak, "all callers are one principal here: a key must be a random UUID"),
        ),
        Some(found) => {
            let policy = profile.age.unwrap_or(FirstSent { from_uuid7: false });
            let first_sent = policy.read(&Lines(headers), &found.key)?;
            Ok((found.key.as_str().to_owned(), first_sent))
        }
        None => match profile.key.presence {
            Presence::Required | Presence::Optional | Presence::Mint => {
                Ok((format!("semel:{:032x}", intake.engine.entropy.bits()), None))
            }
        },
    }
}

#[derive(Deserialize)]
struct Asked {
    group: Option<String>,
    session: Option<String>,
}

impl Asked {
    /// Refuses what no group or session is called, and what a database could not compare.
    fn check(&self) -> Result<(), Problem> {
        let is_bad =
            |text: &Option<String>| text.as_deref().is_some_and(|text| text.chars().any(char::is_control));
        match is_bad(&self.group) || is_bad(&self.session) {
            true => {
                Err(Problem::new(Kind::RequestMalformed, "`group` or `session` contains control characters"))
            }
            false => Ok(()),
        }
    }
}

async fn lanes(
    State(intake): State<Intake>,
    peer: Peer,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
    parts: http::request::Parts,
) -> Response<Body> {
    let Some(target) = intake.engine.targets.get(&name) else { return unknown_target() };
    if let Err(why) = intake.identities.principal(peer.0, &parts).await {
        return problem(&target.profile, &why);
    }
    if let Err(why) = asked.check() {
        return problem(&target.profile, &why);
    }
    match intake.engine.store.lanes(&name, asked.group.as_deref(), target.reducer).await {
        Ok(views) => answer::lanes(&target.profile, &views),
        Err(error) => away(&target.profile, &error),
    }
}

async fn pending(
    State(intake): State<Intake>,
    peer: Peer,
    Query(asked): Query<Asked>,
    parts: http::request::Parts,
) -> Response<Body> {
    let profile = usual_profile();
    let principal = match intake.identities.principal(peer.0, &parts).await {
        Ok(principal) => principal,
        Err(why) => return problem(&profile, &why),
    };
    if let Err(why) = asked.check() {
        return problem(&profile, &why);
    }
    match intake.engine.store.pending(&principal, asked.group.as_deref(), asked.session.as_deref()).await {
        Ok(lanes) => answer::pending(&lanes),
        Err(error) => away(&profile, &error),
    }
}
