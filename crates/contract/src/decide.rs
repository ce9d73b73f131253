//! Decides what an arrival may do. Never reads a clock; never touches a store. The table is tested cell by cell against
//! `spec/vectors/decisions.json`, and `cargo xtask mutate-decide` shows that no cell can change unseen.

#[cfg(feature = "_mutate")]
mod mutate;

use crate::fingerprint::Fingerprint;
use crate::planted::{self, Bug};
use crate::problem::Kind;
use crate::profile::{FailedKey, InFlight, Mismatch, OnUnknown, Profile, StateNames};
use crate::record::{Guarantee, Record, State};
use crate::time::{Timestamp, millis_of};

/// What a request brings along, as far as decisions go.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its fingerprint in every version that this process can make, the current one first.
    pub fingerprints: &'a [Fingerprint],
    /// When its first attempt was made, where the route asks for it.
    pub first_sent: Option<Timestamp>,
}

/// What to do with an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Claim the key in this way, then run the request.
    Execute(Claim),
    /// Answer from the record.
    Replay,
    /// Wait for the holder, then decide again.
    Wait,
    /// Say that it is being worked on.
    Accepted,
    /// Ask the configured URL what became of it, then decide again.
    Probe,
    /// Refuse.
    Refuse(Kind),
}

/// How a key is claimed. Each is one atomic step in the store, which refuses when the record changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// There is no record.
    New,
    /// Replace an expired record.
    TakeOver,
    /// Supersede an abandoned atomic claim by a locking write.
    Supersede,
    /// Claim a released key again.
    Reclaim,
    /// Send an unknown request again to an upstream that is itself idempotent by key.
    Forward,
    /// Run an unknown request again, as the route explicitly allows.
    Rerun,
}

/// What a record means now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Absent,
    /// Held under a live lease.
    Claimed,
    /// An atomic claim whose lease has lapsed.
    Abandoned,
    /// It may or may not have taken effect.
    Unknown,
    /// Settled, the answer kept.
    Settled,
    /// Settled, the answer not kept.
    Unkept,
    /// Surely without effect, kept for inspection.
    Released,
    /// Cancelled by its owner.
    Sealed,
    /// Past its lifetime.
    Expired,
}

impl Standing {
    /// How a profile calls a record in this standing; nothing where there is none, or where its key was cancelled.
    pub fn name_by(self, names: &StateNames) -> Option<&str> {
        match self {
            Standing::Claimed => Some(&names.claimed),
            Standing::Settled | Standing::Unkept => Some(&names.settled),
            Standing::Released => Some(&names.released),
            Standing::Unknown | Standing::Abandoned => Some(&names.unknown),
            Standing::Absent | Standing::Expired | Standing::Sealed => None,
        }
    }

    /// Every standing.
    pub const ALL: [Standing; 9] = [
        Standing::Absent,
        Standing::Claimed,
        Standing::Abandoned,
        Standing::Unknown,
        Standing::Settled,
        Standing::Unkept,
        Standing::Released,
        Standing::Sealed,
        Standing::Expired,
    ];

    /// Reads the standing off a record, by the store's clock.
    pub fn of(record: Option<&Record>, now: Timestamp) -> Self {
        let Some(record) = record else { return Standing::Absent };
        let lapsed = record.lease_until <= now;
        let expired = record.expires_at.is_some_and(|at| at <= now);
        match record.state {
            State::Claimed if !lapsed => Standing::Claimed,
            State::Claimed => match record.guarantee {
                // What was only observed promised nothing, and holds nothing up.
                Guarantee::Atomic | Guarantee::None => Standing::Abandoned,
                Guarantee::Fenced => Standing::Unknown,
            },
            State::Unknown => Standing::Unknown,
            State::Settled | State::Unkept | State::Released | State::Sealed if expired => Standing::Expired,
            State::Settled => Standing::Settled,
            State::Unkept => Standing::Unkept,
            State::Released => Standing::Released,
            State::Sealed => Standing::Sealed,
        }
    }

    /// The standing's name.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Absent => "absent",
            Standing::Claimed => "claimed",
            Standing::Abandoned => "abandoned",
            Standing::Unknown => "unknown",
            Standing::Settled => "settled",
            Standing::Unkept => "unkept",
            Standing::Released => "released",
            Standing::Sealed => "sealed",
            Standing::Expired => "expired",
        }
    }
}

/// Whether an arrival is the same request as the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// The same, or the profile does not look.
    Same,
    /// Another request under the same key.
    Other,
}

impl Sameness {
    /// Compares an arrival with a record.
    pub fn of(profile: &Profile, arrival: &Arrival<'_>, record: Option<&Record>) -> Self {
        let looks = match profile.mismatch {
            Mismatch::Refuse { .. } => profile.fingerprint.is_some(),
            Mismatch::Ignore => false,
        };
        match record.and_then(|record| record.fingerprint.as_ref()) {
            Some(known) if looks && !arrival.fingerprints.iter().any(|own| own.same(known)) => {
                Sameness::Other
            }
            Some(_) | None => Sameness::Same,
        }
    }
}

/// Whether the request's first attempt lies within the retry window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It does, or the route has no age policy.
    InTime,
    /// It does not.
    TooOld,
}

impl Age {
    /// Judges the first attempt of an arrival.
    pub fn of(profile: &Profile, first_sent: Option<Timestamp>, now: Timestamp) -> Self {
        match first_sent {
            Some(sent) if now.millis_since(sent) > millis_of(profile.lifetime.retry_window) => Age::TooOld,
            Some(_) | None => Age::InTime,
        }
    }
}

/// One cell of the table: everything that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What the record means now.
    pub standing: Standing,
    /// Whether it is the same request.
    pub sameness: Sameness,
    /// What to do while another attempt runs.
    pub in_flight: InFlight,
    /// What to do when the outcome is unknown.
    pub on_unknown: OnUnknown,
    /// Whether a released key may be used again.
    pub failed_key: FailedKey,
    /// Whether it may still be executed.
    pub age: Age,
}

/// How many cells the table has: standings, sameness, the three policies, age.
pub const CELLS: usize = 9 * 2 * 3 * 4 * 2 * 2;

/// Decides what an arrival may do, given what the store knows and the store's time.
pub fn decide(profile: &Profile, arrival: &Arrival<'_>, known: Option<&Record>, now: Timestamp) -> Decision {
    Cell {
        standing: Standing::of(known, now),
        sameness: Sameness::of(profile, arrival, known),
        in_flight: profile.in_flight,
        on_unknown: profile.on_unknown,
        failed_key: profile.failed_key,
        age: Age::of(profile, arrival.first_sent, now),
    }
    .decide()
}

impl Cell {
    /// The decision of this cell.
    pub fn decide(self) -> Decision {
        let decision = match (self.table(), self.age) {
            // It was run once already: it is too late to run it again, and nobody knows what came of it.
            (Decision::Execute(Claim::Forward | Claim::Rerun), Age::TooOld)
                if !planted::is(Bug::TooOldExecuted) =>
            {
                Decision::Refuse(Kind::OutcomeUnknown)
            }
            (Decision::Execute(_), Age::TooOld) if !planted::is(Bug::TooOldExecuted) => {
                Decision::Refuse(Kind::TooOld)
            }
            (decision, Age::InTime | Age::TooOld) => decision,
        };
        #[cfg(feature = "_mutate")]
        let decision = mutate::flip(self, decision);
        decision
    }

    fn table(self) -> Decision {
        use Decision::{Execute, Refuse, Replay};
        match (self.standing, self.sameness) {
            (Standing::Absent, Sameness::Same | Sameness::Other) => Execute(Claim::New),
            (Standing::Expired, Sameness::Same | Sameness::Other) => Execute(Claim::TakeOver),
            (Standing::Sealed, Sameness::Same | Sameness::Other) => Refuse(Kind::KeySealed),
            (
                Standing::Claimed
                | Standing::Abandoned
                | Standing::Settled
                | Standing::Unkept
                | Standing::Released
                | Standing::Unknown,
                Sameness::Other,
            ) => Refuse(Kind::FingerprintMismatch),
            (Standing::Claimed, Sameness::Same) => match self.in_flight {
                InFlight::Wait { .. } => Decision::Wait,
                InFlight::Reject { .. } => Refuse(Kind::InFlight),
                InFlight::Accepted => Decision::Accepted,
            },
            (Standing::Abandoned, Sameness::Same) => Execute(Claim::Supersede),
            (Standing::Settled, Sameness::Same) => Replay,
            (Standing::Unkept, Sameness::Same) => Refuse(Kind::AnswerNotKept),
            (Standing::Released, Sameness::Same) => match self.failed_key {
                FailedKey::Reclaim => Execute(Claim::Reclaim),
                FailedKey::Sealed => Refuse(Kind::KeySealed),
            },
            (Standing::Unknown, Sameness::Same) => match self.on_unknown {
                OnUnknown::Hold => Refuse(Kind::OutcomeUnknown),
                OnUnknown::Probe => Decision::Probe,
                OnUnknown::Forward => Execute(Claim::Forward),
                OnUnknown::Rerun => Execute(Claim::Rerun),
            },
        }
    }
}
