//! Claims: one winner, fences that only grow, claims made again.

use std::sync::Arc;

use super::*;

/// 64 at once, one winner; the others find its claim.
pub async fn one_of_many_concurrent_claims_wins(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let claims: Vec<_> = (0..64)
        .map(|_| {
            let (store, request) = (Arc::clone(&store), claim_request(&id));
            tokio::spawn(async move { store.claim(request).await })
        })
        .collect();
    let (mut winners, mut losers) = (Vec::new(), Vec::new());
    for claim in claims {
        match claim.await.expect("no claim panics").expect("the store answers") {
            ClaimOutcome::Won { fence, .. } => winners.push(fence),
            ClaimOutcome::Known { entry, .. } => losers.push(entry.record.fence),
            other => panic!("neither won nor lost: {other:?}"),
        }
    }
    assert_eq!((winners.len(), losers.len()), (1, 63));
    // A store may give a winner that came late a higher number than the one that others read meanwhile.
    let is_winners = |fence: &Fence| fence.nonce == winners[0].nonce && fence.number <= winners[0].number;
    assert!(losers.iter().all(is_winners), "losers see the winner's claim: {winners:?}, {losers:?}");
}

/// What a claim says about its request is found again.
pub async fn a_claim_keeps_what_it_was_told(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let about = Arc::new(About {
        endpoint: "create-order".to_owned(),
        tenant: Some("acme".to_owned()),
        principal: "alice\u{0301} 'quoted'".to_owned(),
        client_generated_at: Some(Timestamp::from_millis(1_700_000_000_123)),
        headers: vec![("x-client-tx-id".to_owned(), "tx-1".to_owned())],
        request_id: "req-7".to_owned(),
    });
    let requested = ClaimRequest { payload_hash: Some([9; 32]), about: about.clone(), ..claim_request(&id) };
    let fence = won(&*store, requested).await;
    for _ in 0..2 {
        let found = entry(&*store, &id).await;
        assert_eq!((found.about.clone(), found.record.fence), (about.clone(), fence));
        assert_eq!(found.record.payload_hash, Some([9; 32]));
        assert!(found.record.fingerprint.is_some_and(|found| found.same(&fingerprint(1))));
        assert_eq!(
            settle(&*store, &id, fence, settled("x")).await,
            FencedWrite::Done,
            "and it survives the settlement"
        );
    }
}

/// Numbers are never reused.
pub async fn fences_only_grow_also_after_release_and_sweep(fixture: &impl Fixture) {
    let store = fixture.store();
    let mut last = 0;
    let key = id("alice");
    for round in 0..5 {
        let fence = won(&*store, claim_request(&key)).await;
        assert!(fence.number > last, "round {round}: {} after {last}", fence.number);
        last = fence.number;
        settle(&*store, &key, fence, Settlement::Release).await;
        store.sweep(1000, Duration::ZERO).await.expect("the store answers");
        let other = won(&*store, claim_request(&id("alice"))).await;
        assert!(other.number > last);
        last = other.number;
    }
}

/// The reply to a claim may be lost.
pub async fn a_claim_made_again_with_its_nonce_is_the_same_claim(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let requested = claim_request(&id);
    let fence = won(&*store, requested.clone()).await;
    assert_eq!(won(&*store, requested.clone()).await, fence);
    settle(&*store, &id, fence, settled("x")).await;
    assert_eq!(
        known(&*store, requested).await.record.state,
        State::Settled,
        "but once it is settled, the record counts"
    );
}

/// Also when many try at once.
pub async fn an_expired_record_is_taken_over_by_one(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    settle(&*store, &id, fence, settled("old")).await;
    let take_over = || replacing(&id, Claim::TakeOver, fence);
    assert_eq!(known(&*store, take_over()).await.record.state, State::Settled, "not before it expired");
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(standing(&*store, &id).await, Standing::Expired);
    let claims: Vec<_> = (0..16)
        .map(|_| {
            let (store, request) = (Arc::clone(&store), take_over());
            tokio::spawn(async move { store.claim(request).await })
        })
        .collect();
    let mut winners = 0;
    for claim in claims {
        let claimed = claim.await.expect("no claim panics").expect("the store answers");
        winners += usize::from(matches!(claimed, ClaimOutcome::Won { .. }));
    }
    assert_eq!(winners, 1);
    assert_eq!(settle(&*store, &id, fence, settled("old")).await, FencedWrite::Superseded);
}

/// It is decided upon first: a metric counts it, and the claim names its fence.
pub async fn an_expired_record_is_not_claimed_as_new(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    settle(&*store, &id, fence, settled("old")).await;
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(known(&*store, claim_request(&id)).await.record.fence, fence);
}

/// Whose a key is comes first.
pub async fn one_key_in_two_scopes_never_meets(fixture: &impl Fixture) {
    let store = fixture.store();
    let alices = id("alice");
    let bobs = Id { scope: scope("bob"), key: alices.key.clone() };
    let fence = won(&*store, claim_request(&alices)).await;
    settle(&*store, &alices, fence, settled("hers")).await;
    let his = won(&*store, claim_request(&bobs)).await;
    assert_eq!(
        settle(&*store, &bobs, fence, settled("hers")).await,
        FencedWrite::Superseded,
        "a fence holds for its own key"
    );
    settle(&*store, &bobs, his, settled("his")).await;
    assert_eq!(entry(&*store, &alices).await.answer, Some(answer("hers")));
    assert_eq!(entry(&*store, &bobs).await.answer, Some(answer("his")));
}

/// Rule 10: the same request under a rotated token is not a second effect.
pub async fn a_rotated_credential_is_recognised(fixture: &impl Fixture) {
    let store = fixture.store();
    let old = id("old-token");
    let new = Id { scope: scope("new-token"), key: old.key.clone() };
    let rotation = old.hash();
    let rotated = |id: &Id| ClaimRequest { rotation: Some(rotation), ..claim_request(id) };
    let fence = won(&*store, rotated(&old)).await;
    assert!(matches!(store.claim(rotated(&new)).await, Ok(ClaimOutcome::CredentialChanged)), "while it runs");
    settle(&*store, &old, fence, settled("x")).await;
    assert!(
        matches!(store.claim(rotated(&new)).await, Ok(ClaimOutcome::CredentialChanged)),
        "and once it is settled"
    );
    known(&*store, rotated(&old)).await;
    let free = id("old-token");
    let freed = won(&*store, ClaimRequest { rotation: Some(free.hash()), ..claim_request(&free) }).await;
    settle(&*store, &free, freed, Settlement::Release).await;
    let elsewhere = Id { scope: scope("new-token"), key: free.key.clone() };
    won(&*store, ClaimRequest { rotation: Some(free.hash()), ..claim_request(&elsewhere) }).await;
}
