//! What the gateway does with a request before and after the gate: the door, the headers that are nobody's to set, the
//! request's id, and the line in the log.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use axum_core::body::Body;
use http::header::HeaderValue;
use http::{Request, Response};
use semel_contract::problem::{Kind, Problem};
use tower_service::Service;

use crate::entropy;
use crate::plan::Current;
use crate::{pages, refusal};
use semel_http::Facts;
use semel_http::framing::{self, Refused};
use semel_http::headers::{self, REQUEST_ID};

/// Answers a request. What is done before the gate is done at once, so that nothing of it is carried along.
pub(crate) fn walk(
    current: Arc<Current>,
    request: Request<Body>,
    facts: Facts,
) -> impl Future<Output = Response<Body>> + Send + 'static {
    let (mut parts, body) = request.into_parts();
    let line = current.log.line(&parts, facts.origin.peer);
    let id = headers::given_request_id(&parts.headers).cloned().unwrap_or_else(new_request_id);
    parts.headers.insert(REQUEST_ID, id.clone());
    let admitted = framing::check_request(&mut parts);
    #[cfg(feature = "otel")]
    let span = current.traces.as_ref().map(|traces| traces.begin(&mut parts));
    headers::strip_own(&mut parts.headers, None);
    for (name, peers) in &current.trusted {
        headers::strip_trusted(&mut parts.headers, name, peers.contain(facts.origin.peer));
    }
    parts.extensions.insert(facts.origin);
    let allowed = current.cors.as_ref().and_then(|cors| cors.allowed(&parts.headers));
    let preflight = current.cors.as_ref().and_then(|cors| cors.answer_preflight(&parts));
    let answer: Answer = match admitted {
        Ok(()) => match preflight.or_else(|| pages::page(&parts)) {
            Some(page) => Box::pin(ready(Ok(page))),
            None => Box::pin(current.service.clone().call(Request::from_parts(parts, body))),
        },
        Err(Refused(why)) => {
            let problem = Problem::new(Kind::RequestMalformed, why);
            Box::pin(ready(Ok(refusal::last(refusal::refusal(&problem, None, Some(&id))))))
        }
    };
    async move {
        let mut response = match answer.await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        response.headers_mut().insert(REQUEST_ID, id.clone());
        if let Some(cors) = &current.cors {
            cors.expose(allowed, response.headers_mut());
        }
        #[cfg(feature = "otel")]
        if let (Some(traces), Some(span)) = (&current.traces, span) {
            traces.end(span, &response);
        }
        current.meters.answered(response.status(), line.elapsed());
        current.log.note(line, &id, response)
    }
}

/// An answer that is under way.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn new_request_id() -> HeaderValue {
    HeaderValue::from_maybe_shared(entropy::id()).expect("hexadecimal digits are printable")
}
