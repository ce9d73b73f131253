//! What the gateway does with a request before and after the gate: the door, the headers that are nobody's to set, the
//! request's id, and the line in the log.

use axum_core::body::Body;
use http::header::HeaderValue;
use http::{Request, Response};
use semel_contract::hex::hex;
use semel_contract::problem::{Kind, Problem};

use crate::door::{self, Refused};
use crate::entropy;
use crate::gateway::Current;
use crate::headers::{self, REQUEST_ID};
use crate::server::Facts;
use crate::{pages, refusal};

/// Answers a request.
pub(crate) async fn walk(current: &Current, request: Request<Body>, facts: Facts) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let line = current.log.line(&parts, facts.origin.peer);
    let id = headers::given_request_id(&parts.headers).cloned().unwrap_or_else(new_request_id);
    parts.headers.insert(REQUEST_ID, id.clone());
    let admitted = door::admit(&mut parts);
    headers::strip_own(&mut parts.headers, None);
    for (name, peers) in &current.trusted {
        if !peers.contain(facts.origin.peer) {
            parts.headers.remove(name);
        }
    }
    parts.extensions.insert(facts.origin);
    let mut response = match admitted {
        Ok(()) => match pages::page(&parts) {
            Some(page) => page,
            None => current.gated(Request::from_parts(parts, body)).await,
        },
        Err(Refused(why)) => {
            let problem = Problem::new(Kind::RequestMalformed, why);
            refusal::last(refusal::refusal(&problem, None, Some(&id)))
        }
    };
    response.headers_mut().insert(REQUEST_ID, id.clone());
    current.meters.answered(response.status(), line.elapsed());
    current.log.note(line, &id, response)
}

fn new_request_id() -> HeaderValue {
    let random = [entropy::number(), entropy::number()].map(u64::to_be_bytes);
    HeaderValue::try_from(hex(random.as_flattened())).expect("hexadecimal digits are printable")
}
