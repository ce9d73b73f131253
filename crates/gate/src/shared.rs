//! What every request of a gate shares: its store, its routes, its limits and its clocks. Decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_contract::fingerprint::Secret;
use semel_contract::route::Params;
use semel_contract::time::Timestamp;
use semel_http::BodyRoom;
use semel_store::ClaimStore;
use semel_store::clock::{Clock, StoreClock};
use semel_store::limits::{Limiter, MemoryLimiter};
use tokio::sync::Semaphore;

use crate::forms::Forms;
use crate::identity::Identify;
use crate::keeper::Keeper;
use crate::measure::{StoreMeters, Warnings};
use crate::operations::Operations;
use crate::probe::Probe;
use crate::route::Route;

/// Where random numbers come from.
pub(crate) type Entropy = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What every request of a gate shares.
pub(crate) struct Shared {
    pub(crate) forms: Forms,
    pub(crate) operations: Operations,
    pub(crate) store: Arc<dyn ClaimStore>,
    pub(crate) identity: Arc<dyn Identify>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time: StoreClock,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) limiter: Arc<dyn Limiter>,
    /// What this process does for all principals together.
    pub(crate) budgets: MemoryLimiter,
    pub(crate) entropy: Entropy,
    pub(crate) keeper: Keeper,
    pub(crate) meters: StoreMeters,
    pub(crate) warnings: Warnings,
    pub(crate) in_flight: Arc<Semaphore>,
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) max_waiters_per_key: usize,
    pub(crate) max_in_flight: usize,
    /// A handler that forgot to settle panics.
    pub(crate) is_strict: bool,
    pub(crate) bodies: BodyRoom,
    /// No new work is begun.
    pub(crate) draining: AtomicBool,
    /// Nothing is enforced.
    pub(crate) observes: bool,
    /// The inner service passes requests on to other processes.
    pub(crate) handlers_elsewhere: bool,
    pub(crate) fingerprint_secrets: Vec<Secret>,
}

impl Shared {
    /// The time as it ticks: a wall clock that jumps does not shut a limiter, nor open it.
    pub(crate) fn now(&self) -> Timestamp {
        self.time.now(self.clock.read())
    }

    /// Who identifies the callers of a route.
    pub(crate) fn identity<'a>(&'a self, route: &'a Route) -> &'a dyn Identify {
        route.callers.as_ref().map_or(&*self.identity, |callers| &*callers.0)
    }

    /// The store, and what is counted of its calls.
    pub(crate) fn asked(&self) -> (&dyn ClaimStore, &StoreMeters) {
        (&*self.store, &self.meters)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The route that a request belongs to, with its path parameters.
    pub(crate) fn route<'a>(
        &'a self,
        method: &str,
        path: &'a str,
    ) -> Option<(&'a Arc<Route>, Params<'a, 'a>)> {
        self.routes.iter().find_map(|route| Some((route, route.pattern.matches(method, path)?)))
    }
}
