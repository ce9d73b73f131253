//! Settlements: exact answers, stale fences, lifetimes, releases, seals.

use semel_contract::profile::Anchor;

use super::*;

/// Status, headers in order with repeated names, and exact bytes.
pub async fn a_settled_answer_is_found_byte_for_byte(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    let body: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let kept = Answer { body: Bytes::from(body), ..answer("") };
    assert_eq!(settle(&*store, &id, fence, Settlement::Settle(kept.clone())).await, FencedWrite::Done);
    assert_eq!(entry(&*store, &id).await.answer, Some(kept.clone()));
    let seen = known(&*store, claim_request(&id)).await;
    assert_eq!((seen.answer, seen.record.state), (Some(kept), State::Settled));
}

/// Its holder may not know whether the first settlement arrived.
pub async fn settling_twice_with_one_fence_is_success(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    assert_eq!(settle(&*store, &id, fence, settled("once")).await, FencedWrite::Done);
    assert_eq!(settle(&*store, &id, fence, settled("once")).await, FencedWrite::Done);
}

/// Settled is absorbing.
pub async fn settling_twice_with_another_answer_changes_nothing(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    settle(&*store, &id, fence, settled("first")).await;
    for other in
        [settled("second"), Settlement::Release, Settlement::Unknown, Settlement::Unkept(answer("first"))]
    {
        assert_eq!(settle(&*store, &id, fence, other).await, FencedWrite::Superseded);
    }
    assert_eq!(entry(&*store, &id).await.answer, Some(answer("first")));
}

/// Not even when the row was released, swept and claimed anew.
pub async fn a_stale_fence_cannot_settle_renew_or_release(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let stale = won(&*store, claim_request(&id)).await;
    assert_eq!(settle(&*store, &id, stale, Settlement::Release).await, FencedWrite::Done);
    store.sweep(1000, Duration::ZERO).await.expect("the store answers");
    let fence = won(&*store, claim_request(&id)).await;
    for fence in [
        stale,
        Fence { number: fence.number, nonce: fence.nonce ^ 1 },
        Fence { number: fence.number + 1, nonce: fence.nonce },
    ] {
        for settlement in
            [settled("stale"), Settlement::Release, Settlement::Unknown, Settlement::Unkept(answer(""))]
        {
            assert_eq!(settle(&*store, &id, fence, settlement).await, FencedWrite::Superseded);
        }
        assert_eq!(renew(&*store, &id, fence).await, FencedWrite::Superseded);
    }
    assert_eq!(entry(&*store, &id).await.record.state, State::Claimed);
    assert_eq!(settle(&*store, &id, fence, settled("true")).await, FencedWrite::Done);
}

/// Without a trace, where the lifetime keeps none.
pub async fn a_released_key_is_free_again(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Release).await, FencedWrite::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Absent);
    won(&*store, claim_request(&id)).await;
}

/// One of two retries, not both.
pub async fn a_released_row_that_is_kept_is_reclaimed_by_its_fence(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    let release = async || {
        store.settle(&id, fence, Settlement::Release, &keeping_released()).await.expect("the store answers")
    };
    assert_eq!(release().await, FencedWrite::Done);
    assert_eq!(release().await, FencedWrite::Done, "releasing again with the same fence is success");
    assert_eq!(standing(&*store, &id).await, Standing::Released);
    known(&*store, claim_request(&id)).await;
    let second = won(&*store, replacing(&id, Claim::Reclaim, fence)).await;
    assert!(second.number > fence.number);
    assert_eq!(known(&*store, replacing(&id, Claim::Reclaim, fence)).await.record.state, State::Claimed);
}

/// From the first claim or from the settlement, as the profile says.
pub async fn lifetimes_count_from_their_anchor(fixture: &impl Fixture) {
    let store = fixture.store();
    for (lifetime, from_settlement) in [(presets::feed().lifetime, true), (presets::agents().lifetime, false)]
    {
        let id = id("alice");
        let fence = won(&*store, claim_request(&id)).await;
        let created = entry(&*store, &id).await.record.created_at;
        fixture.advance(LEASE / 2).await;
        store.settle(&id, fence, settled("x"), &lifetime).await.expect("the store answers");
        let found = entry(&*store, &id).await;
        let anchor = if from_settlement { found.settled_at.expect("it is settled") } else { created };
        assert_eq!(found.record.expires_at, Some(anchor.plus(lifetime.record())));
        assert!(found.settled_at.expect("it is settled") >= created.plus(LEASE / 2));
    }
}

/// However long nobody knew: whoever asks from now on is answered.
pub async fn an_outcome_that_was_unknown_lives_from_when_it_is_known(fixture: &impl Fixture) {
    let store = fixture.store();
    let lifetime = Lifetime { anchor: Anchor::Created, ..lifetime() };
    let (resolved, late) = (id("alice"), id("alice"));
    let fences = [won(&*store, claim_request(&resolved)).await, won(&*store, claim_request(&late)).await];
    for (id, fence) in [&resolved, &late].into_iter().zip(fences) {
        assert_eq!(settle(&*store, id, fence, Settlement::Unknown).await, FencedWrite::Done);
    }
    fixture.advance(past(lifetime.record() * 2)).await;
    let applied = Resolution::Applied(Some(answer("found")));
    let done = store.resolve(&resolved, fences[0], applied, &lifetime, "carol", "asked").await;
    assert_eq!(done, Ok(Resolved::Done));
    let done = store.settle(&late, fences[1], settled("late"), &lifetime).await;
    assert_eq!(done, Ok(FencedWrite::Done));
    for pause in [Duration::ZERO, lifetime.record() / 2] {
        fixture.advance(pause).await;
        for id in [&resolved, &late] {
            assert_eq!(standing(&*store, id).await, Standing::Settled, "it is not expired already");
        }
    }
}

/// The tombstone of a stream or of an answer that was too large.
pub async fn an_unkept_answer_keeps_its_status_only(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    assert_eq!(settle(&*store, &id, fence, Settlement::Unkept(answer("large"))).await, FencedWrite::Done);
    assert_eq!(settle(&*store, &id, fence, Settlement::Unkept(answer("large"))).await, FencedWrite::Done);
    assert_eq!(standing(&*store, &id).await, Standing::Unkept);
    assert_eq!(entry(&*store, &id).await.answer, Some(answer("")));
}

/// Also a tombstone ends: otherwise its key could never be used again, and its row would stay for ever.
pub async fn an_unkept_answer_expires_as_a_kept_one_does(fixture: &impl Fixture) {
    let store = fixture.store();
    let (large, resolved) = (id("alice"), id("alice"));
    let fence = won(&*store, claim_request(&large)).await;
    assert_eq!(settle(&*store, &large, fence, Settlement::Unkept(answer("large"))).await, FencedWrite::Done);
    let fence = won(&*store, claim_request(&resolved)).await;
    settle(&*store, &resolved, fence, Settlement::Unknown).await;
    let applied = Resolution::Applied(None);
    let word = store.resolve(&resolved, fence, applied, &lifetime(), "carol", "seen").await;
    assert_eq!(word, Ok(Resolved::Done));
    for id in [&large, &resolved] {
        assert_eq!(standing(&*store, id).await, Standing::Unkept);
        assert!(entry(&*store, id).await.record.expires_at.is_some(), "it has an end");
    }
    fixture.advance(past(lifetime().record())).await;
    for id in [&large, &resolved] {
        assert_eq!(standing(&*store, id).await, Standing::Expired);
    }
    store.sweep(100_000, Duration::ZERO).await.expect("the store answers");
    for id in [&large, &resolved] {
        assert_eq!(standing(&*store, id).await, Standing::Absent);
    }
}

/// What makes a requeue safe.
pub async fn a_sealed_key_cannot_be_claimed(fixture: &impl Fixture) {
    let store = fixture.store();
    let id = id("alice");
    let about = About { principal: "alice".to_owned(), ..About::default() };
    assert!(matches!(store.seal(&id, &about, &lifetime()).await, Ok(Sealed::Done)));
    assert_eq!(known(&*store, claim_request(&id)).await.record.state, State::Sealed);
    assert!(
        matches!(store.seal(&id, &about, &lifetime()).await, Ok(Sealed::Known(_))),
        "sealing again finds the seal"
    );
    fixture.advance(past(lifetime().record())).await;
    assert_eq!(standing(&*store, &id).await, Standing::Expired);
}

/// A seal never cancels what may have happened.
pub async fn sealing_a_used_key_returns_its_record(fixture: &impl Fixture) {
    let store = fixture.store();
    let about = About::default();
    let id = id("alice");
    let fence = won(&*store, claim_request(&id)).await;
    let state = async || match store.seal(&id, &about, &lifetime()).await {
        Ok(Sealed::Known(entry)) => entry.record.state,
        other => panic!("expected the record, found {other:?}"),
    };
    assert_eq!(state().await, State::Claimed);
    settle(&*store, &id, fence, Settlement::Unknown).await;
    assert_eq!(state().await, State::Unknown);
    settle(&*store, &id, fence, settled("x")).await;
    assert_eq!(state().await, State::Settled);
}
