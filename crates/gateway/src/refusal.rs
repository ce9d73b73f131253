//! What the gateway itself answers, as problems. What the gate refuses is the gate's to say.

use axum_core::body::Body;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use semel_contract::problem::Problem;
use semel_contract::profile::presets;

/// A problem as a response. `status` is another than the kind's where HTTP wants it so.
pub(crate) fn refusal(problem: &Problem, status: Option<u16>, id: Option<&HeaderValue>) -> Response<Body> {
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let rendered = presets::ietf().wire.render(problem, status, id);
    let mut response = Response::new(Body::from(rendered.body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in rendered.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The same, and the connection is closed after it.
pub(crate) fn last(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
