//! What answers requests, as a trait, and what it is told beside the request itself.

use std::future::Future;

use axum_core::body::Body;
use http::{Request, Response};

use crate::headers::Origin;

/// Answers requests.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The answer to a request. What can be done at once is done before this returns, so that what waits is small. That part
    /// runs in the task of the connection, for all the streams of one; it must not panic.
    fn answer(
        &self,
        request: Request<Body>,
        facts: Facts,
    ) -> impl Future<Output = Response<Body>> + Send + 'static;
}

/// What is known of a request beside what it says.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Where it came from.
    pub origin: Origin,
}
