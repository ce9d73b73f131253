//! What goes wrong, chosen by a seed.

use std::sync::Mutex;

/// Numbers that follow from a seed.
pub(crate) struct Rng(Mutex<u64>);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1))
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) % bound
    }
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    None,
    /// Applied; the connection is cut before the answer.
    LostReply,
    /// Not applied; no answer.
    Swallowed,
    /// Applied within the late window; the connection is cut at once.
    AppliedLate,
    /// Applied, and answered with 500.
    FailsAfter,
    /// Not applied.
    Unavailable,
    Limited,
    Blocked,
    /// The replica is killed when its write arrives, which is then not applied.
    KilledBefore,
    /// The same, and it is applied late.
    KilledThenLate,
    /// The replica is killed when its write is applied and not answered.
    KilledAfter,
    /// The replica is killed as soon as it is answered: before, while or after it settles.
    KilledAnswered,
    /// The replica is frozen past its lease; the write is applied.
    Frozen,
}

/// Faults with how often they are chosen.
const WEIGHTS: &[(Fault, u64)] = &[
    (Fault::None, 60),
    (Fault::LostReply, 6),
    (Fault::Swallowed, 4),
    (Fault::AppliedLate, 6),
    (Fault::FailsAfter, 4),
    (Fault::Unavailable, 4),
    (Fault::Limited, 3),
    (Fault::Blocked, 1),
    (Fault::KilledBefore, 2),
    (Fault::KilledThenLate, 2),
    (Fault::KilledAfter, 2),
    (Fault::KilledAnswered, 4),
    (Fault::Frozen, 1),
];

impl Fault {
    pub(crate) fn choose(rng: &Rng) -> Self {
        let mut at = rng.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        for (fault, weight) in WEIGHTS {
            match at.checked_sub(*weight) {
                None => return *fault,
                Some(rest) => at = rest,
            }
        }
        Fault::None
    }
}
