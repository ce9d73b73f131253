//! The tower layer and its builder. Owns what the gate is told; the walk of a request is in `walk`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum_core::body::Body;
use http::{Request, Response};
use semel_contract::fingerprint::Secret;
use semel_contract::identity::Identity;
use semel_contract::record::Guarantee;
use semel_contract::route::Params;
use semel_contract::time::Timestamp;
use semel_store::ClaimStore;
use semel_store::clock::{Clock, StoreClock, SystemClock};
use semel_store::limits::{Limiter, MemoryLimiter};
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

use crate::identity::Identify;
use crate::keeper::Keeper;
use crate::measure::StoreMeters;
use crate::probe::Probe;
use crate::route::Route;
use crate::walk;

/// Requests that run on though their client may be gone.
const DETACHED_MAX: usize = 10_000;
/// Requests that wait for another with the same key, in all.
const WAITERS_MAX: usize = 100_000;
/// Requests that wait for one key.
const WAITERS_PER_KEY_MAX: usize = 10_000;
/// Budgets that a process has for all principals together; there are two.
const BUDGETS_MAX: usize = 16;

type Entropy = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Builds a gate.
pub struct GateBuilder {
    store: Arc<dyn ClaimStore>,
    identity: Arc<dyn Identify>,
    routes: Vec<Route>,
    clock: Arc<dyn Clock>,
    probe: Option<Arc<dyn Probe>>,
    limiter: Arc<dyn Limiter>,
    entropy: Entropy,
    detached_max: usize,
    waiters_max: usize,
    waiters_per_key_max: usize,
    observes: bool,
    fingerprint_secrets: Vec<Secret>,
}

/// Why a gate cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError(String);

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BuildError {}

impl fmt::Debug for GateBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateBuilder").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl GateBuilder {
    pub(crate) fn new(store: Arc<dyn ClaimStore>) -> Self {
        Self {
            store,
            identity: Arc::new(Identity::Authorization),
            routes: Vec::new(),
            clock: Arc::new(SystemClock),
            probe: None,
            limiter: Arc::new(MemoryLimiter::default()),
            entropy: Arc::new(|| getrandom::u64().expect("the system gives random numbers")),
            detached_max: DETACHED_MAX,
            waiters_max: WAITERS_MAX,
            waiters_per_key_max: WAITERS_PER_KEY_MAX,
            observes: false,
            fingerprint_secrets: Vec::new(),
        }
    }

    /// Who sends requests. Without this, the hashed `Authorization` header, which cannot know revocation.
    #[must_use]
    pub fn identity(mut self, identity: impl Identify) -> Self {
        self.identity = Arc::new(identity);
        self
    }

    /// Protects a route.
    #[must_use]
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Whom to ask about unknown outcomes, on routes whose policy is to ask.
    #[must_use]
    pub fn probe(mut self, probe: impl Probe) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// Where limits are counted. Without this, in this process alone.
    #[must_use]
    pub fn limiter(mut self, limiter: impl Limiter) -> Self {
        self.limiter = Arc::new(limiter);
        self
    }

    /// The clock by which leases are dispatched; another one is for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where random numbers come from; another source is for simulations, which must repeat themselves.
    #[must_use]
    pub fn entropy(mut self, entropy: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.entropy = Arc::new(entropy);
        self
    }

    /// At most so many requests run at a time; more are refused before they are claimed.
    #[must_use]
    pub fn detached_max(mut self, max: usize) -> Self {
        self.detached_max = max;
        self
    }

    /// At most so many requests wait for another with the same key: in all, and for one key.
    #[must_use]
    pub fn waiters_max(mut self, all: usize, per_key: usize) -> Self {
        self.waiters_max = all;
        self.waiters_per_key_max = per_key;
        self
    }

    /// Fingerprints are keyed with the first of these secrets, so that a guessable payload cannot be recognised by its
    /// hash. The others, and none, are still recognised: leave an old secret here for one retention.
    #[must_use]
    pub fn fingerprint_secrets(mut self, secrets: impl IntoIterator<Item = Secret>) -> Self {
        self.fingerprint_secrets.extend(secrets);
        self
    }

    /// Changes nothing: requests pass, and what would have been done about known keys is counted.
    #[must_use]
    pub fn observe(mut self) -> Self {
        self.observes = true;
        self
    }

    /// Checks everything and makes the layer.
    ///
    /// # Errors
    /// A profile is unsafe, or two routes match the same requests.
    pub fn build(mut self) -> Result<GateLayer, BuildError> {
        for route in &self.routes {
            let found: Vec<String> = route.unsafeties().iter().map(ToString::to_string).collect();
            if !found.is_empty() {
                return Err(BuildError(format!("route {}: {}", route.name, found.join("; "))));
            }
        }
        let is_atomic = |route: &&Route| route.profile.guarantee == Guarantee::Atomic;
        if let Some(route) = self.routes.iter().find(is_atomic).filter(|_| self.store.writes_alone()) {
            return Err(BuildError(format!(
                "route {}: an atomic route's answers are written by its handler, which cannot encrypt or compress them; \
                 make the route fenced or switch encryption and compression off",
                route.name
            )));
        }
        self.routes.sort_by(|a, b| a.pattern.precedence(&b.pattern));
        for (at, one) in self.routes.iter().enumerate() {
            if let Some(other) =
                self.routes[at + 1..].iter().find(|other| one.pattern.clashes_with(&other.pattern))
            {
                return Err(BuildError(format!(
                    "routes {} and {} match the same requests",
                    one.name, other.name
                )));
            }
        }
        Ok(GateLayer(Arc::new(Shared {
            keeper: Keeper::new(Arc::clone(&self.store)),
            meters: StoreMeters::default(),
            store: self.store,
            identity: self.identity,
            routes: self.routes.into_iter().map(Arc::new).collect(),
            time: StoreClock::new(self.clock.read(), None),
            clock: self.clock,
            probe: self.probe,
            limiter: self.limiter,
            budgets: MemoryLimiter::with_room_for(BUDGETS_MAX),
            entropy: self.entropy,
            detached: Arc::new(Semaphore::new(self.detached_max)),
            waiters: Arc::new(Semaphore::new(self.waiters_max)),
            waiters_per_key_max: self.waiters_per_key_max,
            detached_max: self.detached_max,
            draining: AtomicBool::new(false),
            observes: self.observes,
            fingerprint_secrets: self.fingerprint_secrets,
        })))
    }
}

/// What every request of a gate shares.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn ClaimStore>,
    identity: Arc<dyn Identify>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) clock: Arc<dyn Clock>,
    time: StoreClock,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) limiter: Arc<dyn Limiter>,
    /// What this process does for all principals together.
    pub(crate) budgets: MemoryLimiter,
    pub(crate) entropy: Entropy,
    pub(crate) keeper: Keeper,
    pub(crate) meters: StoreMeters,
    pub(crate) detached: Arc<Semaphore>,
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) waiters_per_key_max: usize,
    pub(crate) detached_max: usize,
    /// No new work is begun.
    pub(crate) draining: AtomicBool,
    /// Nothing is enforced.
    pub(crate) observes: bool,
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

/// The gate as a tower layer.
#[derive(Clone)]
pub struct GateLayer(pub(crate) Arc<Shared>);

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("routes", &self.0.routes).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { shared: Arc::clone(&self.0), inner }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct GateService<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S> fmt::Debug for GateService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").finish_non_exhaustive()
    }
}

impl<S> Service<Request<Body>> for GateService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = walk::Walking<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The clone that was polled ready is the one that is called.
        let fresh = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, fresh);
        walk::walk(Arc::clone(&self.shared), inner, request)
    }
}
