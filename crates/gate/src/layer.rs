//! The tower layer and its builder. Owns what the gate is told; the walk of a request is in `pipeline`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::BoxError;
use axum_core::body::Body;
use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::MapOk;
use http::{Request, Response};
use semel_contract::fingerprint::Secret;
use semel_contract::identity::Identity;
use semel_contract::profile::safety::Unsafe;
use semel_contract::record::Guarantee;
use semel_contract::route::PatternError;
use semel_http::{BodyBounds, BodyRoom};
use semel_store::clock::{Clock, StoreClock, SystemClock};
use semel_store::limits::{Limiter, MemoryLimiter};
use semel_store::{ClaimStore, IntoStore};
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

use crate::form::name_of_secret;
use crate::forms::{Forms, Told};
use crate::identity::Identify;
use crate::keeper::Keeper;
use crate::measure::{self, StoreMeters, Warnings};
use crate::operations::Operations;
use crate::pipeline;
use crate::probe::Probe;
use crate::route::Route;
use crate::shared::{Entropy, Shared};

/// Requests that run at a time, with or without a client that waits.
const IN_FLIGHT_MAX: usize = 10_000;
/// Requests that wait for another with the same key, in all.
const WAITERS_MAX: usize = 100_000;
/// Requests that wait for one key.
const WAITERS_PER_KEY_MAX: usize = 10_000;
/// Budgets that a process has for all principals together; there are two.
const BUDGETS_MAX: usize = 16;

/// Builds a gate.
pub struct GateBuilder {
    store: Arc<dyn ClaimStore>,
    identity: Arc<dyn Identify>,
    routes: Vec<Route>,
    clock: Arc<dyn Clock>,
    probe: Option<Arc<dyn Probe>>,
    limiter: Arc<dyn Limiter>,
    entropy: Entropy,
    max_in_flight: usize,
    max_waiters: usize,
    max_waiters_per_key: usize,
    body_bounds: BodyBounds,
    observes: bool,
    handlers_elsewhere: bool,
    is_strict: bool,
    fingerprint_secrets: Vec<Secret>,
    forms: Told,
}

/// Why a gate cannot be built. Each names the route and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A route's pattern cannot be read.
    Pattern {
        /// The route's name.
        route: String,
        /// What is wrong with it.
        error: PatternError,
    },
    /// A route's settings would not be safe.
    Unsafe {
        /// The route's name.
        route: String,
        /// The settings, and what each must be.
        settings: Vec<Unsafe>,
    },
    /// A route is atomic, but the store encrypts or compresses answers, which a handler's own transaction cannot do.
    AtomicEncoded {
        /// The route's name.
        route: String,
    },
    /// Keys may be recorded in a form that this configuration cannot read.
    FormerKeys {
        /// Which, and what to write.
        why: String,
    },
    /// Two routes match the same requests.
    Clash {
        /// The name of the one.
        route: String,
        /// The name of the other.
        other: String,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Pattern { route, error } => write!(f, "route {route}: {error}"),
            BuildError::Unsafe { route, settings } => {
                let found: Vec<String> = settings.iter().map(ToString::to_string).collect();
                write!(f, "route {route}: {}", found.join("; "))
            }
            BuildError::AtomicEncoded { route } => write!(
                f,
                "route {route}: an atomic route's answers are written by its handler, which cannot encrypt or \
                 compress them; make the route fenced or switch encryption and compression off"
            ),
            BuildError::FormerKeys { why } => f.write_str(why),
            BuildError::Clash { route, other } => {
                write!(f, "routes {route} and {other} match the same requests")
            }
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Pattern { error, .. } => Some(error),
            BuildError::Unsafe { .. }
            | BuildError::AtomicEncoded { .. }
            | BuildError::FormerKeys { .. }
            | BuildError::Clash { .. } => None,
        }
    }
}

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
            max_in_flight: IN_FLIGHT_MAX,
            max_waiters: WAITERS_MAX,
            max_waiters_per_key: WAITERS_PER_KEY_MAX,
            body_bounds: BodyBounds::default(),
            observes: false,
            handlers_elsewhere: false,
            is_strict: false,
            fingerprint_secrets: Vec::new(),
            forms: Told::default(),
        }
    }

    /// The name under which the store remembers in which forms this gate's keys were recorded. Gates before different
    /// services that share a store have different names; replicas, and a gate whose configuration changes, have one.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.forms.gate = name.into();
        self
    }

    /// One host's keys are unknown to another's: for a gate that stands before several hosts.
    #[must_use]
    pub fn scope_by_host(mut self) -> Self {
        self.forms.by_host = true;
        self
    }

    /// Who identified callers before, where the configuration was changed since: keys that were used then stay known for
    /// one retention, on requests that still carry what it reads. Nobody else may be able to set that.
    #[must_use]
    pub fn was_identity(mut self, identity: impl Identify) -> Self {
        self.forms.was_identities.push(Arc::new(identity));
        self
    }

    /// After a change of routes, scope, identity or fingerprints, keys that were used before are not known again: whoever
    /// sends one again runs it again.
    #[must_use]
    pub fn forget_former(mut self) -> Self {
        self.forms.forgets = true;
        self
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
    pub fn max_in_flight(mut self, max: usize) -> Self {
        self.max_in_flight = max;
        self
    }

    /// At most so many requests wait for another with the same key, over all keys.
    #[must_use]
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.max_waiters = max;
        self
    }

    /// At most so many requests wait for one key.
    #[must_use]
    pub fn max_waiters_per_key(mut self, max: usize) -> Self {
        self.max_waiters_per_key = max;
        self
    }

    /// For tests: a handler of an atomic route that answers without settling panics, where it would answer 500
    /// `not-settled` in production.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// The bodies of keyed requests that are in memory at a time have at most so many bytes together; what finds no room is
    /// refused before it is read.
    #[must_use]
    pub fn max_body_bytes_in_memory(mut self, max: usize) -> Self {
        self.body_bounds.bytes_max = max;
        self
    }

    /// The body of a keyed request is read for at most so long, however steadily it drips.
    #[must_use]
    pub fn max_body_time(mut self, max: Duration) -> Self {
        self.body_bounds.time_max = max;
        self
    }

    /// Fingerprints are keyed with the first of these secrets, so that a guessable payload cannot be recognised by its
    /// hash. The others, and none, are still recognised: leave an old secret here for one retention. A gate that lacks one
    /// which may still be needed is not ready: see [`GateLayer::prepare`].
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

    /// The inner service passes requests on to other processes, as a gateway does. Their handlers settle by the fence that
    /// they are handed, so that a claim is on record before an atomic request is passed on.
    #[must_use]
    pub fn handlers_elsewhere(mut self) -> Self {
        self.handlers_elsewhere = true;
        self
    }

    /// Checks everything and makes the layer.
    ///
    /// # Errors
    /// A profile is unsafe, or two routes match the same requests.
    pub fn build(mut self) -> Result<GateLayer, BuildError> {
        for route in &self.routes {
            if let Some(error) = route.bad_pattern.clone() {
                return Err(BuildError::Pattern { route: route.name.clone(), error });
            }
            let settings = route.unsafeties();
            if !settings.is_empty() {
                return Err(BuildError::Unsafe { route: route.name.clone(), settings });
            }
        }
        let is_atomic = |route: &&Route| route.profile.guarantee == Guarantee::Atomic;
        if let Some(route) = self.routes.iter().find(is_atomic).filter(|_| self.store.encodes_answers()) {
            return Err(BuildError::AtomicEncoded { route: route.name.clone() });
        }
        self.routes.sort_by(|a, b| a.pattern.precedence(&b.pattern));
        for (at, one) in self.routes.iter().enumerate() {
            if let Some(other) =
                self.routes[at + 1..].iter().find(|other| one.pattern.clashes_with(&other.pattern))
            {
                return Err(BuildError::Clash { route: one.name.clone(), other: other.name.clone() });
            }
        }
        measure::register(self.routes.iter().map(|route| route.name.as_str()));
        let routes: Vec<Arc<Route>> = self.routes.into_iter().map(Arc::new).collect();
        self.forms.secrets = self.fingerprint_secrets.iter().map(name_of_secret).collect();
        let forms = Forms::new(
            self.forms,
            Arc::clone(&self.store),
            Arc::clone(&self.clock),
            routes.clone(),
            Arc::clone(&self.identity),
        );
        Ok(GateLayer(Arc::new(Shared {
            forms,
            operations: Operations::default(),
            keeper: Keeper::new(Arc::clone(&self.store)),
            meters: StoreMeters::default(),
            warnings: Warnings::default(),
            store: self.store,
            identity: self.identity,
            routes,
            time: StoreClock::new(self.clock.read(), None),
            clock: self.clock,
            probe: self.probe,
            limiter: self.limiter,
            budgets: MemoryLimiter::with_room_for(BUDGETS_MAX),
            entropy: self.entropy,
            in_flight: Arc::new(Semaphore::new(self.max_in_flight)),
            waiters: Arc::new(Semaphore::new(self.max_waiters)),
            max_waiters_per_key: self.max_waiters_per_key,
            max_in_flight: self.max_in_flight,
            is_strict: self.is_strict,
            bodies: BodyRoom::new(self.body_bounds),
            draining: AtomicBool::new(false),
            observes: self.observes,
            handlers_elsewhere: self.handlers_elsewhere,
            fingerprint_secrets: self.fingerprint_secrets,
        })))
    }
}

/// The gate as a tower layer.
#[derive(Clone)]
pub struct GateLayer(pub(crate) Arc<Shared>);

impl GateLayer {
    /// Begins a gate that keeps its records in this store.
    ///
    /// ```
    /// use semel_contract::identity::Identity;
    /// use semel_gate::{GateLayer, Route};
    /// use semel_store::memory::MemoryStore;
    ///
    /// let gate = GateLayer::builder(MemoryStore::new())
    ///     .identity(Identity::header("X-User"))
    ///     .route(Route::post("/orders").name("create-order"))
    ///     .build()?;
    /// # Ok::<(), semel_gate::BuildError>(())
    /// ```
    pub fn builder(store: impl IntoStore) -> GateBuilder {
        GateBuilder::new(store.into_store())
    }

    /// Asks the store in which forms keys of this gate were recorded before, and writes down those of its routes. Without
    /// this it is done at the first request with a key; then a configuration that cannot read former keys is a 503.
    ///
    /// # Errors
    /// Keys may be recorded in a form that this configuration cannot read; says what to write. A store that cannot be
    /// reached is not an error: it is asked again.
    pub async fn prepare(&self) -> Result<(), BuildError> {
        crate::forms::prepare(&self.0.forms, &self.0.meters)
            .await
            .map_err(|why| BuildError::FormerKeys { why })
    }
}

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

/// Takes requests with any body. The service behind the gate is given the request as it was read, so it takes
/// [`Body`]; its own answers may have any body. That fits axum's routes, tonic's, and every tower service that is
/// generic over its request's body.
impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for GateService<S>
where
    S: Service<Request<Body>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    ReqBody: http_body::Body<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: http_body::Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone that was polled ready is the one that is called.
        let fresh = self.inner.clone();
        let inner = Unified(std::mem::replace(&mut self.inner, fresh));
        ResponseFuture(pipeline::walk(Arc::clone(&self.shared), inner, request.map(Body::new)))
    }
}

/// The answer of a [`GateService`], in time.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<E>(pipeline::Walking<E>);

impl<E> fmt::Debug for ResponseFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<E> Future for ResponseFuture<E> {
    type Output = Result<Response<Body>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// A service whose answers have the gate's own kind of body. A body that is of this kind already stays as it is.
struct Unified<S>(S);

impl<S, B> Service<Request<Body>> for Unified<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<B>) -> Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request).map_ok(|response| response.map(Body::new))
    }
}
