//! Flips one cell of the decision table at run time, so that the tests of the table can themselves be tested. Compiled
//! only with the feature `mutate`, and without effect unless `SEMEL_MUTATE_CELL` names a cell.

use std::sync::OnceLock;
use std::time::Duration;

use super::{Age, CELLS, Cell, Claim, Decision, Sameness, Standing};
use crate::problem::Kind;
use crate::profile::{FailedKey, InFlight, OnUnknown};

/// The variable that names the cell to flip, by its place in [`cells`].
pub(super) const VARIABLE: &str = "SEMEL_MUTATE_CELL";

/// Every decision that the table can make.
const DECISIONS: [Decision; 16] = [
    Decision::Execute(Claim::New),
    Decision::Execute(Claim::TakeOver),
    Decision::Execute(Claim::Supersede),
    Decision::Execute(Claim::Reclaim),
    Decision::Execute(Claim::Forward),
    Decision::Execute(Claim::Rerun),
    Decision::Replay,
    Decision::Wait,
    Decision::Accepted,
    Decision::Probe,
    Decision::Refuse(Kind::FingerprintMismatch),
    Decision::Refuse(Kind::InFlight),
    Decision::Refuse(Kind::AnswerNotKept),
    Decision::Refuse(Kind::OutcomeUnknown),
    Decision::Refuse(Kind::KeySealed),
    Decision::Refuse(Kind::TooOld),
];

/// Every cell of the table, in a fixed order.
pub(super) fn cells() -> Vec<Cell> {
    let wait = InFlight::Wait { deadline: Duration::from_secs(25) };
    let reject = InFlight::Reject { retry_after: Duration::from_secs(1) };
    let mut cells = Vec::new();
    for standing in Standing::ALL {
        for sameness in [Sameness::Same, Sameness::Other] {
            for in_flight in [wait, reject, InFlight::Accepted] {
                for on_unknown in [OnUnknown::Hold, OnUnknown::Probe, OnUnknown::Forward, OnUnknown::Rerun] {
                    for failed_key in [FailedKey::Reclaim, FailedKey::Sealed] {
                        for age in [Age::InTime, Age::TooOld] {
                            cells.push(Cell { standing, sameness, in_flight, on_unknown, failed_key, age });
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cells.len(), CELLS, "every cell is listed once");
    cells
}

/// The decision, or another one where this is the cell to flip. Which other one goes round with the cell's place, so
/// that every decision stands in for others.
pub(super) fn flip(cell: Cell, decision: Decision) -> Decision {
    static CHOSEN: OnceLock<Option<(usize, Cell)>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let place: usize = std::env::var(VARIABLE).ok()?.parse().ok()?;
        cells().get(place).map(|cell| (place, *cell))
    });
    match chosen {
        Some((place, chosen)) if is_same_cell(*chosen, cell) => {
            let at = DECISIONS
                .iter()
                .position(|known| *known == decision)
                .expect("the table makes no other decision");
            DECISIONS[(at + 1 + place % (DECISIONS.len() - 1)) % DECISIONS.len()]
        }
        Some(_) | None => decision,
    }
}

/// Whether two cells are one, whatever their waits last.
fn is_same_cell(a: Cell, b: Cell) -> bool {
    let kind = |cell: Cell| std::mem::discriminant(&cell.in_flight);
    kind(a) == kind(b) && Cell { in_flight: a.in_flight, ..b } == a
}
