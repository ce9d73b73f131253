//! What the gate is told about a route: which requests it covers and how they are protected.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use semel_contract::hex::hex;
use semel_contract::profile::safety::Unsafe;
use semel_contract::profile::{OnUnknown, Profile, presets};
use semel_contract::record::Guarantee;
use semel_contract::route::{Pattern, PatternError};
use sha2::{Digest, Sha256};

use crate::identity::{Callers, Identify};
use crate::measure::RouteMeters;

/// How long a claim is exclusive without renewal.
const LEASE: Duration = Duration::from_secs(30);
/// How long after its dispatch deadline a request may still take effect, where nothing else is declared.
const LATE: Duration = Duration::from_secs(60);
/// How long a handler is believed to run at most where its route does not say; only resolutions wait for it.
const RUNS_AT_MOST: Duration = Duration::from_secs(3600);
/// Endpoints that are made of a path are no longer than this; the rest of a longer path is hashed.
const ENDPOINT_BYTES_MAX: usize = 255;

/// One protected route.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) name: String,
    pub(crate) pattern: Pattern,
    pub(crate) profile: Profile,
    pub(crate) lease: Duration,
    pub(crate) late: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) former_names: Vec<String>,
    pub(crate) callers: Option<Callers>,
    pub(crate) meters: Arc<RouteMeters>,
    /// Whether the log has said what to do about replayed errors.
    pub(crate) has_replayed_error: Arc<AtomicBool>,
    pub(crate) by_path: bool,
    /// Set by [`Route::atomic`], so that a profile that is given later does not undo it.
    is_atomic: bool,
    /// Why the pattern cannot be read, told when the gate is built.
    pub(crate) bad_pattern: Option<PatternError>,
}

impl Route {
    /// Every method but the safe ones, on every path; each path is an endpoint of its own.
    pub fn any() -> Self {
        let route = Self::new("any", "* /{path*}").expect("this pattern is one");
        route.endpoint_by_path()
    }

    /// Covers `POST` requests of a path such as `/orders/{id}`. A path that cannot be read is told when the gate is
    /// built. Without [`Route::name`] the route is named by its method and path.
    ///
    /// ```
    /// use semel_gate::Route;
    /// let route = Route::post("/orders").name("create-order").atomic();
    /// ```
    pub fn post(path: &str) -> Self {
        Self::of_method("POST", path)
    }

    /// Covers `PUT` requests of a path.
    pub fn put(path: &str) -> Self {
        Self::of_method("PUT", path)
    }

    /// Covers `PATCH` requests of a path.
    pub fn patch(path: &str) -> Self {
        Self::of_method("PATCH", path)
    }

    /// Covers `DELETE` requests of a path.
    pub fn delete(path: &str) -> Self {
        Self::of_method("DELETE", path)
    }

    fn of_method(method: &str, path: &str) -> Self {
        let text = format!("{method} {path}");
        Self::new(&text, &text)
            .unwrap_or_else(|error| Self { bad_pattern: Some(error), ..Self::any().name(text) })
    }

    /// A route with a stable name, covering requests such as `POST /orders/{id}`, with the `ietf` profile.
    ///
    /// # Errors
    /// The pattern cannot be read.
    pub fn new(name: &str, pattern: &str) -> Result<Self, PatternError> {
        let pattern = pattern.parse()?;
        Ok(Self {
            is_atomic: false,
            bad_pattern: None,
            name: name.to_owned(),
            pattern,
            profile: presets::ietf(),
            lease: LEASE,
            late: LATE,
            deadline: None,
            former_names: Vec::new(),
            callers: None,
            meters: Arc::default(),
            has_replayed_error: Arc::default(),
            by_path: false,
        })
    }

    /// The endpoint is not the route's name but the request's method and path, such as `POST /orders`.
    #[must_use]
    pub fn endpoint_by_path(mut self) -> Self {
        self.by_path = true;
        self
    }

    /// Former names of this endpoint: keys that are known under one of them stay known. Leave a name here for one
    /// retention after a rename, and rename only once no older release serves requests any more.
    #[must_use]
    pub fn former_names(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.former_names.extend(names);
        self
    }

    /// Who sends requests on this route, where that is another question than on the others: at a registration nobody has
    /// a credential yet.
    #[must_use]
    pub fn identity(mut self, identity: impl Identify) -> Self {
        self.callers = Some(Callers(Arc::new(identity)));
        self
    }

    /// The stable name under which keys of this route are recorded. It survives a change of the path; to change the name
    /// itself, see [`Route::former_names`].
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The endpoint that a request belongs to: what its key is for.
    pub(crate) fn endpoint(&self, method: &str, path: &str) -> Cow<'_, str> {
        match self.by_path {
            true => Cow::Owned(endpoint_of_path(method, path)),
            false => Cow::Borrowed(&self.name),
        }
    }

    /// Whether an endpoint of this name is this route's. A client that does not know the name says which request it
    /// made, such as `POST /orders`.
    pub(crate) fn has_endpoint(&self, endpoint: &str) -> bool {
        match endpoint.split_once(' ') {
            Some((method, path)) => self.pattern.matches(method, path).is_some(),
            None => !self.by_path && endpoint == self.name,
        }
    }

    /// Another profile. A route that was made [`atomic`](Route::atomic) stays so.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        if self.is_atomic { self.atomic() } else { self }
    }

    /// The handler commits its effect and its record in one transaction, by its [`Grant`](crate::Grant).
    #[must_use]
    pub fn atomic(mut self) -> Self {
        self.is_atomic = true;
        self.profile.guarantee = Guarantee::Atomic;
        self
    }

    /// How long a claim is exclusive without renewal. Handlers may run longer: claims are renewed while they do.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long after the lease a request that was sent may still take effect. Before that nobody may say that it did
    /// not.
    #[must_use]
    pub fn late_window(mut self, late: Duration) -> Self {
        self.late = late;
        self
    }

    /// How long the handler may run, its answer included. Past it an atomic attempt is rolled back and released, a fenced one is unknown, and
    /// the client gets 504.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long an attempt may take from its dispatch to the end of its answer.
    pub(crate) fn runs_at_most(&self) -> Duration {
        self.deadline.unwrap_or(RUNS_AT_MOST)
    }

    pub(crate) fn unsafeties(&self) -> Vec<Unsafe> {
        let mut found = self.profile.unsafeties();
        if self.lease < Duration::from_secs(1) {
            found.push(Unsafe {
                setting: "lease",
                reason: "must be at least 1s, so that it can be renewed in time".to_owned(),
            });
        }
        if self.profile.on_unknown == OnUnknown::Probe && self.deadline.is_none() {
            found.push(Unsafe {
                setting: "deadline",
                reason: "must be set on a route that asks a probe: without it, a handler that still runs cannot be \
                         told from one that failed"
                    .to_owned(),
            });
        }
        found
    }
}

/// The endpoint of a request on a route whose endpoints are its paths: `POST /orders`. What is too long for a name is
/// cut, and its hash takes the place of the rest.
pub fn endpoint_of_path(method: &str, path: &str) -> String {
    let endpoint = [method, " ", path].concat();
    if endpoint.len() <= ENDPOINT_BYTES_MAX {
        return endpoint;
    }
    let digest = hex(&Sha256::digest(&endpoint)[..16]);
    let cut = endpoint.floor_char_boundary(ENDPOINT_BYTES_MAX - digest.len() - 1);
    format!("{}#{digest}", &endpoint[..cut])
}
