//! Everything that can be refused, once. What happened ([`Kind`]), the words for this case ([`Problem`]); how it is
//! written on the wire is in [`render`]. Every kind has a page under `spec/problems/`.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

pub mod render;

/// What a client may do after a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Send the same request again with the same key.
    SameKey,
    /// This key is spent; a new intention needs a new key.
    NewKey,
    /// Sending it again unchanged cannot succeed.
    Never,
}

impl Retry {
    /// `same-key`, `new-key` or `never`.
    pub fn name(self) -> &'static str {
        match self {
            Retry::SameKey => "same-key",
            Retry::NewKey => "new-key",
            Retry::Never => "never",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $slug:literal $status:literal $retry:ident $title:literal)*) => {
        /// What went wrong. The list is closed: a new kind needs a row here and a page in `spec/problems/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $(#[doc = $title] $kind,)* }

        impl Kind {
            /// Every kind there is.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// The last part of the problem's type.
            pub fn slug(self) -> &'static str {
                match self { $(Kind::$kind => $slug,)* }
            }

            /// The status it is answered with unless a profile says otherwise.
            pub fn status(self) -> u16 {
                match self { $(Kind::$kind => $status,)* }
            }

            /// What the client may do.
            pub fn retry(self) -> Retry {
                match self { $(Kind::$kind => Retry::$retry,)* }
            }

            /// The problem in a few words.
            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)* }
            }
        }
    };
}

kinds! {
    RequestMalformed    "request-malformed"    400 Never   "The request cannot be read"
    IdentityMissing     "identity-missing"     401 Never   "The request has no verified identity"
    IdentityRefused     "identity-refused"     403 Never   "The caller may not send this request"
    IdentityUnavailable "identity-unavailable" 503 SameKey "The caller could not be verified"
    KeyMissing          "key-missing"          400 Never   "An idempotency key is required"
    KeyInvalid          "key-invalid"          400 Never   "The idempotency key is malformed"
    KeyAmbiguous        "key-ambiguous"        400 Never   "More than one idempotency key was given"
    KeyTooWeak          "key-too-weak"         400 Never   "The idempotency key could be guessed"
    HeaderMissing       "header-missing"       400 Never   "A required header is missing or malformed"
    BodyNotJson         "body-not-json"        400 Never   "The body must be JSON here"
    BodyTooLarge        "body-too-large"       413 Never   "The body is too large"
    TimestampInvalid    "timestamp-invalid"    400 Never   "A timestamp is missing or malformed"
    FirstSentInFuture   "first-sent-in-future" 400 Never   "The first attempt lies in the future"
    StaleAction         "stale-action"         422 Never   "The action is too old or too far in the future"
    TooOld              "too-old"              422 Never   "The request was first sent too long ago"
    FingerprintMismatch "fingerprint-mismatch" 422 NewKey  "The key was used for a different request"
    InFlight            "in-flight"            409 SameKey "A request with this key is being processed"
    TooManyWaiters      "too-many-waiters"     409 SameKey "Too many requests wait for this key"
    OutcomeUnknown      "outcome-unknown"      409 SameKey "It is not known whether the first request took effect"
    Superseded          "superseded"           409 SameKey "Another attempt holds this key now"
    KeyUnknown          "key-unknown"          404 SameKey "Nothing is known of the key"
    KeySealed           "key-sealed"           409 NewKey  "The key was cancelled"
    CredentialChanged   "credential-changed"   409 Never   "The key was used with another credential"
    AnswerNotKept       "answer-not-kept"      409 Never   "The answer to this request was not kept"
    RequestLimited      "request-limited"      429 SameKey "Too many requests"
    AdmissionLimited    "admission-limited"    429 SameKey "Too many new keys"
    Overloaded          "overloaded"           503 SameKey "Too much work is in progress"
    StoreUnavailable    "store-unavailable"    503 SameKey "The record store cannot be reached"
    SettlementPending   "settlement-pending"   503 SameKey "The answer is being recorded"
    NotSettled          "not-settled"          500 SameKey "The handler did not record its answer"
    UpstreamUnreachable "upstream-unreachable" 502 SameKey "The service could not be reached"
    UpstreamReset       "upstream-reset"       502 SameKey "The service broke off after the request was sent"
    UpstreamTimeout     "upstream-timeout"     504 SameKey "The service did not answer in time"
    HandlerTimeout      "handler-timeout"      504 SameKey "The handler did not finish in time"
    OrderingViolation   "ordering-violation"   422 Never   "The action is out of order (reserved)"
    InsufficientEnergy  "insufficient-energy"  422 Never   "Not enough energy (reserved)"
}

impl Kind {
    /// The problem's type as a URI.
    pub fn type_uri(self) -> String {
        format!("urn:semel:problem:{}", self.slug())
    }
}

/// One refusal, with the words and fields of this case.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What went wrong.
    pub kind: Kind,
    /// What is wrong in this request, as a fragment; empty when the title says it all.
    pub detail: String,
    /// What the client may do, where that is another thing than usual for this kind.
    pub verdict: Option<Retry>,
    /// The status, where it is another one than the kind and the profile have.
    pub status: Option<u16>,
    /// When to come back, where that is known.
    pub retry_after: Option<Duration>,
    /// Fields of this kind, shown as they are.
    pub fields: Vec<(&'static str, Value)>,
}

impl Problem {
    /// A problem with words for this case.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            verdict: None,
            status: None,
            retry_after: None,
            fields: Vec::new(),
        }
    }

    /// Says what the client may do, where that differs from the kind's own verdict.
    #[must_use]
    pub fn verdict(mut self, verdict: Retry) -> Self {
        self.verdict = Some(verdict);
        self
    }

    /// What the client may do.
    pub fn retry(&self) -> Retry {
        self.verdict.unwrap_or(self.kind.retry())
    }

    /// Says which status it has, whatever its kind and the profile say.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Says when to come back.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

impl From<Kind> for Problem {
    fn from(kind: Kind) -> Self {
        Self::new(kind, "")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            f.write_str(self.kind.title())
        } else {
            write!(f, "{}: {}", self.kind.title(), self.detail)
        }
    }
}

impl std::error::Error for Problem {}
