//! What comes before the routes: the door, and the short way of the one request that comes often. A router costs several allocations for each layer; `POST /v1/send` passes the same checks in the same order without one.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, Response};
use axum::response::IntoResponse;
use tower::{Service, ServiceExt};

use super::api::{self, accept, wanted_wait};
use super::body::{Api, read};

/// Where messages are handed in.
const SEND: &str = "/v1/send";

/// The whole surface behind a door. The door says whom it does not let in.
pub(crate) struct Front<D> {
    router: Router,
    api: Api,
    door: D,
}

impl<D: Clone> Clone for Front<D> {
    fn clone(&self) -> Self {
        Self { router: self.router.clone(), api: self.api.clone(), door: self.door.clone() }
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
        Self { router: api::router(api.clone()), api, door }
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
        let (head, body) = read(&self.api, request).await?;
        let accepted = accept(&self.api, &body, wanted_wait(&head.headers)).await;
        accepted.map_err(|refused| Box::new(refused.into_response()))
    }
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
