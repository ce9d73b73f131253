//! The accept table: what a caller is told about an id, by what is known of it. Touches nothing.

use crate::message::Status;

/// Whether an arrival asks for what the id was used for before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// The fingerprints are equal.
    Match,
    /// They differ.
    Mismatch,
}

/// What a caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// A row is inserted.
    Insert,
    /// It is queued; nothing changes.
    Queued,
    /// It is being sent; nothing changes.
    Inflight,
    /// It was delivered; here is what came of it.
    Duplicate,
    /// The id is spent.
    Refused(Conflict),
}

/// Why an id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Where the id's row stands.
    pub status: Status,
    /// Whether it was for the same thing.
    pub sameness: Sameness,
}

impl Conflict {
    /// The value of `conflict`. A held row answers like a pending one.
    pub fn name(self) -> String {
        let status = match self.status {
            Status::Pending | Status::Held => "pending",
            Status::Inflight => "inflight",
            Status::Done => "done",
            Status::Dead => "dead",
            Status::Aborted => "aborted",
        };
        let sameness = match self.sameness {
            Sameness::Match => "match",
            Sameness::Mismatch => "mismatch",
        };
        format!("outbox_{status}_fingerprint_{sameness}")
    }
}

/// The table. Only an id without a row is free.
pub fn accept(known: Option<(Status, Sameness)>) -> Acceptance {
    let Some((status, sameness)) = known else { return Acceptance::Insert };
    match (status, sameness) {
        (Status::Pending | Status::Held, Sameness::Match) => Acceptance::Queued,
        (Status::Inflight, Sameness::Match) => Acceptance::Inflight,
        (Status::Done, Sameness::Match) => Acceptance::Duplicate,
        // Whatever was given up is never tried again by itself: an operator requeues it under a new id.
        (Status::Dead | Status::Aborted, Sameness::Match) | (_, Sameness::Mismatch) => {
            Acceptance::Refused(Conflict { status, sameness })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_table() {
        use Acceptance::{Duplicate, Inflight, Queued};
        let refused = |status, sameness| Acceptance::Refused(Conflict { status, sameness });
        let cells = [
            (Status::Pending, Queued, "outbox_pending_fingerprint_mismatch"),
            (Status::Held, Queued, "outbox_pending_fingerprint_mismatch"),
            (Status::Inflight, Inflight, "outbox_inflight_fingerprint_mismatch"),
            (Status::Done, Duplicate, "outbox_done_fingerprint_mismatch"),
            (Status::Dead, refused(Status::Dead, Sameness::Match), "outbox_dead_fingerprint_mismatch"),
            (
                Status::Aborted,
                refused(Status::Aborted, Sameness::Match),
                "outbox_aborted_fingerprint_mismatch",
            ),
        ];
        assert_eq!(cells.len(), Status::ALL.len());
        for (status, on_match, on_mismatch) in cells {
            assert_eq!(accept(Some((status, Sameness::Match))), on_match, "{status:?}");
            let Acceptance::Refused(conflict) = accept(Some((status, Sameness::Mismatch))) else {
                panic!("{status:?}: another request under the same id is refused");
            };
            assert_eq!(conflict.name(), on_mismatch);
        }
        assert_eq!(accept(None), Acceptance::Insert);
        let dead = Conflict { status: Status::Dead, sameness: Sameness::Match };
        assert_eq!(dead.name(), "outbox_dead_fingerprint_match");
    }
}
