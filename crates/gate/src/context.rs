//! What a keyed request is about while it is decided upon and run.

use std::sync::Arc;

use semel_contract::identity::Caller;
use semel_contract::problem::Problem;
use semel_contract::record::Fence;

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

/// A claim that ends with its attempt where it is no more than a reservation.
pub(crate) struct Reserved {
    context: Arc<Context>,
    pub(crate) fence: Fence,
}

impl Reserved {
    pub(crate) fn new(context: &Arc<Context>, fence: Fence) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), fence })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.context.shared.store.give_back(&self.context.arrival.id, self.fence);
    }
}
