//! What the gateway does with a request before and after the gate: the door, the headers that are nobody's to set, the
//! request's id, and the line in the log.

use axum_core::body::Body;
use http::header::HeaderValue;
use http::{Request, Response, StatusCode};
use semel_contract::problem::{Kind, Problem};

use crate::access::Line;
use crate::door::{self, Refused};
use crate::gateway::Current;
use crate::headers::{self, Origin, REQUEST_ID};
use crate::server::Facts;
use crate::{pages, refusal};

/// Answers a request.
pub(crate) async fn walk(current: &Current, request: Request<Body>, facts: Facts) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let line = Line::begin(&parts, facts.peer.ip());
    let id = headers::given_request_id(&parts.headers).cloned().unwrap_or_else(new_request_id);
    parts.headers.insert(REQUEST_ID, id.clone());
    let admitted = door::admit(&mut parts);
    headers::strip_own(&mut parts.headers, None);
    for (name, peers) in &current.trusted {
        if !peers.contain(facts.peer.ip()) {
            parts.headers.remove(name);
        }
    }
    parts.extensions.insert(Origin { peer: facts.peer.ip(), scheme: facts.scheme });
    let mut response = match admitted {
        Ok(()) => match pages::page(&parts) {
            Some(page) => page,
            None => current.gated(Request::from_parts(parts, body)).await,
        },
        Err(Refused(why)) => {
            let problem = Problem::new(Kind::RequestMalformed, why);
            refusal::last(refusal::refusal(&problem, None, &parts.headers))
        }
    };
    response.headers_mut().insert(REQUEST_ID, id.clone());
    measured(&line, response.status());
    current.log.note(line, &id, response)
}

/// Counts a request and how long its answer took to begin.
fn measured(line: &Line, status: StatusCode) {
    let class = match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    };
    metrics::counter!("semel_gateway_requests_total", "status" => class).increment(1);
    metrics::histogram!("semel_gateway_request_seconds").record(line.elapsed().as_secs_f64());
}

fn new_request_id() -> HeaderValue {
    let random = u128::from(getrandom::u64().unwrap_or_default()) << 64
        | u128::from(getrandom::u64().unwrap_or_default());
    HeaderValue::try_from(format!("{random:032x}")).expect("hexadecimal digits are printable")
}
