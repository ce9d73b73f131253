//! Rules that only PostgreSQL's statements implement: leases that lapsed, lifetimes by SQL, tombstones, and batches of
//! settlements of which the server refuses one.

use std::time::Duration;

use semel_contract::decide::Standing;
use semel_contract::profile::{Anchor, Lifetime};
use semel_store::conformance::Fixture;
use semel_store::{ClaimRequest, ClaimStore, FencedWrite, Settlement, Terms};

use crate::fixture::{LEASE, answer, claim_request, entry, id, lifetime, postgres, settled, won};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_lapsed_is_not_renewed_be_it_the_first_or_a_later_one() {
    let here = postgres().await;
    for renewals in [0, 1, 2] {
        let id = id("held");
        let held = [(id.clone(), won(&here.store, claim_request(&id)).await)];
        for _ in 0..renewals {
            here.advance(LEASE / 2).await;
            assert_eq!(here.store.renew(&held, LEASE).await, Ok(vec![FencedWrite::Done]));
        }
        here.advance(LEASE + Duration::from_secs(1)).await;
        // Nobody has swept it yet: the lapse alone ends it.
        let renewed = here.store.renew(&held, LEASE).await;
        assert_eq!(renewed, Ok(vec![FencedWrite::Superseded]), "after {renewals} renewals");
        let (found, now) = here.store.look_up(&id).await.expect("the store answers");
        assert_eq!(Standing::of(found.as_ref().map(|entry| &entry.record), now), Standing::Unknown);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_settlement_that_the_server_refuses_fails_alone() {
    let here = postgres().await;
    let sql = "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'refused'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON semel.record FOR EACH ROW
            WHEN (NEW.key LIKE 'refused%' AND NEW.state = 2) EXECUTE FUNCTION public.refuse()";
    here.client.batch_execute(sql).await.expect("the test may refuse");
    let mut held = Vec::new();
    for number in 0..20 {
        let id = id(if number == 7 { "refused" } else { "kept" });
        held.push((id.clone(), won(&here.store, claim_request(&id)).await));
    }
    let settling: Vec<_> = held
        .iter()
        .cloned()
        .map(|(id, fence)| {
            let store = std::sync::Arc::clone(&here.store);
            tokio::spawn(async move { store.settle(&id, fence, settled("x"), &lifetime()).await })
        })
        .collect();
    for (number, settled) in settling.into_iter().enumerate() {
        let settled = settled.await.expect("no panic");
        match number {
            7 => assert!(settled.is_err(), "{settled:?}"),
            _ => assert_eq!(settled, Ok(FencedWrite::Done), "number {number} has nothing to do with it"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_expires_and_is_swept_like_an_answer() {
    let here = postgres().await;
    let id = id("large");
    let fence = won(&here.store, claim_request(&id)).await;
    let unkept = Settlement::Unkept(answer("too large"));
    assert_eq!(here.store.settle(&id, fence, unkept, &lifetime()).await, Ok(FencedWrite::Done));
    let found = entry(&here.store, &id).await;
    assert!(found.record.expires_at.is_some_and(|at| at > found.record.created_at), "{found:?}");
    here.advance(lifetime().record() + Duration::from_secs(1)).await;
    let (found, now) = here.store.look_up(&id).await.expect("the store answers");
    assert_eq!(Standing::of(found.as_ref().map(|entry| &entry.record), now), Standing::Expired);
    assert_eq!(here.store.sweep(100, Duration::ZERO).await.expect("the store answers").removed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lifetime_of_its_own_counts_from_its_anchor_when_a_handler_settles_by_sql() {
    let here = postgres().await;
    for anchor in [Anchor::Created, Anchor::Settled] {
        let own = Lifetime { record: Some(48 * HOUR), anchor, ..lifetime() };
        let id = id("own");
        let terms = Some(Terms { lifetime: own, max_response_bytes: 1024 });
        let fence = won(&here.store, ClaimRequest { terms, ..claim_request(&id) }).await;
        here.advance(5 * HOUR).await;
        let settle = "SELECT semel.settle($1, 201, '{}', 'x')";
        here.client.query(settle, &[&fence.to_string()]).await.expect("the handler settles");
        let found = entry(&here.store, &id).await;
        let settled_at = found.settled_at.expect("it is settled");
        assert!(settled_at.millis_since(found.record.created_at) >= 5 * 3_600_000);
        let from = match anchor {
            Anchor::Created => found.record.created_at,
            Anchor::Settled => settled_at,
        };
        assert_eq!(found.record.expires_at, Some(from.plus(48 * HOUR)), "{anchor:?}");
    }
}
