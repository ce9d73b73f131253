//! Leases that lapse, unknown outcomes and what resolves them.

use super::*;

/// Unknown keeps its fence.
pub async fn a_lapsed_lease_is_unknown_and_still_accepts_its_holder(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(standing(&*store, &id).await, Standing::Unknown);
    known(&*store, claim_request(&id)).await;
    store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    assert_eq!(entry(&*store, &id).await.record.fence, fence);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, FencedWrite::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Settled);
}

/// Neither after a person's word nor after a rerun.
pub async fn a_resolved_outcome_no_longer_accepts_its_holder(fixture: &impl Fixture) {
    let store = fixture.store();
    for resolution in
        [Resolution::Applied(Some(answer("found"))), Resolution::Applied(None), Resolution::NotApplied]
    {
        let id = id("alice");
        let fence = won(&*store, claim_request(&id)).await;
        fixture.advance(past(LEASE + LATE + LATE_ADDED_MAX)).await;
        let resolved = store
            .resolve(&id, fence, resolution, &lifetime(), "carol", "looked")
            .await
            .expect("the store answers");
        assert_eq!(resolved, Resolved::Done);
        assert_eq!(settle(&*store, &id, fence, settled("late")).await, FencedWrite::Superseded);
    }
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    fixture.advance(past(LEASE)).await;
    let second = won(&*store, replacing(&id, Claim::Rerun, fence)).await;
    assert!(second.number > fence.number);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, FencedWrite::Superseded);
    assert_eq!(settle(&*store, &id, second, settled("second")).await, FencedWrite::Done);
}

/// A kept error stays for everybody who retries, unless somebody finds out that it had no effect.
pub async fn a_kept_answer_of_unknown_outcome_can_be_lifted(fixture: &impl Fixture) {
    let store = fixture.store();
    let (doubted, sure) = (id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&doubted)).await;
    let failed = Answer { status: 500, outcome_unknown: true, ..answer("broken") };
    settle(&*store, &doubted, fence, Settlement::Settle(failed)).await;
    let other = won(&*store, claim_request(&sure)).await;
    settle(&*store, &sure, other, settled("done")).await;
    let resolve = async |id: &Id, fence, resolution| {
        let resolved = store.resolve(id, fence, resolution, &lifetime(), "carol", "looked").await;
        resolved.expect("the store answers")
    };
    let early = resolve(&doubted, fence, Resolution::NotApplied).await;
    assert!(matches!(early, Resolved::TooEarly { .. }), "{early:?}");
    fixture.advance(past(LEASE + LATE + LATE_ADDED_MAX)).await;
    assert_eq!(
        resolve(&sure, other, Resolution::NotApplied).await,
        Resolved::NotUnknown,
        "that one is certain"
    );
    assert_eq!(resolve(&doubted, fence, Resolution::Applied(None)).await, Resolved::NotUnknown);
    assert_eq!(standing(&*store, &doubted).await, Standing::Settled, "it is answered as before");
    assert_eq!(resolve(&doubted, fence, Resolution::NotApplied).await, Resolved::Done);
    assert_eq!(standing(&*store, &doubted).await, Standing::Absent, "its key is free");
    assert_eq!(settle(&*store, &doubted, fence, settled("late")).await, FencedWrite::Superseded);
    assert_eq!(standing(&*store, &sure).await, Standing::Settled);
}

/// Rule 6: a request on its way may still arrive.
pub async fn not_applied_is_refused_while_it_could_still_take_effect(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    let resolve = async |fence| {
        store
            .resolve(&id, fence, Resolution::NotApplied, &lifetime(), "carol", "looked")
            .await
            .expect("the store answers")
    };
    assert_eq!(resolve(fence).await, Resolved::NotUnknown, "a live claim is not unknown");
    fixture.advance(past(LEASE)).await;
    let known = entry(&*store, &id).await;
    let until = known.late_until;
    assert!(until >= known.record.created_at.plus(LEASE + LATE), "the window is never shorter than declared");
    assert_eq!(resolve(fence).await, Resolved::TooEarly { until });
    fixture.advance(past(LATE + LATE_ADDED_MAX)).await;
    assert_eq!(resolve(Fence { number: fence.number, nonce: fence.nonce ^ 1 }).await, Resolved::NotUnknown);
    assert_eq!(resolve(fence).await, Resolved::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Absent);
    assert_eq!(resolve(fence).await, Resolved::NotUnknown);
}

/// An atomic claim whose lease lapsed has had no effect that outlives it.
pub async fn an_abandoned_atomic_claim_is_superseded(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let atomic =
        |how, replaces| ClaimRequest { how, replaces, guarantee: Guarantee::Atomic, ..claim_request(&id) };
    let first = won(&*store, atomic(Claim::New, None)).await;
    known(&*store, atomic(Claim::Supersede, Some(first))).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(standing(&*store, &id).await, Standing::Abandoned);
    let second = won(&*store, atomic(Claim::Supersede, Some(first))).await;
    assert_eq!(settle(&*store, &id, first, settled("late")).await, FencedWrite::Superseded);
    assert_eq!(settle(&*store, &id, second, settled("second")).await, FencedWrite::Done);
}

/// A handler may run longer than one lease.
pub async fn a_renewed_lease_does_not_lapse(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    for _ in 0..4 {
        fixture.advance(LEASE / 2).await;
        assert_eq!(renew(&*store, &id, fence).await, FencedWrite::Done);
    }
    assert_eq!(standing(&*store, &id).await, Standing::Claimed);
}

/// Too late is too late: somebody may already act on it.
pub async fn an_unknown_outcome_is_not_revived_by_renewal(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    fixture.advance(past(LEASE)).await;
    assert_eq!(renew(&*store, &id, fence).await, FencedWrite::Superseded);
    assert_eq!(standing(&*store, &id).await, Standing::Unknown);
}

/// The holder itself may say that it does not know.
pub async fn an_unknown_mark_keeps_its_fence(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Unknown).await, FencedWrite::Done);
    let found = entry(&*store, &id).await;
    assert_eq!(
        (found.record.state, found.record.fence, found.record.expires_at),
        (State::Unknown, fence, None)
    );
    assert_eq!(settle(&*store, &id, fence, Settlement::Unknown).await, FencedWrite::Done);
    assert_eq!(settle(&*store, &id, fence, settled("late")).await, FencedWrite::Done);
}

/// A hint, but one that is given.
pub async fn waiters_are_woken_by_a_settlement(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    let listener = store.hints().listen(id.hash());
    let next = listener.next();
    assert_eq!(settle(&*store, &id, fence, settled("x")).await, FencedWrite::Done);
    tokio::time::timeout(Duration::from_secs(5), next).await.expect("the waiter is woken");
}
