//! The recovery table: what to do about a batch that may or may not have been applied. One table, matched exhaustively;
//! it reads no clock and asks nobody.

use std::time::Duration;

use semel_contract::planted::{self, Bug};
use semel_contract::profile::settings::values::Word;

use super::reduce::{Reducer, commutes};

/// What the upstream offers by which a write is known again, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// It knows an idempotency key again for so long.
    Key {
        /// How long it knows a key.
        retention: Duration,
    },
    /// It keeps a marker of ours beside the value, and shows it.
    Marker,
    /// It refuses a write whose version is not the one that was read.
    CompareAndSet,
    /// A whole value is written, and can be read back.
    ReadBack,
    /// Nothing. The operator chose what to do then.
    Blind(Blind),
}

/// What an operator chose for a target that offers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    /// Never send twice: what is not known goes to a person.
    AtMostOnce,
    /// Send again: it may be applied twice.
    AtLeastOnce,
}

impl Word for Blind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("at-most-once", Blind::AtMostOnce), ("at-least-once", Blind::AtLeastOnce)];
}

impl Capability {
    /// The tier's name.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Key { .. } => "key",
            Capability::Marker => "marker",
            Capability::CompareAndSet => "compare-and-set",
            Capability::ReadBack => "read-back",
            Capability::Blind(_) => "blind",
        }
    }

    /// Whether a write that may have been applied is looked at before anything else is done.
    pub fn looks(self) -> bool {
        match self {
            Capability::Marker | Capability::CompareAndSet | Capability::ReadBack => true,
            Capability::Key { .. } | Capability::Blind(_) => false,
        }
    }
}

/// What reading back showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing was read: the tier does not look.
    NotAsked,
    /// Our marker is there.
    Marker,
    /// The value from before the write, and the version that was read then where versions count.
    Before,
    /// The value that the write leads to.
    After,
    /// Any other value or version: somebody else writes too.
    Other,
}

/// How long ago the write may have gone out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    /// Since the first byte of the first attempt, at the earliest.
    pub first: Duration,
    /// Since the last attempt may have gone out.
    pub last: Duration,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Send the same bytes again.
    Resend,
    /// It was applied.
    Applied,
    /// It was not applied and never will be: the batch dissolves and forms anew.
    NotApplied,
    /// It may still be applied late: look again after so long.
    Wait(Duration),
    /// Nobody can know; a person decides.
    InDoubt(Doubt),
}

/// Why a person must decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The upstream may have forgotten the key.
    KeyForgotten,
    /// Somebody else changed the value meanwhile.
    Interference,
    /// The target offers nothing.
    Blind,
}

impl Doubt {
    /// The reason's name.
    pub fn name(self) -> &'static str {
        match self {
            Doubt::KeyForgotten => "key-forgotten",
            Doubt::Interference => "interference",
            Doubt::Blind => "blind",
        }
    }
}

/// What to do about a batch of these entries that may have been applied. `late_window` is how late after its sending a write
/// may still be applied.
pub fn recover(
    tier: Capability,
    reducer: Reducer,
    seen: Seen,
    ages: Ages,
    late_window: Duration,
) -> RecoveryStep {
    let remaining = late_window.saturating_sub(ages.last);
    let unless_late =
        |then: RecoveryStep| if remaining.is_zero() { then } else { RecoveryStep::Wait(remaining) };
    match (tier, seen) {
        (Capability::Key { retention }, _) if ages.first < retention => RecoveryStep::Resend,
        (Capability::Key { .. }, _) if planted::is(Bug::RelayForgottenKeySent) => RecoveryStep::Resend,
        (Capability::Key { .. }, _) => RecoveryStep::InDoubt(Doubt::KeyForgotten),
        (Capability::Marker, Seen::Marker) => RecoveryStep::Applied,
        // A marker that is not there yet may still come; once it cannot, the write never was.
        (Capability::Marker, Seen::NotAsked | Seen::Before | Seen::After | Seen::Other) => {
            unless_late(RecoveryStep::NotApplied)
        }
        (Capability::CompareAndSet | Capability::ReadBack, Seen::After) => RecoveryStep::Applied,
        // The version guards the write: sent twice, it is applied once.
        (Capability::CompareAndSet, Seen::Before) => RecoveryStep::Resend,
        // Sent at once, the late first one could fall on top of a later batch.
        (Capability::ReadBack, Seen::Before) => unless_late(RecoveryStep::Resend),
        (Capability::CompareAndSet | Capability::ReadBack, Seen::Other | Seen::Marker | Seen::NotAsked) => {
            RecoveryStep::InDoubt(Doubt::Interference)
        }
        (Capability::Blind(Blind::AtLeastOnce), _) if commutes(reducer) => RecoveryStep::Resend,
        // It may be applied twice, but a late one must not undo a later value.
        (Capability::Blind(Blind::AtLeastOnce), _) => unless_late(RecoveryStep::Resend),
        (Capability::Blind(Blind::AtMostOnce), _) => RecoveryStep::InDoubt(Doubt::Blind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const KEY: Capability = Capability::Key { retention: s(100) };
    const REDUCERS: [Reducer; 3] = [Reducer::Sum, Reducer::Max, Reducer::Last];
    const ALL: [Seen; 5] = [Seen::NotAsked, Seen::Marker, Seen::Before, Seen::After, Seen::Other];
    const LATE: Duration = s(30);

    #[test]
    fn every_cell() {
        use RecoveryStep::{Applied, InDoubt, NotApplied, Resend, Wait};
        let other = InDoubt(Doubt::Interference);
        // Seen: not asked, marker, before, after, other; within the late window and past it.
        let table: [(Capability, [RecoveryStep; 5], [RecoveryStep; 5]); 6] = [
            (KEY, [Resend; 5], [Resend; 5]),
            (
                Capability::Marker,
                [Wait(s(20)), Applied, Wait(s(20)), Wait(s(20)), Wait(s(20))],
                [NotApplied, Applied, NotApplied, NotApplied, NotApplied],
            ),
            (
                Capability::CompareAndSet,
                [other, other, Resend, Applied, other],
                [other, other, Resend, Applied, other],
            ),
            (
                Capability::ReadBack,
                [other, other, Wait(s(20)), Applied, other],
                [other, other, Resend, Applied, other],
            ),
            (Capability::Blind(Blind::AtLeastOnce), [Resend; 5], [Resend; 5]),
            (Capability::Blind(Blind::AtMostOnce), [InDoubt(Doubt::Blind); 5], [InDoubt(Doubt::Blind); 5]),
        ];
        for (tier, early, late) in table {
            for (at, seen) in ALL.into_iter().enumerate() {
                for reducer in REDUCERS {
                    let waits = reducer == Reducer::Last && tier == Capability::Blind(Blind::AtLeastOnce);
                    let early = if waits { Wait(s(20)) } else { early[at] };
                    let ages = Ages { first: s(60), last: s(10) };
                    let said = recover(tier, reducer, seen, ages, LATE);
                    assert_eq!(said, early, "{tier:?} {reducer:?} {seen:?} early");
                    let ages = Ages { first: s(60), last: s(30) };
                    let said = recover(tier, reducer, seen, ages, LATE);
                    assert_eq!(said, late[at], "{tier:?} {reducer:?} {seen:?} late");
                }
            }
        }
    }

    #[test]
    fn a_key_that_may_be_forgotten_is_not_used_again() {
        let ages = Ages { first: s(100), last: s(1) };
        for seen in ALL {
            assert_eq!(
                recover(KEY, Reducer::Sum, seen, ages, LATE),
                RecoveryStep::InDoubt(Doubt::KeyForgotten)
            );
        }
    }
}
