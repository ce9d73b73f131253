//! The service behind the gate, as the gate sees it: forwards a request and tells honestly what became of it. A keyed
//! request is sent once; others stream through, upgrades included.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::body::Body;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use semel_contract::problem::{Kind, Problem, Retry};
use semel_gate::{Dispatch, Grant};
use tower_service::Service;

use crate::refusal::refusal;
use crate::tunnel;
use semel_http::headers::{self, FENCE, OUTCOME, Origin, REQUEST_ID};
use semel_http::{Activity, MaySend, NoAnswer, Paced, Pool, PooledBody};

/// Forwards requests to one service.
#[derive(Clone)]
pub(crate) struct Forward(Arc<Pool>);

impl Forward {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self(pool)
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let pool = Arc::clone(&self.0);
        let (mut parts, body) = request.into_parts();
        // Each in its own box: what passes without a key does not carry what a key needs.
        match parts.extensions.remove::<Grant>() {
            Some(grant) => Box::pin(keyed(pool, parts, body, grant)),
            None => Box::pin(unkeyed(pool, parts, body)),
        }
    }
}

/// A request whose key was claimed. Its body is in memory already.
async fn keyed(
    pool: Arc<Pool>,
    mut parts: Parts,
    body: Body,
    grant: Grant,
) -> Result<Response<Body>, Infallible> {
    let dispatch = parts.extensions.remove::<Dispatch>();
    let host = grant.counted_host(&parts).and_then(|host| HeaderValue::try_from(host).ok());
    prepare_request(&mut parts);
    // What is kept is what was sent, not one of its compressed forms that the next client may not read.
    parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Ok(fence) = HeaderValue::try_from(grant.fence().to_string()) {
        parts.headers.insert(FENCE, fence);
    }
    if let Some(host) = host {
        parts.headers.insert(headers::HOST, host);
    }
    let id = parts.headers.get(REQUEST_ID).cloned();
    // A gate that sets no limit to dispatching has none.
    let may_send =
        dispatch.map_or_else(MaySend::always, |dispatch| MaySend::when(move || dispatch.in_time()));
    Ok(match pool.send_once(without_extensions(parts, body), may_send, pool.patience()).await {
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            failure_response(unexpected_upgrade(), id.as_ref(), false)
        }
        Ok(response) => prepare_response(response, pool.patience()),
        Err(no_answer) => failure_response(no_answer, id.as_ref(), false),
    })
}

/// A request without a key: both bodies stream.
async fn unkeyed(pool: Arc<Pool>, mut parts: Parts, body: Body) -> Result<Response<Body>, Infallible> {
    let client = parts.extensions.remove::<OnUpgrade>();
    let wanted = headers::upgrade_wanted(&parts.headers).filter(|_| parts.version == Version::HTTP_11);
    prepare_request(&mut parts);
    if let Some(protocol) = &wanted {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol.clone());
    }
    let id = parts.headers.get(REQUEST_ID).cloned();
    let is_unsafe = !parts.method.is_safe();
    let room = match wanted.is_some().then(|| pool.reserve_tunnel()) {
        Some(None) => return Ok(refusal(&Problem::from(Kind::Overloaded), None, id.as_ref())),
        Some(Some(room)) => Some(room),
        None => None,
    };
    let activity = Activity::default();
    let body = Body::new(Paced::noting(body, pool.stream_idle(), activity.clone()));
    Ok(match (pool.send(without_extensions(parts, body), &activity).await, room, client) {
        (Ok(response), Some(room), Some(client)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            tunnel::open(client, response, room)
        }
        (Ok(response), _, _) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            failure_response(unexpected_upgrade(), id.as_ref(), is_unsafe)
        }
        // A gate or a library behind this one may say that nothing is known yet: without that its 202 reads like success.
        (Ok(response), _, _) => prepare_response(response, pool.stream_idle()),
        (Err(no_answer), _, _) => failure_response(no_answer, id.as_ref(), is_unsafe),
    })
}

fn unexpected_upgrade() -> NoAnswer {
    NoAnswer::Reset("the service changed the protocol unasked".to_owned())
}

/// The head of a request, as it goes on.
fn prepare_request(parts: &mut Parts) {
    let reads_trailers = parts.version == Version::HTTP_2 && headers::reads_trailers(&parts.headers);
    headers::strip_hop_by_hop(&mut parts.headers);
    if reads_trailers {
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    headers::join_cookies(&mut parts.headers);
    // The gateway answers it itself, by reading the body.
    parts.headers.remove(header::EXPECT);
    let host = parts.headers.get(header::HOST).cloned();
    if let (Some(origin), Some(host)) = (parts.extensions.remove::<Origin>(), host) {
        headers::set_forwarding(&mut parts.headers, &origin, &host);
    }
}

/// A request without what others have put into its extensions. In a box, because it is handed on several times.
fn without_extensions(parts: Parts, body: Body) -> Box<Request<Body>> {
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = parts.uri;
    *request.headers_mut() = parts.headers;
    Box::new(request)
}

/// An answer, as it goes back.
fn prepare_response(response: Response<PooledBody>, patience: Duration) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    headers::strip_hop_by_hop(&mut parts.headers);
    headers::strip_own(&mut parts.headers, Some(&OUTCOME));
    let mut response = Response::new(Body::new(Paced::new(body, patience)));
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    response
}

/// What stands in for an answer that did not come. The gate reads the extension; a client without a key sees the rest.
fn failure_response(
    no_answer: NoAnswer,
    id: Option<&HeaderValue>,
    unsafe_without_key: bool,
) -> Response<Body> {
    let (kind, failure) = match no_answer {
        NoAnswer::NotSent(why) => (Kind::UpstreamUnreachable, semel_gate::NoAnswer::NotSent(why)),
        NoAnswer::Reset(why) => (Kind::UpstreamReset, semel_gate::NoAnswer::Reset(why)),
        NoAnswer::TimedOut(why) => (Kind::UpstreamTimeout, semel_gate::NoAnswer::TimedOut(why)),
    };
    metrics::counter!("semel_gateway_upstream_failures_total", "problem" => kind.slug()).increment(1);
    tracing::warn!(broken = ?failure, "the service gave no answer");
    let mut problem = Problem::from(kind);
    if kind == Kind::UpstreamUnreachable {
        problem = problem.retry_after(Duration::from_secs(1));
    }
    // Without a key nothing protects a second try of what may have had its effect.
    let may_have_happened = unsafe_without_key && kind != Kind::UpstreamUnreachable;
    if may_have_happened {
        problem = problem.verdict(Retry::Never);
    }
    let mut response = refusal(&problem, None, id);
    if may_have_happened {
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static("unknown"));
    }
    response.extensions_mut().insert(failure);
    response
}
