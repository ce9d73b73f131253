//! The routes of the simulated service: one for each policy that the gate knows.

use std::time::Duration;

use semel_contract::json::Pointer;
use semel_contract::profile::{
    FailedKey, FirstSent, Guard, InFlight, OnError, OnUnknown, Profile, Rate, Stored, presets,
};
use semel_contract::staleness::{Staleness, Submitted};
use semel_gate::Route;

/// How long a client may go on retrying.
pub const RETRY_WINDOW: Duration = Duration::from_secs(3600);
/// How far clocks may be apart.
const SKEW: Duration = Duration::from_secs(60);
/// What records live longer than that.
const MARGIN: Duration = Duration::from_secs(480);
/// How long a released row is kept, where it is kept for a while.
const RELEASED: Duration = Duration::from_secs(300);
/// How long a second request waits for the first.
const WAIT: Duration = Duration::from_secs(6);
/// How long a handler may run.
pub const DEADLINE: Duration = Duration::from_secs(7);
/// How long after the lease a request may still take effect.
pub const LATE: Duration = Duration::from_secs(15);
/// The lease of a claim.
const LEASE: Duration = Duration::from_secs(3);
/// The leases where they differ.
const LEASE_SHORT: Duration = Duration::from_secs(2);
const LEASE_LONG: Duration = Duration::from_secs(12);
/// How old an action may be where that is guarded.
pub const CAP: Duration = Duration::from_secs(1800);
/// What is forgiven.
pub const GRACE: Duration = Duration::from_secs(300);
/// How many requests one caller may make where that is limited.
const REQUESTS: Rate = Rate { count: 12, window: Duration::from_secs(10) };
/// How many new keys.
const NEW_KEYS: Rate = Rate { count: 6, window: Duration::from_secs(10) };
/// The largest answer that is kept.
pub const KEPT_BYTES_MAX: u64 = 512;
/// The largest body that is read.
pub const UPLOAD_BYTES_MAX: usize = 8 << 10;
/// So many bodies whose size nobody says fill a replica's memory for bodies.
pub const UPLOADS_MAX: usize = 8;
/// How long a body may take.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_secs(20);

macro_rules! endpoints {
    ($($endpoint:ident $name:literal)*) => {
        /// One route of the service, named by its policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Endpoint { $(#[doc = $name] $endpoint,)* }

        impl Endpoint {
            /// Every route.
            pub const ALL: &'static [Endpoint] = &[$(Endpoint::$endpoint,)*];

            /// The route's name.
            pub fn name(self) -> &'static str {
                match self { $(Endpoint::$endpoint => $name,)* }
            }
        }
    };
}

endpoints! {
    Hold "hold"
    Probe "probe"
    Forward "forward"
    Rerun "rerun"
    Atomic "atomic"
    Release "release"
    Spent "spent"
    Aged "aged"
    Guarded "guarded"
    Limited "limited"
}

/// How often a request may take effect on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// At most once.
    Once,
    /// At most once, because the upstream itself knows keys.
    OnceByUpstream,
    /// At least once, as the route says in so many words.
    AtLeastOnce,
}

impl Endpoint {
    /// How often a request may take effect here.
    pub fn effects(self) -> Effects {
        match self {
            Endpoint::Rerun => Effects::AtLeastOnce,
            Endpoint::Forward => Effects::OnceByUpstream,
            Endpoint::Hold
            | Endpoint::Probe
            | Endpoint::Atomic
            | Endpoint::Release
            | Endpoint::Spent
            | Endpoint::Aged
            | Endpoint::Guarded
            | Endpoint::Limited => Effects::Once,
        }
    }

    /// Whether a server error says that the upstream rolled back.
    pub fn rolls_back_on_error(self) -> bool {
        self == Endpoint::Release
    }

    /// Its profile.
    pub fn profile(self) -> Profile {
        let mut profile = presets::ietf();
        profile.set_retry_window(RETRY_WINDOW);
        profile.lifetime.skew = SKEW;
        profile.lifetime.margin = MARGIN;
        profile.stored = Stored {
            max_response_bytes: KEPT_BYTES_MAX,
            max_body_bytes: UPLOAD_BYTES_MAX as u64,
            ..profile.stored
        };
        profile.in_flight = InFlight::Wait { deadline: WAIT };
        match self {
            Endpoint::Hold | Endpoint::Atomic => {}
            Endpoint::Probe => profile.on_unknown = OnUnknown::Probe,
            Endpoint::Forward => profile.on_unknown = OnUnknown::Forward,
            Endpoint::Rerun => profile.on_unknown = OnUnknown::Rerun,
            Endpoint::Release => {
                profile.on_error = OnError::Release;
                profile.lifetime.released = Some(RELEASED);
            }
            Endpoint::Spent => {
                profile.failed_key = FailedKey::Sealed;
                profile.lifetime.released = Some(profile.lifetime.record());
                profile.in_flight = InFlight::Reject { retry_after: Duration::from_secs(1) };
            }
            Endpoint::Guarded => {
                profile.guard = Some(Guard {
                    generated_at: Pointer::parse("/generatedAt").expect("the pointer is one"),
                    submitted_at: None,
                    bounds: Staleness {
                        cap: CAP,
                        grace: GRACE,
                        submitted: Submitted::Ignore,
                        submitted_gap: None,
                    },
                });
            }
            Endpoint::Limited => {
                profile.limits.request = Some(REQUESTS);
                profile.limits.admission = Some(NEW_KEYS);
            }
            Endpoint::Aged => {
                profile.age = Some(FirstSent { from_uuid7: false });
                profile.in_flight = InFlight::Accepted;
            }
        }
        profile
    }

    /// How long a claim is exclusive without renewal.
    pub fn lease(self, mixed: bool) -> Duration {
        match (mixed, self) {
            (false, _) => LEASE,
            (
                true,
                Endpoint::Hold | Endpoint::Rerun | Endpoint::Spent | Endpoint::Atomic | Endpoint::Guarded,
            ) => LEASE_SHORT,
            (
                true,
                Endpoint::Probe | Endpoint::Forward | Endpoint::Release | Endpoint::Aged | Endpoint::Limited,
            ) => LEASE_LONG,
        }
    }

    /// The route as the gate is told about it.
    pub fn route(self, mixed: bool) -> Route {
        let route =
            Route::new(self.name(), &format!("POST /{}/{{item}}", self.name())).expect("the pattern is one");
        let route =
            route.profile(self.profile()).lease(self.lease(mixed)).late_window(LATE).deadline(DEADLINE);
        match self {
            Endpoint::Atomic => route.atomic(),
            Endpoint::Hold
            | Endpoint::Probe
            | Endpoint::Forward
            | Endpoint::Rerun
            | Endpoint::Release
            | Endpoint::Spent
            | Endpoint::Aged
            | Endpoint::Guarded
            | Endpoint::Limited => route,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_safe_by_the_contracts_own_arithmetic() {
        for endpoint in Endpoint::ALL {
            assert_eq!(endpoint.profile().unsafeties(), [], "{}", endpoint.name());
        }
    }
}
