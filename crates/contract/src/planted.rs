//! Bugs that are planted on purpose, so that the tests are themselves tested: built once with the feature `planted`,
//! chosen at run time by `SEMEL_PLANTED`, and caught by tests that know nothing of them. Without the feature every
//! question here is answered no, by the compiler.

macro_rules! bugs {
    ($($bug:ident $name:literal $about:literal)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $(#[doc = $about] $bug,)* }

        impl Bug {
            /// Every bug there is.
            pub const ALL: &'static [Bug] = &[$(Bug::$bug,)*];

            /// The name that chooses it.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }

            /// What is wrong with it.
            pub fn about(self) -> &'static str {
                match self { $(Bug::$bug => $about,)* }
            }
        }
    };
}

bugs! {
    FingerprintWithoutPath  "fingerprint-without-path"  "path parameters do not count"
    FingerprintWithoutBody  "fingerprint-without-body"  "the body does not count"
    ScopeWithoutPrincipal   "scope-without-principal"   "all principals share their keys"
    ServerErrorReleased     "server-error-released"     "a 5xx frees the key on a route that holds"
    TransientErrorKept      "transient-error-kept"      "a 429 is kept and replayed"
    TooOldExecuted          "too-old-executed"          "a request first sent too long ago is run"
    StaleAccepted           "stale-accepted"            "an action beyond the cap is accepted"
    NoFenceOnSettle         "no-fence-on-settle"        "anybody may settle"
    FencesReused            "fences-reused"             "numbers begin again after a release"
    SweepsLiveClaims        "sweeps-live-claims"        "a claim is removed while its handler runs"
    WallClockBelieved       "wall-clock-believed"       "a jump of the wall clock expires records"
    ReplayCharged           "replay-charged"            "a known key is refused by the limiter"
    AnswerBeforeSettle      "answer-before-settle"      "the answer does not wait for its settlement"
    DispatchAfterLease      "dispatch-after-lease"      "the handler is called though the lease has lapsed"
    LeaseNotRenewed         "lease-not-renewed"         "a long handler loses its claim"
    CancelledByClient       "cancelled-by-client"       "a client that goes away cancels its request"
    RotationUnnoticed       "rotation-unnoticed"        "a rotated credential runs the request again"
    LargeAnswerForgotten    "large-answer-forgotten"    "a large answer leaves no tombstone"
    CookieKept              "cookie-kept"               "a replay repeats Set-Cookie"
    UnknownFreed            "unknown-freed"             "an attempt that broke off frees its key"
    IdentityLast            "identity-last"             "a key is answered before its caller is known"
    LostKeyRun              "lost-key-run"              "a key whose record a restore may have lost is run"
}

/// Whether this bug is planted.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// The variable that chooses a bug.
#[cfg(feature = "planted")]
pub const VARIABLE: &str = "SEMEL_PLANTED";

/// Whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(bug.name())
}
