//! The table of transitions, cell by cell: every deed over every standing, against what
//! [`semel_contract::transitions`] says of it. Memory and SQLite execute that table; here PostgreSQL is seen to say the same.

use semel_contract::transitions::{self, Claiming, Finding, Holding, Resolving};

use super::*;

/// What a key is brought to before a deed.
#[derive(Clone, Copy, Debug)]
enum Row {
    Absent,
    Expired,
    /// Nobody knows what became of it, and it can no longer take effect.
    UnknownLate,
    Abandoned,
    /// Its lease lapsed, and it may still take effect.
    Lapsed,
    MarkedUnknown,
    Claimed,
    Settled,
    /// An error was kept, and nobody knows whether it took effect.
    Doubted,
    Unkept,
    Released,
    Sealed,
}

const ROWS: [Row; 12] = [
    Row::Absent,
    Row::Expired,
    Row::UnknownLate,
    Row::Abandoned,
    Row::Lapsed,
    Row::MarkedUnknown,
    Row::Claimed,
    Row::Settled,
    Row::Doubted,
    Row::Unkept,
    Row::Released,
    Row::Sealed,
];

impl Row {
    /// How long it has to lie before it is what it is called.
    fn ripens(self) -> Duration {
        match self {
            Row::Expired => past(lifetime().record()),
            Row::UnknownLate => past(LEASE + LATE + LATE_ADDED_MAX),
            Row::Lapsed | Row::Abandoned => past(LEASE),
            _ => Duration::ZERO,
        }
    }

    /// Writes it. The fence is its holder's.
    async fn make(self, store: &dyn ClaimStore, id: &Id) -> Fence {
        let claimed = async || won(store, claim_request(id)).await;
        let ended = async |settlement: Settlement, lifetime: &Lifetime| {
            let fence = claimed().await;
            let written = store.settle(id, fence, settlement, lifetime).await;
            assert_eq!(written, Ok(FencedWrite::Done), "{self:?}");
            fence
        };
        match self {
            Row::Absent => Fence { number: 1, nonce: 1 },
            Row::Abandoned => {
                won(store, ClaimRequest { guarantee: Guarantee::Atomic, ..claim_request(id) }).await
            }
            Row::UnknownLate | Row::Lapsed | Row::Claimed => claimed().await,
            Row::Expired | Row::Settled => ended(settled("x"), &lifetime()).await,
            Row::MarkedUnknown => ended(Settlement::Unknown, &lifetime()).await,
            Row::Doubted => {
                let failed = Answer { status: 500, outcome_unknown: true, ..answer("broken") };
                ended(Settlement::Settle(failed), &lifetime()).await
            }
            Row::Unkept => ended(Settlement::Unkept(answer("x")), &lifetime()).await,
            Row::Released => ended(Settlement::Release, &keeping_released()).await,
            Row::Sealed => {
                assert!(matches!(store.seal(id, &About::default(), &lifetime()).await, Ok(Sealed::Done)));
                entry(store, id).await.record.fence
            }
        }
    }
}

/// What is done to a key.
#[derive(Clone, Debug)]
enum Deed {
    Claim(Claim),
    /// The request of the holder, made again.
    ClaimAgain,
    Settle(Settlement),
    Renew,
    Resolve(Resolution),
    Seal,
}

fn deeds() -> Vec<Deed> {
    let claims =
        [Claim::New, Claim::TakeOver, Claim::Supersede, Claim::Reclaim, Claim::Forward, Claim::Rerun]
            .map(Deed::Claim);
    let settlements =
        [settled("x"), Settlement::Unkept(answer("x")), Settlement::Release, Settlement::Unknown];
    let resolutions =
        [Resolution::Applied(Some(answer("found"))), Resolution::Applied(None), Resolution::NotApplied];
    claims
        .into_iter()
        .chain([Deed::ClaimAgain])
        .chain(settlements.map(Deed::Settle))
        .chain([Deed::Renew])
        .chain(resolutions.map(Deed::Resolve))
        .chain([Deed::Seal])
        .collect()
}

/// What a deed comes to, in the words of the table.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Claim(Claiming),
    Written(FencedWrite),
    Resolve(Resolving),
    Sealed(bool),
}

/// What the table says, and the state that the record then has; `None` where there is none any more.
fn expected(deed: &Deed, known: Option<&Entry>, fence: Fence, now: Timestamp) -> (Outcome, Option<State>) {
    let record = known.map(|entry| &entry.record);
    let before = record.map(|record| record.state);
    let standing = Standing::of(record, now);
    match deed {
        Deed::Claim(how) => {
            let replaces = (*how != Claim::New).then_some(fence);
            let claiming = transitions::claim(record, *how, replaces, 0, now);
            (Outcome::Claim(claiming), if claiming == Claiming::Win { Some(State::Claimed) } else { before })
        }
        Deed::ClaimAgain => {
            let claiming = transitions::claim(record, Claim::New, None, fence.nonce, now);
            (Outcome::Claim(claiming), if claiming == Claiming::Win { Some(State::Claimed) } else { before })
        }
        Deed::Settle(settlement) => {
            let state = settlement.state();
            let is_left = transitions::keep(state, &lifetime()).is_some() || state == State::Unknown;
            match record.map(|record| transitions::holding(record.state)) {
                Some(Holding::Open) => (Outcome::Written(FencedWrite::Done), is_left.then_some(state)),
                Some(Holding::Ended) if before == Some(state) && is_said_by(known, settlement) => {
                    (Outcome::Written(FencedWrite::Done), before)
                }
                Some(Holding::Ended | Holding::Nothing) | None => {
                    (Outcome::Written(FencedWrite::Superseded), before)
                }
            }
        }
        Deed::Renew => {
            let is_renewed = record.is_some_and(|record| transitions::is_renewed(record, fence, now));
            (Outcome::Written(if is_renewed { FencedWrite::Done } else { FencedWrite::Superseded }), before)
        }
        Deed::Resolve(resolution) => {
            let (finding, state) = match resolution {
                Resolution::Applied(Some(_)) => (Finding::Applied, Some(State::Settled)),
                Resolution::Applied(None) => (Finding::Applied, Some(State::Unkept)),
                // The lifetime of the suite keeps nothing of what had no effect.
                Resolution::NotApplied => (Finding::NotApplied, None),
            };
            let is_doubted =
                known.and_then(|entry| entry.answer.as_ref()).is_some_and(|answer| answer.outcome_unknown);
            let late_until = known.map_or(now, |entry| entry.late_until);
            let resolving = transitions::resolve(standing, finding, is_doubted, late_until, now);
            (Outcome::Resolve(resolving), if resolving == Resolving::Write { state } else { before })
        }
        Deed::Seal => {
            let is_sealed = transitions::is_sealable(standing);
            (Outcome::Sealed(is_sealed), if is_sealed { Some(State::Sealed) } else { before })
        }
    }
}

fn is_said_by(known: Option<&Entry>, settlement: &Settlement) -> bool {
    let kept = known.and_then(|entry| entry.answer.as_ref());
    match settlement {
        Settlement::Settle(answer) => kept == Some(answer),
        Settlement::Unkept(answer) => kept == Some(&Answer { body: Bytes::new(), ..answer.clone() }),
        Settlement::Release | Settlement::Unknown => kept.is_none(),
    }
}

async fn perform(store: &dyn ClaimStore, id: &Id, fence: Fence, deed: Deed) -> Outcome {
    let claim = async |request| match store.claim(request).await.expect("the store answers") {
        ClaimOutcome::Won { fence: won, .. } if won == fence => Outcome::Claim(Claiming::Again),
        ClaimOutcome::Won { .. } => Outcome::Claim(Claiming::Win),
        ClaimOutcome::Known { .. } => Outcome::Claim(Claiming::Known),
        ClaimOutcome::Changed => Outcome::Claim(Claiming::Changed),
        other => panic!("expected a claim or a record, found {other:?}"),
    };
    match deed {
        Deed::Claim(Claim::New) => claim(claim_request(id)).await,
        Deed::Claim(how) => claim(replacing(id, how, fence)).await,
        Deed::ClaimAgain => claim(ClaimRequest { nonce: fence.nonce, ..claim_request(id) }).await,
        Deed::Settle(settlement) => Outcome::Written(settle(store, id, fence, settlement).await),
        Deed::Renew => Outcome::Written(renew(store, id, fence).await),
        Deed::Resolve(resolution) => {
            let resolved = store.resolve(id, fence, resolution, &lifetime(), "carol", "looked").await;
            Outcome::Resolve(match resolved.expect("the store answers") {
                Resolved::Done => Resolving::Write,
                Resolved::NotUnknown => Resolving::NotUnknown,
                Resolved::TooEarly { .. } => Resolving::TooEarly,
            })
        }
        Deed::Seal => {
            let sealed = store.seal(id, &About::default(), &lifetime()).await.expect("the store answers");
            Outcome::Sealed(matches!(sealed, Sealed::Done))
        }
    }
}

/// Every deed over every standing does what the table says, and leaves the record in the state that it says.
pub async fn every_cell_of_the_table_holds(fixture: &impl Fixture) {
    let store = fixture.store();
    let mut standings = std::collections::BTreeSet::new();
    for row in ROWS {
        let mut made = Vec::new();
        for deed in deeds() {
            let id = id("alice");
            let fence = row.make(&*store, &id).await;
            made.push((deed, id, fence));
        }
        fixture.advance(row.ripens()).await;
        for (deed, id, fence) in made {
            let (known, now) = store.look_up(&id).await.expect("the store answers");
            standings.insert(Standing::of(known.as_ref().map(|entry| &entry.record), now).name());
            let (outcome, state) = expected(&deed, known.as_ref(), fence, now);
            assert_eq!(perform(&*store, &id, fence, deed.clone()).await, outcome, "{row:?}: {deed:?}");
            let (after, _) = store.look_up(&id).await.expect("the store answers");
            assert_eq!(after.map(|entry| entry.record.state), state, "afterwards, {row:?}: {deed:?}");
        }
    }
    assert_eq!(standings.len(), Standing::ALL.len(), "every standing has its row: {standings:?}");
}
