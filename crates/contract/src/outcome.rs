//! Decides what is recorded when an attempt ends. Never talks to a store: the gate carries the disposition out.

pub use crate::keep::{Keep, KeepRule};
use crate::planted::{self, Bug};
use crate::profile::{OnError, OnUnknown, Profile};
use crate::record::Guarantee;

/// Headers of an answer that are never kept: what belongs to one connection, one moment or one person. Those that begin
/// with `semel-` are semel's own, and are not kept either.
pub const NEVER_KEPT: [&str; 18] = [
    "authorization",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "set-cookie2",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
    "authentication-info",
];

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Surely not a byte of it reached the upstream.
    NotSent,
    /// It broke off after sending, timed out, or the handler panicked.
    CutOff,
    /// It was answered.
    Answered {
        /// The status.
        status: u16,
        /// What the upstream itself says of the effect, by `Semel-Outcome`.
        told: Option<Told>,
    },
}

/// What an upstream says of the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It took effect.
    Applied,
    /// It did not.
    NotApplied,
}

impl Told {
    /// What a gate says in `Semel-Outcome` where an earlier attempt still runs: nobody knows yet.
    pub const PENDING: &str = "pending";

    /// Reads the value of a `Semel-Outcome` header; anything else says nothing.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"applied" => Some(Told::Applied),
            b"not-applied" => Some(Told::NotApplied),
            _ => None,
        }
    }
}

/// What becomes of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Keep the answer and replay it.
    Settle,
    /// Keep and replay it, marked as of unknown outcome.
    SettleUnknown,
    /// Free the key.
    Release,
    /// Leave it to the route's policy for unknown outcomes.
    Unknown,
    /// An error of the handler: it answered well but did not settle.
    NotSettled,
}

/// Decides what becomes of a claim on a route with this profile. An atomic handler that settled by itself is not asked
/// about here: its record already stands.
pub fn dispose(profile: &Profile, guarantee: Guarantee, ending: Ending) -> Disposition {
    let atomic = guarantee == Guarantee::Atomic;
    let (status, told) = match ending {
        Ending::NotSent => return Disposition::Release,
        // An atomic attempt that broke off was rolled back with its transaction.
        Ending::CutOff if atomic || planted::is(Bug::UnknownFreed) => return Disposition::Release,
        Ending::CutOff => return Disposition::Unknown,
        Ending::Answered { status, told } => (status, told),
    };
    match told {
        // Its record would not have been committed with it.
        Some(Told::Applied) if atomic => return Disposition::NotSettled,
        Some(Told::Applied) => return Disposition::Settle,
        Some(Told::NotApplied) => return Disposition::Release,
        None => {}
    }
    let rule = profile.record.iter().find(|rule| (rule.from..=rule.to).contains(&status));
    match rule.map(|rule| rule.keep) {
        _ if atomic && status >= 500 => Disposition::Release,
        Some(Keep::Settle) if atomic && status < 400 => Disposition::NotSettled,
        Some(Keep::Settle) => Disposition::Settle,
        Some(Keep::Release) if planted::is(Bug::TransientErrorKept) => Disposition::Settle,
        Some(Keep::Release) => Disposition::Release,
        None if planted::is(Bug::ServerErrorReleased) => Disposition::Release,
        None => match (profile.on_error, profile.on_unknown) {
            (OnError::Release, _) => Disposition::Release,
            (OnError::Replay, OnUnknown::Hold) => Disposition::SettleUnknown,
            (OnError::Replay, OnUnknown::Probe) => Disposition::Unknown,
            // The upstream is asked again with the same key, or the route accepts that it runs again.
            (OnError::Replay, OnUnknown::Forward | OnUnknown::Rerun) => Disposition::Release,
        },
    }
}
