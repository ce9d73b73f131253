//! What the gate is told about a route: which requests it covers and how they are protected.

use std::time::Duration;

use semel_contract::profile::safety::Unsafe;
use semel_contract::profile::{Profile, presets};
use semel_contract::record::Guarantee;
use semel_contract::route::Pattern;

/// How long a claim is exclusive without renewal.
const LEASE: Duration = Duration::from_secs(30);
/// How long after its dispatch deadline a request may still take effect, where nothing else is declared.
const LATE: Duration = Duration::from_secs(60);

/// One protected route.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) name: String,
    pub(crate) pattern: Pattern,
    pub(crate) profile: Profile,
    pub(crate) lease: Duration,
    pub(crate) late: Duration,
    pub(crate) deadline: Option<Duration>,
}

impl Route {
    /// A route with a stable name, covering requests such as `POST /orders/{id}`, with the `ietf` profile.
    ///
    /// # Errors
    /// The pattern is not one.
    pub fn new(name: &str, pattern: &str) -> Result<Self, String> {
        let pattern = pattern.parse()?;
        Ok(Self {
            name: name.to_owned(),
            pattern,
            profile: presets::ietf(),
            lease: LEASE,
            late: LATE,
            deadline: None,
        })
    }

    /// Another profile.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The handler commits its effect and its record in one transaction, by its [`Grant`](crate::Grant).
    #[must_use]
    pub fn atomic(mut self) -> Self {
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

    /// How long the handler may run. Past it an atomic attempt is rolled back and released, a fenced one is unknown, and
    /// the client gets 504.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) fn unsafeties(&self) -> Vec<Unsafe> {
        let mut found = self.profile.unsafeties();
        if self.lease < Duration::from_secs(1) {
            found.push(Unsafe {
                setting: "lease",
                reason: "must be at least 1s, so that it can be renewed in time".to_owned(),
            });
        }
        found
    }
}
