//! Bugs that are planted on purpose, so that the tests are themselves tested: built once with the feature `_planted`,
//! chosen at run time by `SEMEL_PLANTED`, and caught by tests that know nothing of them. Without the feature every
//! question here is answered no, by the compiler.

macro_rules! bugs {
    ($($engine:literal $bug:ident $name:literal $about:literal)*) => {
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

            /// The engine that has it: `gate`, `gateway`, `outbox`, `relay` or `broker`.
            pub fn engine(self) -> &'static str {
                match self { $(Bug::$bug => $engine,)* }
            }

            /// What is wrong with it.
            pub fn about(self) -> &'static str {
                match self { $(Bug::$bug => $about,)* }
            }
        }
    };
}

bugs! {
    "gate"   FingerprintWithoutPath          "fingerprint-without-path"       "path parameters do not count"
    "gate"   FingerprintWithoutBody          "fingerprint-without-body"       "the body does not count"
    "gate"   ScopeWithoutPrincipal           "scope-without-principal"        "all principals share their keys"
    "gate"   ServerErrorReleased             "server-error-released"          "a 5xx frees the key on a route that holds"
    "gate"   TransientErrorKept              "transient-error-kept"           "a 429 is kept and replayed"
    "gate"   TooOldExecuted                  "too-old-executed"               "a request first sent too long ago is run"
    "gate"   StaleAccepted                   "stale-accepted"                 "an action beyond the cap is accepted"
    "gate"   NoFenceOnSettle                 "no-fence-on-settle"             "anybody may settle"
    "gate"   FencesReused                    "fences-reused"                  "numbers begin again after a release"
    "gate"   SweepsLiveClaims                "sweeps-live-claims"             "a claim is removed while its handler runs"
    "gate"   WallClockBelieved               "wall-clock-believed"            "a jump of the wall clock expires records"
    "gate"   ClockBelievedAtStart            "clock-believed-at-start"        "a clock that was set while nobody ran expires records"
    "gate"   ClockStepsAddUp                 "clock-steps-add-up"             "small steps of the server's clock let a claim lapse early"
    "gate"   ReplayCharged                   "replay-charged"                 "a known key is refused by the limiter"
    "gate"   AnswerBeforeSettle              "answer-before-settle"           "the answer does not wait for its settlement"
    "gate"   DispatchAfterLease              "dispatch-after-lease"           "the handler is called though the lease has lapsed"
    "gate"   FirstByteUnasked                "first-byte-unasked"             "a request that waited inside its connection is sent after its time"
    "gate"   LeaseNotRenewed                 "lease-not-renewed"              "a long handler loses its claim"
    "gate"   CancelledByClient               "cancelled-by-client"            "a client that goes away cancels its request"
    "gate"   RotationUnnoticed               "rotation-unnoticed"             "a rotated credential runs the request again"
    "gate"   LargeAnswerForgotten            "large-answer-forgotten"         "a large answer leaves no tombstone"
    "gate"   CookieKept                      "cookie-kept"                    "a replay repeats Set-Cookie"
    "gate"   UnknownFreed                    "unknown-freed"                  "an attempt that broke off frees its key"
    "gate"   IdentityLast                    "identity-last"                  "a key is answered before its caller is known"
    "gate"   LostKeyRun                      "lost-key-run"                   "a key whose record a restore may have lost is run"
    "gate"   ReplacedGateClaims              "replaced-gate-claims"           "a gate whose configuration was replaced still claims"
    "gate"   FormerFormUnasked               "former-form-unasked"            "a key that is known in a former form is run again"
    "gate"   ScopeWithoutHost                "scope-without-host"             "one host's answer is given to another's client"
    "gateway" KeyedStreamShared              "keyed-stream-shared"            "a keyed request waits for a stream on a connection that others share"
    "outbox" OutboxAnswerBeforeSync          "outbox-answer-before-sync"      "a message is said to be in before its commit is done"
    "outbox" OutboxOrderBroken               "outbox-order-broken"            "a retry lets later messages of its lane pass"
    "outbox" OutboxAliasForgotten            "outbox-alias-forgotten"         "a double tap leaves no alias of its id"
    "outbox" OutboxNoFence                   "outbox-no-fence"                "anybody may settle an attempt"
    "outbox" OutboxRequeueUnsealed           "outbox-requeue-unsealed"        "a requeue does not seal the old key"
    "outbox" OutboxKeyChanges                "outbox-key-changes"             "a retry is sent under another key"
    "outbox" OutboxAmbiguityForgotten        "outbox-ambiguity-forgotten"     "an attempt that broke off is said to have had no effect"
    "outbox" OutboxInterruptionForgotten     "outbox-interruption-forgotten"  "what a crash interrupted is said to have had no effect"
    "outbox" OutboxRefusalBelieved           "outbox-refusal-believed"        "a refusal of the gate is said to mean that no attempt had an effect"
    "outbox" OutboxHashedSealBelieved        "outbox-hashed-seal-believed"    "a seal under a hashed credential is taken for a seal of the key"
    "outbox" OutboxFirstByteUnasked          "outbox-first-byte-unasked"      "a message is sent although its claim ended while it connected"
    "outbox" OutboxCursorFirst               "outbox-cursor-first"            "a line goes on before what came on it is on disk"
    "relay"  RelayFirstByteUnasked           "relay-first-byte-unasked"       "a batch is sent although its lease ended while it connected"
    "relay"  RelayMergedIntoFrozen           "relay-merged-into-frozen"       "entries join a batch that is frozen, and pass the watermark"
    "relay"  RelayNoFence                    "relay-no-fence"                 "whoever held a lane once may settle it"
    "relay"  RelayEntriesBelowWatermark      "relay-entries-below-watermark"  "the watermark passes an entry that is still to come"
    "relay"  RelayWatermarkFirst             "relay-watermark-first"          "a batch is settled before it is written"
    "relay"  RelaySentBeforeFrozen           "relay-sent-before-frozen"       "a batch is sent before it is on disk"
    "relay"  RelayAmbiguousSentAnew          "relay-ambiguous-sent-anew"      "a batch that may have been applied is formed anew"
    "relay"  RelayLateWindowIgnored          "relay-late-window-ignored"      "a write is not waited for that may still be applied"
    "relay"  RelayUnauthorizedParksAmbiguous "relay-401-parks-ambiguous"      "a 401 dissolves a batch that may have been applied"
    "relay"  RelayForgottenKeySent           "relay-forgotten-key-sent"       "a key that the upstream may have forgotten is sent again"
    "broker" BrokerDedupeFirst               "broker-dedupe-first"            "an id is committed before its message"
    "broker" BrokerLimiterBeforeB0           "broker-limiter-before-b0"       "the retry of a committed id is refused by the limiter"
    "broker" BrokerPushBeforeCommit          "broker-push-before-commit"      "readers are told of a message that is not committed"
    "broker" BrokerWebhooksOutside           "broker-webhooks-outside"        "what is owed to webhooks is written after the message"
    "broker" BrokerNumberBeforeLock          "broker-number-before-lock"      "a number is taken before the line is locked"
    "broker" BrokerIntervalWithoutLock       "broker-interval-without-lock"   "a subscription begins at a number that was read without the lock"
    "broker" BrokerServerClockBelieved       "broker-server-clock-believed"   "a jump of the server's clock expires ids"
}

/// Whether this bug is planted.
#[cfg(not(feature = "_planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// The variable that chooses a bug.
#[cfg(feature = "_planted")]
pub const VARIABLE: &str = "SEMEL_PLANTED";

/// Whether this bug is planted.
#[cfg(feature = "_planted")]
pub fn is(bug: Bug) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(bug.name())
}
