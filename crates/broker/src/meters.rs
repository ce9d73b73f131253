//! What a broker counts. Numbers only; how they are told is in `broker::metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::published::{Published, Refusal};
use crate::store::sweep::Swept;

/// Where a publish was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    B0,
    B1,
    Claim,
    B2,
    B3,
}

pub(crate) const PHASES: [(Phase, &str); 5] =
    [(Phase::B0, "b0"), (Phase::B1, "b1"), (Phase::Claim, "claim"), (Phase::B2, "b2"), (Phase::B3, "b3")];
pub(crate) const OUTCOMES: [&str; 6] =
    ["accepted", "duplicate", "conflict", "refused", "limited", "unavailable"];

/// What a broker counts.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) publishes: [[AtomicU64; 6]; 5],
    pub(crate) charged_then_refused: AtomicU64,
    pub(crate) orphans: AtomicU64,
    pub(crate) swept: AtomicU64,
    pub(crate) swept_unacknowledged: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) attempts_failed: AtomicU64,
    pub(crate) dead: AtomicU64,
}

fn outcome(published: &Published) -> usize {
    match published {
        Published::Accepted(_) => 0,
        Published::Duplicate(_) => 1,
        Published::Reused { .. } | Published::Sealed => 2,
        Published::Refused(refusal) => match refusal {
            Refusal::BudgetSpent { .. } | Refusal::RequestLimited { .. } => 4,
            Refusal::Unavailable(_) | Refusal::Draining | Refusal::DestinationLate => 5,
            Refusal::Malformed(_)
            | Refusal::PayloadTooLarge { .. }
            | Refusal::DestinationUnknown
            | Refusal::NotSubscribed
            | Refusal::MeshFull { .. } => 3,
        },
    }
}

impl Meters {
    pub(crate) fn count(&self, phase: Phase, published: &Published) {
        let at = PHASES.iter().position(|(known, _)| *known == phase).unwrap_or(0);
        self.publishes[at][outcome(published)].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_charged_then_refused(&self) {
        self.charged_then_refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_sweep(&self, swept: &Swept) {
        self.swept.fetch_add(swept.ids, Relaxed);
        self.swept_unacknowledged.fetch_add(swept.unacknowledged, Relaxed);
    }

    pub(crate) fn set_orphans(&self, count: usize) {
        self.orphans.store(count as u64, Relaxed);
    }
}
