//! Faults: what is said of a commit of which nobody knows whether it happened, and of a disk that is full.

use semel_store::Filter;

use super::*;

/// Waits until the store answers again.
pub(super) async fn recovered(store: &SqliteStore) {
    for _ in 0..200 {
        if store.ready().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the store did not recover");
}

#[tokio::test]
async fn a_claim_of_unknown_commit_is_told_by_its_nonce() {
    for written in [true, false] {
        let sqlite = Sqlite::new();
        let store = &sqlite.store;
        let (held, id) = (id("held"), id("order"));
        let held_fence = won(store, &held, Guarantee::Fenced).await;
        let requested = claim_request(&id, Guarantee::Fenced);
        store.faults().lose_next_commit(written);
        assert!(is_unknown(&store.claim(requested.clone()).await));
        recovered(store).await;
        let found = standing(store, &id).await;
        assert_eq!(found, if written { Standing::Claimed } else { Standing::Absent });
        let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(requested.clone()).await else {
            panic!("the same wish wins, whether or not it had won");
        };
        assert!(fence.number > held_fence.number);
        let Ok(ClaimOutcome::Won { fence: again, .. }) = store.claim(requested).await else {
            panic!("and again")
        };
        assert_eq!(fence, again);
        assert_eq!(settle(store, &id, fence, settled("x")).await, FencedWrite::Done);
        assert_eq!(settle(store, &held, held_fence, settled("x")).await, FencedWrite::Done, "others go on");
    }
}

#[tokio::test]
async fn a_settlement_of_unknown_commit_is_told_by_its_fence() {
    for guarantee in [Guarantee::Fenced, Guarantee::Atomic] {
        for written in [true, false] {
            let sqlite = Sqlite::new();
            let store = &sqlite.store;
            let id = id("order");
            let fence = won(store, &id, guarantee).await;
            store.faults().lose_next_commit(written);
            assert!(is_unknown(&store.settle(&id, fence, settled("x"), &lifetime()).await));
            recovered(store).await;
            let found = standing(store, &id).await;
            assert_eq!(found, if written { Standing::Settled } else { Standing::Claimed });
            assert_eq!(settle(store, &id, fence, settled("x")).await, FencedWrite::Done);
            let sqlite = sqlite.reopened();
            assert_eq!(standing(&sqlite.store, &id).await, Standing::Settled);
        }
    }
}

#[tokio::test]
async fn the_store_says_nothing_until_it_has_recovered() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let id = id("order");
    let fence = won(store, &id, Guarantee::Fenced).await;
    store.faults().hold_recovery(true);
    store.faults().lose_next_commit(false);
    assert!(is_unknown(&store.settle(&id, fence, settled("x"), &lifetime()).await));
    let unavailable = |error: StoreError| assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    unavailable(store.ready().await.expect_err("it is not ready"));
    unavailable(store.look_up(&id).await.expect_err("what it reads is no evidence"));
    unavailable(store.list(&Filter::default()).await.expect_err("nor what it lists"));
    unavailable(store.claim(claim_request(&id, Guarantee::Fenced)).await.expect_err("it decides nothing"));
    unavailable(store.settle(&id, fence, settled("x"), &lifetime()).await.expect_err("it writes nothing"));
    unavailable(store.renew(&[(id.clone(), fence)], LEASE).await.expect_err("nor does it renew"));
    unavailable(store.audit(1).expect_err("nor does it tell"));
    store.faults().hold_recovery(false);
    recovered(store).await;
    assert_eq!(settle(store, &id, fence, settled("x")).await, FencedWrite::Done);
}

#[tokio::test]
async fn renewed_leases_and_reservations_survive_a_recovery() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let (fenced, atomic) = (id("fenced"), id("atomic"));
    let fence = won(store, &fenced, Guarantee::Fenced).await;
    let reserved = won(store, &atomic, Guarantee::Atomic).await;
    sqlite.clock.advance(LEASE / 2);
    let held = [(fenced.clone(), fence), (atomic.clone(), reserved)];
    assert_eq!(store.renew(&held, LEASE).await, Ok(vec![FencedWrite::Done, FencedWrite::Done]));
    store.faults().lose_next_commit(true);
    assert!(is_unknown(&store.claim(claim_request(&id("other"), Guarantee::Fenced)).await));
    recovered(store).await;
    sqlite.clock.advance(LEASE / 2 + Duration::from_secs(1));
    assert_eq!(standing(store, &fenced).await, Standing::Claimed);
    assert_eq!(standing(store, &atomic).await, Standing::Claimed);
    assert_eq!(settle(store, &atomic, reserved, settled("x")).await, FencedWrite::Done);
}

#[tokio::test]
async fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let mut acknowledged = Vec::new();
    store.faults().limit_pages(80);
    let body = "x".repeat(10_000);
    let full = loop {
        let id = id(&format!("key-{}", acknowledged.len()));
        let fence = match store.claim(claim_request(&id, Guarantee::Fenced)).await {
            Ok(ClaimOutcome::Won { fence, .. }) => fence,
            Err(error) => break error,
            Ok(other) => panic!("expected to win, found {other:?}"),
        };
        match store.settle(&id, fence, settled(&body), &lifetime()).await {
            Ok(written) => assert_eq!(written, FencedWrite::Done),
            Err(error) => {
                assert_eq!(standing(store, &id).await, Standing::Claimed, "nothing was written");
                break error;
            }
        }
        acknowledged.push(id);
    };
    assert!(matches!(full, StoreError::Full(_)), "{full}");
    assert!(!acknowledged.is_empty());

    // In one batch with others, only those that need room are refused.
    let (large, small) = (id("large"), id("small"));
    let fence = won(store, &large, Guarantee::Atomic).await;
    let busy = Busy::begin(store, "busy").await;
    let refused = store.transact(&large, fence, &lifetime(), |_| Ok(((), settled(&"y".repeat(500_000)))));
    let reserved = store.claim(claim_request(&small, Guarantee::Atomic));
    busy.end().await;
    let refused = refused.await;
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    assert!(matches!(reserved.await, Ok(ClaimOutcome::Won { .. })));
    assert_eq!(standing(store, &large).await, Standing::Claimed);

    store.faults().limit_pages(0);
    // The limit is lifted before the batch after the next.
    let _ = store.claim(claim_request(&id("nudge"), Guarantee::Atomic)).await;
    let fence = won(store, &id("room"), Guarantee::Fenced).await;
    assert_eq!(settle(store, &id("room"), fence, settled(&body)).await, FencedWrite::Done);
    let sqlite = sqlite.reopened();
    for id in acknowledged {
        assert_eq!(standing(&sqlite.store, &id).await, Standing::Settled);
    }
}
