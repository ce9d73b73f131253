//! Whether an action is too old, by the server's clock. A client's time is an assertion: the guard bounds honest
//! clients and cannot stop one that lies about when it acted.

use std::time::Duration;

use crate::planted::{self, Bug};
use crate::problem::{Kind, Problem};
use crate::time::{Timestamp, millis_of};

/// The bounds of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staleness {
    /// How old an action may be.
    pub cap: Duration,
    /// What is forgiven in both directions.
    pub grace: Duration,
    /// What to make of the time of sending.
    pub submitted: Submitted,
    /// The most by which an action may precede its own sending; off by default, since it refuses offline work.
    pub submitted_gap: Option<Duration>,
}

/// What to make of the time at which the client says it sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Nothing: it is for the log.
    Ignore,
    /// Refuse a client whose clock is off by more than the grace.
    Refuse,
    /// Correct the action's time by the client's clock error when that exceeds the grace.
    Correct,
}

/// What the guard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Young enough.
    Fresh,
    /// Too old.
    Stale {
        /// Whole days of age.
        age_days: u64,
    },
    /// Too far in the future.
    Future,
    /// The two times contradict each other or the server's.
    Invalid,
}

const DAY_MILLIS: i64 = 86_400_000;

impl Staleness {
    /// Judges an action by when it was generated and, where the options ask for it, when it was sent.
    pub fn judge(&self, generated: Timestamp, submitted: Option<Timestamp>, now: Timestamp) -> Verdict {
        let grace = millis_of(self.grace);
        if let (Some(gap), Some(sent)) = (self.submitted_gap, submitted)
            && sent.millis_since(generated) > millis_of(gap)
        {
            return Verdict::Invalid;
        }
        let skew = submitted.map_or(0, |sent| now.millis_since(sent));
        let is_off = skew.saturating_abs() > grace;
        let generated = match (self.submitted, submitted) {
            (Submitted::Refuse, Some(sent)) if is_off || generated.millis_since(sent) > grace => {
                return Verdict::Invalid;
            }
            (Submitted::Correct, Some(_)) if is_off => {
                Timestamp::from_millis(generated.millis().saturating_add(skew))
            }
            (Submitted::Ignore | Submitted::Refuse | Submitted::Correct, _) => generated,
        };
        let age = now.millis_since(generated);
        if age > millis_of(self.cap).saturating_add(grace) && !planted::is(Bug::StaleAccepted) {
            Verdict::Stale { age_days: u64::try_from(age / DAY_MILLIS).unwrap_or(0) }
        } else if age < -grace {
            Verdict::Future
        } else {
            Verdict::Fresh
        }
    }

    /// Whole days of the cap, as the details report it.
    pub fn cap_days(&self) -> u64 {
        self.cap.as_secs() / 86_400
    }

    /// Whole hours of the grace, as the details report it.
    pub fn grace_hours(&self) -> u64 {
        self.grace.as_secs() / 3600
    }

    /// The guard's verdict as a refusal, with the values that were in force.
    pub fn check(
        &self,
        generated: Timestamp,
        submitted: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let stale = |detail: &str| {
            Problem::new(Kind::StaleAction, detail)
                .with("clientGeneratedAt", generated.to_string())
                .with("serverNow", now.to_string())
                .with("graceHours", self.grace_hours())
        };
        match self.judge(generated, submitted, now) {
            Verdict::Fresh => Ok(()),
            Verdict::Stale { age_days } => Err(stale("the action is older than allowed")
                .with("ageDays", age_days)
                .with("capDays", self.cap_days())),
            Verdict::Future => Err(stale("the action lies in the future")),
            Verdict::Invalid => Err(Problem::new(
                Kind::TimestampInvalid,
                "the times of the action and of its sending contradict each other or the server's clock",
            )),
        }
    }
}
