//! What a store that was restored from a backup no longer knows. Decides whether a key without a record may be run.
//!
//! A record that was written after the backup is gone, and the effect of its request is not. So a key without a record
//! is believed to be new only where it surely is:
//!
//! 1. Its first attempt was made after the restore, by the time that the client gives. A first attempt before the backup
//!    proves nothing: a retry may have taken effect in between. A time in the future is no time.
//! 2. It gives no time, and the operator said that such keys are to be trusted.
//! 3. Whatever was lost would have expired by now.
//! 4. There is a record of it from after the restore, such as that of an outcome that somebody resolved as not applied.
//! 5. It is atomic: its effect lay in the same database, and was lost together with its record.

use crate::decide::Claim;
use crate::planted::{self, Bug};
use crate::profile::Lifetime;
use crate::record::Guarantee;
use crate::time::Timestamp;

/// What is done with a key whose client does not say when it was first sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undated {
    /// Its outcome is unknown.
    Unknown,
    /// It is run: the operator takes the risk of a second effect.
    Trusted,
}

impl Undated {
    /// The name that commands and the API use.
    pub fn name(self) -> &'static str {
        match self {
            Undated::Unknown => "unknown",
            Undated::Trusted => "trusted",
        }
    }
}

/// A restore from a backup: between the two times, records were written that are not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restore {
    /// When the backup was made.
    pub backup_at: Timestamp,
    /// When an operator said so, by the store's clock; nothing older is missing from here on.
    pub restored_at: Timestamp,
    /// What is done with keys that cannot be dated.
    pub undated: Undated,
}

impl Restore {
    /// Whether something that was lost could still count on a route with this lifetime.
    pub fn matters(&self, lifetime: &Lifetime, now: Timestamp) -> bool {
        now <= self.restored_at.plus(lifetime.record()).plus(lifetime.skew)
    }
}

/// Whether a key without a valid record may have had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// It had none, or what it had counts no longer.
    Sure,
    /// It may have had one that was lost.
    Lost,
}

/// A key that is about to be claimed.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// How it would be claimed.
    pub how: Claim,
    /// The level of the claim.
    pub guarantee: Guarantee,
    /// When its first attempt was made, as far as the client says.
    pub first_sent: Option<Timestamp>,
    /// When the record that it would replace was made, where there is one.
    pub known_since: Option<Timestamp>,
}

/// Decides whether a key may have had a record that a restore has lost.
pub fn recall(restores: &[Restore], candidate: Candidate, lifetime: &Lifetime, now: Timestamp) -> Recall {
    match (candidate.guarantee, candidate.how) {
        (Guarantee::Atomic, _) => return Recall::Sure,
        // There is a record, it is unknown already, and the route says what then.
        (Guarantee::Fenced | Guarantee::None, Claim::Forward | Claim::Rerun) => return Recall::Sure,
        (Guarantee::Fenced | Guarantee::None, _) => {}
    }
    let first_sent = candidate.first_sent.filter(|sent| *sent <= now.plus(lifetime.skew));
    let may_be_lost = |restore: &Restore| {
        let is_known = candidate.known_since.is_some_and(|since| since >= restore.restored_at);
        match first_sent {
            _ if is_known || !restore.matters(lifetime, now) => false,
            Some(sent) => sent <= restore.restored_at.plus(lifetime.skew),
            None => restore.undated == Undated::Unknown,
        }
    };
    match restores.iter().any(may_be_lost) && !planted::is(Bug::LostKeyRun) {
        true => Recall::Lost,
        false => Recall::Sure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::presets;
    use std::time::Duration;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + hours * 3_600_000)
    }

    /// Backup at hour 0, restored at hour 10; records live 25 h 10 min, clocks differ by 5 min.
    fn restore(undated: Undated) -> [Restore; 1] {
        [Restore { backup_at: at(0), restored_at: at(10), undated }]
    }

    #[test]
    fn every_cell_of_the_table() {
        use Recall::{Lost, Sure};
        let lifetime = presets::ietf().lifetime;
        let minutes = |time: Timestamp, minutes: u64| Some(time.plus(Duration::from_secs(60 * minutes)));
        // How it is claimed, its level, first sent, now, what of undated keys; the verdict.
        let table = [
            (Claim::New, Guarantee::Fenced, Some(at(5)), at(11), Undated::Unknown, Lost),
            (Claim::TakeOver, Guarantee::Fenced, Some(at(5)), at(11), Undated::Unknown, Lost),
            (Claim::Reclaim, Guarantee::Fenced, Some(at(5)), at(11), Undated::Unknown, Lost),
            (Claim::Supersede, Guarantee::None, Some(at(5)), at(11), Undated::Unknown, Lost),
            (Claim::Forward, Guarantee::Fenced, Some(at(5)), at(11), Undated::Unknown, Sure),
            (Claim::Rerun, Guarantee::Fenced, Some(at(5)), at(11), Undated::Unknown, Sure),
            (Claim::New, Guarantee::Atomic, Some(at(5)), at(11), Undated::Unknown, Sure),
            (Claim::Supersede, Guarantee::Atomic, None, at(11), Undated::Unknown, Sure),
            // First sent before the backup, and perhaps run by a retry after it.
            (Claim::New, Guarantee::Fenced, Some(at(-3)), at(11), Undated::Unknown, Lost),
            (Claim::New, Guarantee::Fenced, Some(at(-3)), at(11), Undated::Trusted, Lost),
            // First sent after the restore, beyond what clocks may differ.
            (Claim::New, Guarantee::Fenced, minutes(at(10), 5), at(11), Undated::Unknown, Lost),
            (Claim::New, Guarantee::Fenced, minutes(at(10), 6), at(11), Undated::Unknown, Sure),
            (Claim::New, Guarantee::Fenced, None, at(11), Undated::Unknown, Lost),
            (Claim::New, Guarantee::Fenced, None, at(11), Undated::Trusted, Sure),
            // 10 + 25 h 10 min + 5 min.
            (Claim::New, Guarantee::Fenced, None, at(35), Undated::Unknown, Lost),
            (Claim::New, Guarantee::Fenced, Some(at(5)), at(35), Undated::Unknown, Lost),
            (Claim::New, Guarantee::Fenced, None, at(36), Undated::Unknown, Sure),
            (Claim::New, Guarantee::Fenced, Some(at(5)), at(36), Undated::Unknown, Sure),
        ];
        for (how, guarantee, first_sent, now, undated, expected) in table {
            let candidate = Candidate { how, guarantee, first_sent, known_since: None };
            assert_eq!(
                recall(&restore(undated), candidate, &lifetime, now),
                expected,
                "{candidate:?} at {now}, undated {undated:?}"
            );
        }
    }

    fn undated(how: Claim, known_since: Option<Timestamp>) -> Candidate {
        Candidate { how, guarantee: Guarantee::Fenced, first_sent: None, known_since }
    }

    #[test]
    fn a_record_from_after_the_restore_is_believed() {
        let (lifetime, restores) = (presets::ietf().lifetime, restore(Undated::Unknown));
        let verdict = |since| recall(&restores, undated(Claim::Reclaim, Some(since)), &lifetime, at(12));
        assert_eq!(verdict(at(10)), Recall::Sure);
        assert_eq!(verdict(at(-1)), Recall::Lost, "what happened to it after the backup is not known");
    }

    #[test]
    fn a_time_in_the_future_is_no_time() {
        let (lifetime, restores) = (presets::ietf().lifetime, restore(Undated::Unknown));
        let candidate = Candidate { first_sent: Some(at(20)), ..undated(Claim::New, None) };
        assert_eq!(recall(&restores, candidate, &lifetime, at(11)), Recall::Lost);
        assert_eq!(recall(&restores, candidate, &lifetime, at(20)), Recall::Sure);
    }

    #[test]
    fn every_restore_counts_and_without_one_nothing_is_lost() {
        let lifetime = presets::ietf().lifetime;
        let candidate = undated(Claim::New, None);
        assert_eq!(recall(&[], candidate, &lifetime, at(11)), Recall::Sure);
        let [first] = restore(Undated::Trusted);
        let second = Restore { restored_at: at(12), undated: Undated::Unknown, ..first };
        assert_eq!(recall(&[first, second], candidate, &lifetime, at(12).plus(HOUR)), Recall::Lost);
    }
}
