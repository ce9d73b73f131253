//! A client of the routers, without a socket.

use axum::Router;
use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use semel_broker::{Identity, admin_router, listen_router};
use serde_json::Value;
use tower::ServiceExt;

use super::kit::{World, token};

/// Both addresses of a broker.
pub(crate) struct Web {
    pub(crate) listen: Router,
    pub(crate) admin: Router,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Told {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

pub(crate) fn request(
    method: Method,
    path: &str,
    member: Option<&str>,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(member) = member {
        request = request.header("authorization", format!("Bearer {}", token(member)));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

pub(crate) async fn told(response: Response<Body>) -> Told {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Told { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

impl Web {
    pub(crate) fn new(world: &World) -> Self {
        let listen = listen_router(world.broker.clone(), Identity::Tokens, None);
        Self { listen, admin: admin_router(world.broker.clone()) }
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, member: Option<&str>, body: &str) -> Told {
        told(self.listen.clone().oneshot(request(method, path, member, &[], body)).await.unwrap()).await
    }

    pub(crate) async fn operate(&self, method: Method, path: &str, body: &str) -> Told {
        told(self.admin.clone().oneshot(request(method, path, None, &[], body)).await.unwrap()).await
    }

    pub(crate) async fn publish(&self, member: &str, id: &str, body: &str) -> Told {
        let headers = [("idempotency-key", id), ("content-type", "application/json")];
        let path = "/v1/meshes/m/messages";
        told(
            self.listen
                .clone()
                .oneshot(request(Method::POST, path, Some(member), &headers, body))
                .await
                .unwrap(),
        )
        .await
    }

    pub(crate) async fn stream(
        &self,
        path: &str,
        member: Option<&str>,
        last: Option<&str>,
    ) -> Result<Events, Told> {
        let headers: Vec<(&str, &str)> = last.map(|last| ("last-event-id", last)).into_iter().collect();
        let response =
            self.listen.clone().oneshot(request(Method::GET, path, member, &headers, "")).await.unwrap();
        match response.status() {
            StatusCode::OK => {
                assert_eq!(response.headers()["content-type"], "text/event-stream");
                Ok(Events { body: response.into_body().into_data_stream(), text: String::new() })
            }
            _ => Err(told(response).await),
        }
    }
}

/// Server-sent events as they come.
pub(crate) struct Events {
    body: BodyDataStream,
    text: String,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Events {
    /// The next event, comments left out; nothing at the end of the stream. Whoever stops waiting may wait again.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let next = async {
            loop {
                if let Some((frame, rest)) = self.text.split_once("\n\n") {
                    let event = parse(frame);
                    self.text = rest.to_owned();
                    if event.is_some() {
                        return event;
                    }
                    continue;
                }
                let piece = self.body.next().await?;
                self.text.push_str(std::str::from_utf8(&piece.ok()?).unwrap());
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), next).await.expect("no event came in time")
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..count {
            events.push(self.next().await.expect("the stream has ended"));
        }
        events
    }
}

fn parse(frame: &str) -> Option<Event> {
    let field = |name: &str| {
        frame.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_start().to_owned())
    };
    let data = serde_json::from_str(&field("data:")?).unwrap();
    Some(Event { id: field("id:").unwrap_or_default(), event: field("event:").unwrap_or_default(), data })
}
