//! What may be written over a record: one table for claims, settlements, renewals, resolutions, seals and sweeps. Every store
//! goes by it; how a store makes a step atomic and durable is its own affair. Never reads a clock; never touches a store.

use std::time::Duration;

use crate::decide::{Claim, Standing};
use crate::profile::{Anchor, Lifetime};
use crate::record::{Fence, Record, State};
use crate::time::Timestamp;

/// What a wish to claim a key comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claiming {
    /// It was made before, and won: its claim stands.
    Again,
    /// It wins: the claim is written, over the record if there is one.
    Win,
    /// The record stands: decide by it.
    Known,
    /// The record that was decided upon is gone: look again.
    Changed,
}

/// What a fence is worth over a record that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It may settle the record.
    Open,
    /// It has settled the record: the same write again is success.
    Ended,
    /// Nothing.
    Nothing,
}

/// What somebody found out about an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It took effect.
    Applied,
    /// It did not.
    NotApplied,
}

/// What a finding comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolving {
    /// It is written.
    Write,
    /// There is nothing that it could be about.
    NotUnknown,
    /// The request could still take effect.
    TooEarly,
}

/// What a sweep does to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweeping {
    /// Nothing.
    Keep,
    /// Its lease lapsed: nobody knows what became of it.
    MarkUnknown,
    /// Its lease lapsed, and it surely had no effect: it goes.
    LetGo,
    /// It is finished and has expired: it goes.
    Remove,
}

/// The standing over which a way of claiming wins; a new claim wins over none.
pub fn replaced_by(how: Claim) -> Option<Standing> {
    match how {
        Claim::New => None,
        Claim::TakeOver => Some(Standing::Expired),
        Claim::Supersede => Some(Standing::Abandoned),
        Claim::Reclaim => Some(Standing::Released),
        Claim::Forward | Claim::Rerun => Some(Standing::Unknown),
    }
}

/// Claims a key in this way, naming the fence of the record that was decided upon, under this nonce.
pub fn claim(
    record: Option<&Record>,
    how: Claim,
    replaces: Option<Fence>,
    nonce: u64,
    now: Timestamp,
) -> Claiming {
    match record {
        None if how == Claim::New => Claiming::Win,
        None => Claiming::Changed,
        Some(record) if record.state == State::Claimed && record.fence.nonce == nonce => Claiming::Again,
        Some(record) if is_replaced(record, how, replaces, now) => Claiming::Win,
        Some(_) => Claiming::Known,
    }
}

/// Whether this is the record that a claim was decided to replace, and still what it was then.
pub fn is_replaced(record: &Record, how: Claim, replaces: Option<Fence>, now: Timestamp) -> bool {
    replaces == Some(record.fence) && replaced_by(how) == Some(Standing::of(Some(record), now))
}

/// What the fence of a record is worth, by what was last written. A lease that lapsed takes nothing from it: whoever holds the
/// fence may still say what became of its attempt.
pub fn holding(state: State) -> Holding {
    match state {
        State::Claimed | State::Unknown => Holding::Open,
        State::Settled | State::Unkept | State::Released => Holding::Ended,
        State::Sealed => Holding::Nothing,
    }
}

/// Whether a lease is extended: only while it has not lapsed, since somebody may already act on that.
pub fn is_renewed(record: &Record, fence: Fence, now: Timestamp) -> bool {
    record.fence == fence && Standing::of(Some(record), now) == Standing::Claimed
}

/// Writes a finding down. `is_doubted`: an error was kept because nobody knows whether the request took effect. `late_until`:
/// until then it still may.
pub fn resolve(
    standing: Standing,
    finding: Finding,
    is_doubted: bool,
    late_until: Timestamp,
    now: Timestamp,
) -> Resolving {
    let is_open = match standing {
        Standing::Unknown => true,
        Standing::Settled => is_doubted && finding == Finding::NotApplied,
        Standing::Absent
        | Standing::Claimed
        | Standing::Abandoned
        | Standing::Unkept
        | Standing::Released
        | Standing::Sealed
        | Standing::Expired => false,
    };
    match finding {
        Finding::Applied | Finding::NotApplied if !is_open => Resolving::NotUnknown,
        Finding::NotApplied if now < late_until => Resolving::TooEarly,
        Finding::Applied | Finding::NotApplied => Resolving::Write,
    }
}

/// Whether a key may be sealed: nothing has happened under it that counts.
pub fn is_sealable(standing: Standing) -> bool {
    match standing {
        Standing::Absent | Standing::Expired | Standing::Released => true,
        Standing::Claimed
        | Standing::Abandoned
        | Standing::Unknown
        | Standing::Settled
        | Standing::Unkept
        | Standing::Sealed => false,
    }
}

/// What a sweep does to a record; what expired stays for `grace` longer.
pub fn sweep(record: &Record, grace: Duration, now: Timestamp) -> Sweeping {
    match Standing::of(Some(record), now) {
        Standing::Unknown if record.state == State::Claimed => Sweeping::MarkUnknown,
        Standing::Abandoned => Sweeping::LetGo,
        Standing::Expired if record.expires_at.is_some_and(|at| at.plus(grace) <= now) => Sweeping::Remove,
        Standing::Absent
        | Standing::Claimed
        | Standing::Unknown
        | Standing::Settled
        | Standing::Unkept
        | Standing::Released
        | Standing::Sealed
        | Standing::Expired => Sweeping::Keep,
    }
}

/// Whether nothing will be written over a record but by a claim or a sweep: it may be erased for the one whose it is.
pub fn is_finished(state: State) -> bool {
    match state {
        State::Settled | State::Unkept | State::Released | State::Sealed => true,
        State::Claimed | State::Unknown => false,
    }
}

/// How long a record in this state is kept; `None`: as a claim or an unknown outcome without end, released not at all.
pub fn keep(state: State, lifetime: &Lifetime) -> Option<Duration> {
    match state {
        State::Settled | State::Unkept | State::Sealed => Some(lifetime.record()),
        State::Released => lifetime.released,
        State::Claimed | State::Unknown => None,
    }
}

/// Whether that counts from the claim, where it was settled by its holder in time.
pub fn counts_from_claim(state: State, lifetime: &Lifetime) -> bool {
    match lifetime.anchor {
        Anchor::Created => state != State::Released,
        Anchor::Settled => false,
    }
}

/// When a record that is written now over this one will expire. A lifetime may count from the claim only where it was
/// settled by its holder in time: an outcome that was unknown is found out about for those who ask from now on.
pub fn expiry(before: &Record, state: State, lifetime: &Lifetime, now: Timestamp) -> Option<Timestamp> {
    let is_in_time = before.created_at.plus(lifetime.record()) > now && before.state == State::Claimed;
    let anchor = match is_in_time && counts_from_claim(state, lifetime) {
        true => before.created_at,
        false => now,
    };
    keep(state, lifetime).map(|kept| anchor.plus(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Guarantee;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const FENCE: Fence = Fence { number: 7, nonce: 70 };

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(NOW.millis() + millis)
    }

    /// A record that has this standing now.
    fn record(standing: Standing) -> Option<Record> {
        let (state, guarantee, lease, expires) = match standing {
            Standing::Absent => return None,
            Standing::Claimed => (State::Claimed, Guarantee::Fenced, 1, None),
            Standing::Abandoned => (State::Claimed, Guarantee::Atomic, 0, None),
            Standing::Unknown => (State::Claimed, Guarantee::Fenced, 0, None),
            Standing::Settled => (State::Settled, Guarantee::Fenced, 0, Some(1)),
            Standing::Unkept => (State::Unkept, Guarantee::Fenced, 0, Some(1)),
            Standing::Released => (State::Released, Guarantee::Fenced, 0, Some(1)),
            Standing::Sealed => (State::Sealed, Guarantee::None, 0, Some(1)),
            Standing::Expired => (State::Settled, Guarantee::Fenced, 0, Some(0)),
        };
        let record = Record {
            state,
            guarantee,
            fence: FENCE,
            fingerprint: None,
            payload_hash: None,
            lease_until: at(lease),
            created_at: at(-1000),
            expires_at: expires.map(at),
        };
        assert_eq!(Standing::of(Some(&record), NOW), standing);
        Some(record)
    }

    /// One row for each standing, one letter for each way of claiming with the record's own fence, in the order of `WAYS`:
    /// W wins, K is shown the record, C looks again.
    const CLAIMS: [(Standing, &str); 9] = [
        (Standing::Absent, "WCCCCC"),
        (Standing::Claimed, "KKKKKK"),
        (Standing::Abandoned, "KKWKKK"),
        (Standing::Unknown, "KKKKWW"),
        (Standing::Settled, "KKKKKK"),
        (Standing::Unkept, "KKKKKK"),
        (Standing::Released, "KKKWKK"),
        (Standing::Sealed, "KKKKKK"),
        (Standing::Expired, "KWKKKK"),
    ];

    const WAYS: [Claim; 6] =
        [Claim::New, Claim::TakeOver, Claim::Supersede, Claim::Reclaim, Claim::Forward, Claim::Rerun];

    #[test]
    fn every_way_of_claiming_wins_over_its_own_standing_and_no_other() {
        for (standing, cells) in CLAIMS {
            let record = record(standing);
            for (how, cell) in WAYS.into_iter().zip(cells.chars()) {
                let expected = match cell {
                    'W' => Claiming::Win,
                    'K' => Claiming::Known,
                    _ => Claiming::Changed,
                };
                let replaces = (how != Claim::New).then_some(FENCE);
                assert_eq!(claim(record.as_ref(), how, replaces, 71, NOW), expected, "{standing:?} {how:?}");
            }
        }
    }

    #[test]
    fn a_claim_that_names_another_fence_or_none_wins_over_no_record() {
        let others = [None, Some(Fence { number: 8, ..FENCE }), Some(Fence { nonce: 71, ..FENCE })];
        for record in Standing::ALL.into_iter().filter_map(record) {
            for (how, replaces) in WAYS.into_iter().flat_map(|how| others.map(|other| (how, other))) {
                assert_eq!(claim(Some(&record), how, replaces, 72, NOW), Claiming::Known, "{how:?}");
            }
        }
    }

    #[test]
    fn a_claim_made_again_stands_while_it_is_one() {
        for standing in Standing::ALL {
            let Some(record) = record(standing) else { continue };
            let expected = match record.state {
                State::Claimed => Claiming::Again,
                _ => Claiming::Known,
            };
            assert_eq!(claim(Some(&record), Claim::New, None, FENCE.nonce, NOW), expected, "{standing:?}");
        }
    }

    #[test]
    fn a_fence_holds_what_is_open_and_repeats_what_it_ended() {
        let expected = [
            (State::Claimed, Holding::Open),
            (State::Settled, Holding::Ended),
            (State::Unkept, Holding::Ended),
            (State::Released, Holding::Ended),
            (State::Unknown, Holding::Open),
            (State::Sealed, Holding::Nothing),
        ];
        assert_eq!(State::ALL.map(|state| (state, holding(state))), expected);
    }

    #[test]
    fn only_a_live_claim_is_renewed_and_only_by_its_fence() {
        for standing in Standing::ALL {
            let Some(record) = record(standing) else { continue };
            assert_eq!(is_renewed(&record, FENCE, NOW), standing == Standing::Claimed, "{standing:?}");
            assert!(!is_renewed(&record, Fence { number: 8, ..FENCE }, NOW), "{standing:?}");
        }
    }

    #[test]
    fn findings_are_about_what_is_unknown_and_about_doubted_errors_alone() {
        use Finding::{Applied, NotApplied};
        for standing in Standing::ALL {
            for (finding, is_doubted, late) in [Applied, NotApplied]
                .into_iter()
                .flat_map(|finding| [false, true].map(|doubted| (finding, doubted)))
                .flat_map(|(finding, doubted)| [0, 1].map(|late| (finding, doubted, late)))
            {
                let expected = match (standing, finding, is_doubted, late) {
                    (Standing::Unknown, Applied, _, _) => Resolving::Write,
                    (Standing::Unknown, NotApplied, _, 0) => Resolving::Write,
                    (Standing::Unknown, NotApplied, _, _) => Resolving::TooEarly,
                    (Standing::Settled, NotApplied, true, 0) => Resolving::Write,
                    (Standing::Settled, NotApplied, true, _) => Resolving::TooEarly,
                    _ => Resolving::NotUnknown,
                };
                let found = resolve(standing, finding, is_doubted, at(late), NOW);
                assert_eq!(found, expected, "{standing:?} {finding:?} {is_doubted} {late}");
            }
        }
    }

    #[test]
    fn what_happened_is_never_sealed() {
        let free = Standing::ALL.into_iter().filter(|standing| is_sealable(*standing));
        assert_eq!(free.collect::<Vec<_>>(), [Standing::Absent, Standing::Released, Standing::Expired]);
    }

    #[test]
    fn a_sweep_takes_what_is_finished_and_expired_and_ends_what_lapsed() {
        let expected = |standing, grace| match (standing, grace) {
            (Standing::Unknown, _) => Sweeping::MarkUnknown,
            (Standing::Abandoned, _) => Sweeping::LetGo,
            (Standing::Expired, 0) => Sweeping::Remove,
            _ => Sweeping::Keep,
        };
        for (standing, grace) in Standing::ALL.into_iter().flat_map(|standing| [(standing, 0), (standing, 1)])
        {
            let Some(record) = record(standing) else { continue };
            let found = sweep(&record, Duration::from_millis(grace), NOW);
            assert_eq!(found, expected(standing, grace), "{standing:?} {grace}");
        }
        let marked = Record { state: State::Unknown, ..record(Standing::Unknown).unwrap() };
        assert_eq!(sweep(&marked, Duration::ZERO, NOW), Sweeping::Keep, "once is enough");
    }

    #[test]
    fn what_is_open_is_kept_and_not_erased() {
        let lifetime = crate::profile::presets::ietf().lifetime;
        for state in State::ALL {
            let is_open = holding(state) == Holding::Open;
            assert_eq!(is_finished(state), !is_open, "{state:?}");
            assert!(!is_open || keep(state, &lifetime).is_none(), "{state:?}");
        }
    }
}
