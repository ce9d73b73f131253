//! What comes before the routes: bounds and the kind of a body, and the short way of the one request that comes often. A
//! router costs several allocations for each layer; `POST /v1/send` passes the same checks in the same order without one.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower::{Service, ServiceExt};

use super::answer::refusal;
use super::api::{self, Api, accept, wanted_wait};

/// How much, and how long, of a body that is too large is read before the answer.
const DRAIN_BYTES_MAX: usize = 16 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Where messages are handed in.
const SEND: &str = "/v1/send";

/// The largest envelope: a body may double in size as base64 or escapes.
pub(super) fn body_bytes_max(api: &Api) -> usize {
    api.outbox.settings().payload_bytes_max * 2 + (64 << 10)
}

/// Refuses a body that says that it is too large, or that it is no JSON.
pub(super) async fn checked(
    State(body_bytes_max): State<usize>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match fits(body_bytes_max, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => *refused,
    }
}

/// The request, where its body may be read. What the caller of one that is too large is writing is read first, within
/// bounds: a caller that is cut off while it writes does not see the answer.
async fn fits(body_bytes_max: usize, request: Request) -> Result<Request, Box<Response<Body>>> {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| length > body_bytes_max) {
        let drained = axum::body::to_bytes(request.into_body(), DRAIN_BYTES_MAX);
        // Whether it all came does not matter.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, drained).await;
        return Err(Box::new(too_large()));
    }
    if !is_empty(headers) && !is_json(headers) {
        let message = "send JSON, with Content-Type: application/json";
        return Err(Box::new(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", message)));
    }
    Ok(request)
}

pub(super) fn too_large() -> Response<Body> {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "the envelope is larger than a message may be")
}

fn is_empty(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
}

/// A body is JSON and says so: a form in a browser cannot say that.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// The whole surface behind a door. The door says whom it does not let in.
pub(crate) struct Front<D> {
    router: Router,
    api: Api,
    door: D,
    body_bytes_max: usize,
}

impl<D: Clone> Clone for Front<D> {
    fn clone(&self) -> Self {
        Self {
            router: self.router.clone(),
            api: self.api.clone(),
            door: self.door.clone(),
            body_bytes_max: self.body_bytes_max,
        }
    }
}

/// Whom a door does not let in, and what it says to them.
pub(crate) trait Door: Clone + Send + Sync + 'static {
    /// What is said instead of an answer.
    fn refuse(&self, headers: &HeaderMap, path: &str) -> Option<Response<Body>>;
}

impl<D: Door> Front<D> {
    /// The surface of an outbox.
    pub(crate) fn new(api: Api, door: D) -> Self {
        Self { router: api::router(api.clone()), body_bytes_max: body_bytes_max(&api), api, door }
    }

    async fn answer(self, request: Request) -> Response<Body> {
        if let Some(refused) = self.door.refuse(request.headers(), request.uri().path()) {
            return refused;
        }
        if request.method() != Method::POST || request.uri().path() != SEND {
            let Ok(answer) = self.router.oneshot(request).await;
            return answer;
        }
        match self.send(request).await {
            Ok(answer) => answer,
            Err(refused) => *refused,
        }
    }

    async fn send(self, request: Request) -> Result<Response<Body>, Box<Response<Body>>> {
        let (head, body) = fits(self.body_bytes_max, request).await?.into_parts();
        let body = whole(body, self.body_bytes_max).await?;
        let accepted = accept(&self.api, &body, wanted_wait(&head.headers)).await;
        accepted.map_err(|refused| Box::new(refused.into_response()))
    }
}

async fn whole(body: Body, body_bytes_max: usize) -> Result<Bytes, Box<Response<Body>>> {
    let read = Limited::new(body, body_bytes_max).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        Box::new(match error.is::<LengthLimitError>() {
            true => too_large(),
            false => refusal(StatusCode::BAD_REQUEST, "malformed", &error.to_string()),
        })
    })
}

impl<D: Door> Service<Request> for Front<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let front = self.clone();
        Box::pin(async move { Ok(front.answer(request).await) })
    }
}
