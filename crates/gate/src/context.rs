//! What a keyed request is about while it is decided upon and run.

use std::sync::Arc;

use semel_contract::identity::Caller;
use semel_contract::problem::Problem;

use crate::arrival::Arrival;
use crate::route::Route;
use crate::shared::Shared;

/// What a keyed request is about, without what runs it.
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) route: Arc<Route>,
    pub(crate) arrival: Arrival,
    pub(crate) request_id: String,
    pub(crate) arrived: tokio::time::Instant,
    pub(crate) caller: Caller,
    /// The request limiter's refusal, which only a new key meets.
    pub(crate) over_limit: Option<Problem>,
}
