//! HTTP in front of a broker: `--listen` for members, `--admin` for operators. Reads requests, asks the broker, writes answers;
//! decides nothing but who asks.

mod access;
mod answer;
mod history;
mod keys;
mod manage;
mod operate;
mod publish;
mod socket;
mod stream;
mod ticket;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use bytes::Bytes;
use semel_http::Cors;

use self::answer::Told;
use crate::broker::Broker;
use crate::identity::Identity;

/// Bytes of a request that manages something.
const MANAGE_BYTES_MAX: usize = 64 << 10;

/// What every handler knows.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) broker: Broker,
    /// By what callers are known; on the operators' address there is none to ask.
    pub(crate) identity: Option<Identity>,
}

impl Api {
    /// The body of a request that manages something. Whoever calls this has asked who sends it.
    pub(crate) async fn read(&self, body: Body) -> Result<Bytes, Told> {
        Ok(self.broker.bodies().read(body, MANAGE_BYTES_MAX).await?)
    }
}

/// The OpenAPI document of both addresses.
pub fn openapi() -> &'static str {
    include_str!("openapi.json")
}

/// What members use: publishing, reading, and managing their own mesh.
pub fn listen_router(broker: Broker, identity: Identity, cors: Option<Cors>) -> Router {
    let api = Api { broker, identity: Some(identity) };
    let router = Router::new()
        .route("/v1/meshes/{mesh}/messages", post(publish::publish))
        .route("/v1/meshes/{mesh}/messages/{id}", get(history::receipt))
        .route("/v1/meshes/{mesh}/topics/{topic}/history", get(history::topic))
        .route("/v1/meshes/{mesh}/direct/history", get(history::direct))
        .route("/v1/meshes/{mesh}/mentions", get(history::mentions))
        .route("/v1/meshes/{mesh}/search", get(history::search))
        .route("/v1/meshes/{mesh}/topics/{topic}/ack", post(history::ack_topic))
        .route("/v1/meshes/{mesh}/direct/ack", post(history::ack_direct))
        .route("/v1/meshes/{mesh}/topics/{topic}/events", get(stream::topic))
        .route("/v1/meshes/{mesh}/direct/events", get(stream::direct))
        .route("/v1/meshes/{mesh}/events", get(stream::lines))
        .route("/v1/meshes/{mesh}/socket", get(socket::lines))
        .route("/v1/meshes/{mesh}/topics/{topic}/socket", get(socket::topic))
        .route("/v1/meshes/{mesh}/direct/socket", get(socket::direct))
        .route("/v1/meshes/{mesh}/ticket", post(ticket::make))
        .route("/.well-known/semel/keys/{id}/seal", post(keys::seal))
        .route("/.well-known/semel/keys/{id}", get(keys::show))
        .merge(management())
        .layer(middleware::map_request(receive))
        .with_state(api);
    match cors {
        None => router,
        Some(cors) => router.layer(middleware::from_fn_with_state(cors, cross_origin)),
    }
}

/// What operators use. Whoever serves it says who may come: it asks for nothing.
pub fn admin_router(broker: Broker) -> Router {
    Router::new()
        .route("/v1/meshes", get(operate::meshes))
        .route("/v1/meshes/{mesh}/topics/{topic}/history", get(operate::history))
        .route("/v1/orphans", post(operate::orphans))
        .route("/v1/rebuild", post(operate::rebuild))
        .route("/v1/restored", post(operate::restored))
        .route("/v1/sweep", post(operate::sweep))
        .route("/v1/clock", get(operate::clock))
        .route("/v1/clock/confirm", post(operate::confirm_clock))
        .route("/v1/audit", get(operate::audit))
        .route("/metrics", get(operate::metrics))
        .merge(management())
        .layer(middleware::map_request(receive))
        .with_state(Api { broker, identity: None })
}

/// What operators do to every mesh, and owners to their own.
fn management() -> Router<Api> {
    Router::new()
        .route("/v1/meshes/{mesh}", put(manage::put_mesh).get(manage::mesh).delete(manage::remove_mesh))
        .route("/v1/meshes/{mesh}/members", get(manage::members))
        .route(
            "/v1/meshes/{mesh}/members/{member}",
            put(manage::put_member).get(manage::member).delete(manage::remove_member),
        )
        .route("/v1/meshes/{mesh}/topics", get(manage::topics))
        .route(
            "/v1/meshes/{mesh}/topics/{topic}",
            put(manage::put_topic).get(manage::topic).delete(manage::remove_topic),
        )
        .route("/v1/meshes/{mesh}/topics/{topic}/subscriptions", get(manage::subscriptions))
        .route(
            "/v1/meshes/{mesh}/topics/{topic}/subscriptions/{member}",
            put(manage::put_subscription).get(manage::subscription).delete(manage::remove_subscription),
        )
        .route("/v1/meshes/{mesh}/webhooks", get(manage::webhooks))
        .route(
            "/v1/meshes/{mesh}/webhooks/{name}",
            put(manage::put_webhook).get(manage::webhook).delete(manage::remove_webhook),
        )
        .route("/v1/meshes/{mesh}/webhooks/{name}/requeue", post(manage::requeue))
        .route("/v1/meshes/{mesh}/messages/{id}/moderation", post(manage::moderate))
        .route("/openapi.json", get(|| async { ([("content-type", "application/json")], openapi()) }))
}

/// A body that falls silent ends; who is refused before it was read gets to read why.
async fn receive(request: Request) -> Request {
    semel_http::receive(request, semel_http::Limits::default().body_timeout)
}

/// Lets pages of other origins in, where that is set.
async fn cross_origin(State(cors): State<Cors>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let allowed = cors.allowed(&parts.headers);
    let mut response = match cors.answer_preflight(&parts) {
        Some(response) => response.into_response(),
        None => next.run(Request::from_parts(parts, body)).await,
    };
    cors.expose(allowed, response.headers_mut());
    response
}
