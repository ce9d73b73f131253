//! Many at once, in several processes: here, several stores on one database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_contract::decide::Claim;
use semel_contract::record::{Fence, State};
use semel_store::postgres::{PostgresStore, sql};
use semel_store::{
    ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Filter, Id, Resolution, Resolved, Settlement, Swept,
};
use tokio_postgres::types::ToSql;

use crate::fixture::{
    AT_ONCE, Database, LEASE, answer, atomic, claim_request, entry, id, lifetime, patient_postgres, postgres,
    settled, won,
};
use crate::once_fixture::Call;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_200_claims_of_one_key_by_two_processes_one_wins() {
    let database = Database::create().await;
    let stores = [database.store(4).await, database.store(4).await];
    let id = id("contended");
    let claims: Vec<_> = (0..200)
        .map(|at| {
            let (store, request) = (Arc::clone(&stores[at % 2]), claim_request(&id));
            tokio::spawn(async move { store.claim(request).await })
        })
        .collect();
    let (mut won, mut seen) = (Vec::new(), BTreeSet::new());
    for claim in claims {
        match claim.await.expect("no claim panics").expect("the store answers") {
            ClaimOutcome::Won { fence, .. } => won.push(fence),
            ClaimOutcome::Known { entry, .. } => _ = seen.insert(entry.record.fence),
            other => panic!("neither won nor lost: {other:?}"),
        }
    }
    assert_eq!(won.len(), 1);
    // A claim that took its place late takes a higher number, and may have been seen under its first.
    let is_winners = |fence: &Fence| fence.nonce == won[0].nonce && fence.number <= won[0].number;
    assert!(seen.len() <= 2 && seen.iter().all(is_winners), "{seen:?} beside {won:?}");
    for store in &stores {
        let (entry, _) = store.look_up(&id).await.expect("the store answers");
        assert_eq!(
            entry.expect("it is claimed").record.fence,
            won[0],
            "what stands is what the winner was told"
        );
    }
}

async fn claim_and_settle(store: &PostgresStore, name: &str) -> Fence {
    let id = id(name);
    let fence = won(store, claim_request(&id)).await;
    let written = store.settle(&id, fence, settled("x"), &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    fence
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_connections_are_enough_for_200_requests_at_once() {
    let database = Database::create().await;
    let store = database.store(2).await;
    let requests: Vec<_> = (0..200)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { claim_and_settle(&store, "crowd").await })
        })
        .collect();
    let mut fences = BTreeSet::new();
    for request in requests {
        let request = tokio::time::timeout(Duration::from_secs(20), request).await.expect("no deadlock");
        fences.insert(request.expect("no request panics").number);
    }
    assert_eq!(fences.len(), 200, "numbers are never given twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_64_requests_at_once_a_commit_serves_many() {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 75;
    let database = Database::create().await;
    let store = database.store(8).await;
    claim_and_settle(&store, "warm").await;
    let commits = async || {
        let client = database.client().await;
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        client.query_one(sql, &[]).await.expect("the statistics can be read").get::<_, i64>(0)
    };
    let (counted, committed, started) = (store.statements(), commits().await, Instant::now());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    claim_and_settle(&store, "load").await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no request panics");
    }
    let taken = started.elapsed();
    let counted = store.statements() - counted;
    // A session publishes its statistics at the latest when it ends.
    drop(store);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let committed = u64::try_from(commits().await - committed).expect("it only grows");
    let requests = TASKS * ROUNDS;
    println!(
        "{requests} requests in {taken:?} ({:.0}/s): {counted} transactions counted, {committed} by the server",
        requests as f64 / taken.as_secs_f64()
    );
    assert!(counted * 4 < requests, "{counted} transactions for {requests} requests");
    assert!(committed * 4 < requests, "{committed} commits for {requests} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_by_itself_waits_for_no_batch() {
    let here = postgres().await;
    claim_and_settle(&here.store, "warm").await;
    let (before, started) = (here.store.statements(), Instant::now());
    for _ in 0..20 {
        claim_and_settle(&here.store, "alone").await;
    }
    let (taken, statements) = (started.elapsed(), here.store.statements() - before);
    println!("20 requests one after the other: {taken:?}, {statements} transactions");
    assert!(statements <= 20 * 3, "one claim, one settlement, one notification each: {statements}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_of_one_fence_in_one_batch_agree() {
    let here = postgres().await;
    let (slow, id) = (id("slow"), id("twice"));
    let (first, fence) =
        (won(&here.store, claim_request(&slow)).await, won(&here.store, claim_request(&id)).await);
    here.database.slow_down().await;
    let settle = |id: &Id, fence, settlement: Settlement| {
        let (store, id) = (Arc::clone(&here.store), id.clone());
        tokio::spawn(async move { store.settle(&id, fence, settlement, &lifetime()).await })
    };
    // While this one is on its way, the others queue and become one batch.
    let busy = settle(&slow, first, settled("slow"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let body = |at: usize| if at.is_multiple_of(2) { "even" } else { "odd" };
    let asked: Vec<_> = (0..8).map(|at| settle(&id, fence, settled(body(at)))).collect();
    let mut written = Vec::new();
    for asked in asked {
        written.push(asked.await.expect("no panic").expect("the store answers"));
    }
    assert_eq!(busy.await.expect("no panic"), Ok(FencedWrite::Done));
    let kept = entry(&here.store, &id).await.answer.expect("it is settled");
    for (at, written) in written.into_iter().enumerate() {
        let expected = if kept == answer(body(at)) { FencedWrite::Done } else { FencedWrite::Superseded };
        assert_eq!(written, expected, "settlement {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_holds_for_its_own_key_only() {
    let here = postgres().await;
    let (hers, his) = (id("hers"), id("his"));
    let (fence, other) =
        (won(&here.store, claim_request(&hers)).await, won(&here.store, claim_request(&his)).await);
    assert_eq!(here.store.settle(&his, fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Superseded));
    let forged = Fence { nonce: fence.nonce ^ 1, ..fence };
    let held = [(his.clone(), fence), (hers.clone(), other), (hers.clone(), forged), (hers.clone(), fence)];
    let renewed = here.store.renew(&held, LEASE).await.expect("the store answers");
    assert_eq!(renewed[..3], [FencedWrite::Superseded; 3], "also beside the one that is right");
    assert_eq!(renewed[3], FencedWrite::Done);
    let handler = here.database.client().await;
    let call = Call::of(his.clone()).with(&format!(r#"{{"fence": "{fence}"}}"#));
    assert_eq!(call.enter(&handler).await.expect("it is told"), "stale");
    assert_eq!(entry(&here.store, &hers).await.record.state, State::Claimed);
    let lifetime = lifetime();
    let settle = |fence| here.store.settle(&hers, fence, settled("x"), &lifetime);
    let (forged, right) = tokio::join!(settle(forged), settle(fence));
    assert_eq!((forged, right), (Ok(FencedWrite::Superseded), Ok(FencedWrite::Done)));
}

/// The connection of a caller that went away is in the middle of something: nobody else may be given it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_takes_its_connection_along() {
    let here = postgres().await;
    let store = here.database.patient_store(1).await;
    let id = id("left");
    let first = won(&store, atomic(&id)).await;
    let mut other = here.database.client().await;
    let writing = other.transaction().await.expect("a transaction");
    writing.execute("SELECT FROM semel.record FOR UPDATE", &[]).await.expect("the record is being written");
    here.pass(LEASE + Duration::from_secs(1)).await;
    let request = ClaimRequest { how: Claim::Supersede, replaces: Some(first), ..atomic(&id) };
    let left = tokio::time::timeout(Duration::from_millis(200), store.claim(request)).await;
    assert!(left.is_err(), "it waits for whoever is writing, until its caller loses patience");
    let started = Instant::now();
    store.look_up(&id).await.expect("the store answers");
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_that_the_server_refuses_does_not_fail_its_batch() {
    let here = postgres().await;
    let requests: Vec<_> = (0..40)
        .map(|at| {
            let (store, mut request) = (Arc::clone(&here.store), claim_request(&id("mixed")));
            if at == 7 {
                Arc::make_mut(&mut request.about).principal = "not\0text".to_owned();
            }
            tokio::spawn(async move { store.claim(request).await })
        })
        .collect();
    let mut won = 0;
    for request in requests {
        won += usize::from(matches!(request.await.expect("no panic"), Ok(ClaimOutcome::Won { .. })));
    }
    assert_eq!(won, 39);
}

/// Takes a key, as another process does.
const TAKE: &str =
    "INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, principal, state, guarantee,
        created_at, first_lease_until, late_until, request_headers, request_id)
    VALUES (nextval('semel.fence'), 1, $1, $2, $3, '', '', 1, 2, 0, 0, 0, '', '')";

/// A claim draws its number before it has its place. If it then has to wait, others may have come and gone under
/// higher numbers, also under its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waited_for_its_place_has_the_highest_number() {
    let here = postgres().await;
    let id = id("waited");
    let mut other = here.database.client().await;
    let blocking = other.transaction().await.expect("a transaction");
    let hash = id.hash();
    blocking
        .execute(TAKE, &[&hash.as_slice(), &id.scope.as_bytes().as_slice(), &id.key.as_str()])
        .await
        .expect("the key is taken, but not yet for others to see");
    let claim = tokio::spawn({
        let (store, request) = (Arc::clone(&here.store), claim_request(&id));
        async move { won(&store, request).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let given = here.number("SELECT nextval('semel.fence')").await;
    blocking.rollback().await.expect("the key is free again");
    let fence = claim.await.expect("no panic");
    assert!(fence.number > given.cast_unsigned(), "{fence} after {given}");
    let found = here.store.list(&Filter { state: Some(State::Claimed), limit: 9, ..Filter::default() }).await;
    let found: Vec<Fence> = found.expect("the store lists").iter().map(|entry| entry.record.fence).collect();
    assert_eq!(found, [fence], "and is found by it among the open claims");
    let written = here.store.settle(&id, fence, settled("x"), &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
}

/// A renewal of this fence, and the time until which it is then held.
const RENEW: &str = "INSERT INTO semel.lease AS l (fence, lease_until)
    SELECT fence, first_lease_until + 3600000 FROM semel.record WHERE fence = $1
    ON CONFLICT (fence) DO UPDATE SET lease_until = l.lease_until + 3600000";

/// A renewal that was sent in time may be committed late: whoever supersedes waits for it, be it the first of its claim or
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supersede_does_not_overtake_a_renewal_in_flight() {
    let here = postgres().await;
    for (key, renewals) in [("renewed", 0), ("renewed before", 1)] {
        let id = id(key);
        let first = won(&here.store, atomic(&id)).await;
        for _ in 0..renewals {
            let renewed = here.store.renew(&[(id.clone(), first)], LEASE).await;
            assert_eq!(renewed, Ok(vec![FencedWrite::Done]));
        }
        let mut other = here.database.client().await;
        let renewing = other.transaction().await.expect("a transaction");
        let number = first.number.cast_signed();
        renewing.execute(RENEW, &[&number]).await.expect("it is renewed, but not yet for others to see");
        here.pass(LEASE + Duration::from_secs(1)).await;
        let superseding = tokio::spawn({
            let store = Arc::clone(&here.store);
            let request = ClaimRequest { how: Claim::Supersede, replaces: Some(first), ..atomic(&id) };
            async move { store.claim(request).await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        renewing.commit().await.expect("now they see it");
        match superseding.await.expect("no panic") {
            Ok(ClaimOutcome::Known { entry, now }) => assert!(entry.record.lease_until > now),
            other => panic!("expected the renewed claim, found {other:?}"),
        }
    }
}

/// The same of a sweep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_does_not_overtake_a_first_renewal_in_flight() {
    let here = patient_postgres().await;
    let id = id("renewed");
    let fence = won(&here.store, claim_request(&id)).await;
    let mut other = here.database.client().await;
    let renewing = other.transaction().await.expect("a transaction");
    let number = fence.number.cast_signed();
    renewing.execute(RENEW, &[&number]).await.expect("it is renewed, but not yet for others to see");
    here.pass(LEASE + Duration::from_secs(1)).await;
    let sweeping = tokio::spawn({
        let store = Arc::clone(&here.store);
        async move { store.sweep(100, Duration::ZERO).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    renewing.commit().await.expect("now it sees it");
    assert_eq!(sweeping.await.expect("no panic"), Ok(Swept::default()));
    assert_eq!(entry(&here.store, &id).await.record.state, State::Claimed);
    let renewed = here.store.renew(&[(id.clone(), fence)], LEASE).await;
    assert_eq!(renewed, Ok(vec![FencedWrite::Done]), "and it goes on as any renewed claim");
}

/// And the other way round: a renewal that comes after the sweep or an operator's word, whatever the time was when it was
/// sent, and whether or not it is the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_revive_what_was_ended() {
    let here = patient_postgres().await;
    let cases = [("swept", 0, State::Unknown), ("renewed and swept", 1, State::Unknown)];
    let resolved = [("resolved", 0, State::Unkept), ("renewed and resolved", 1, State::Unkept)];
    for (key, renewals, ends) in cases.into_iter().chain(resolved) {
        let id = id(key);
        let fence = won(&here.store, claim_request(&id)).await;
        for _ in 0..renewals {
            let renewed = here.store.renew(&[(id.clone(), fence)], LEASE).await;
            assert_eq!(renewed, Ok(vec![FencedWrite::Done]));
        }
        // It reads the time and the record, and comes to the lease only when the sweep is over.
        let mut other = here.database.client().await;
        let gate = other.transaction().await.expect("a transaction");
        gate.batch_execute("SELECT pg_advisory_xact_lock(7)").await.expect("the lock is free");
        let renewing = here.database.client().await;
        let slowly = sql::RENEW_WAITING
            .replace("FROM held\n", "FROM held CROSS JOIN slow\n")
            .replace("FROM held, t", "FROM held CROSS JOIN slow, t")
            .replace(
                "), leased AS MATERIALIZED (",
                "), slow AS MATERIALIZED (
                    SELECT pg_advisory_xact_lock_shared(7) FROM held, t WHERE t.now > 0
                ), leased AS MATERIALIZED (",
            );
        let (number, nonce, hash) =
            (fence.number.cast_signed(), fence.nonce.cast_signed(), id.hash().to_vec());
        let late = tokio::spawn(async move {
            let values: [&(dyn ToSql + Sync); 7] =
                [&0_i64, &0_i64, &0_i64, &vec![number], &vec![nonce], &vec![hash], &30_000_i64];
            let rows = renewing.query(&slowly, &values).await.expect("the statement is valid");
            rows.iter().filter(|row| row.get::<_, Option<i64>>("fence").is_some()).count()
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!late.is_finished(), "it waits");
        here.pass(LEASE + Duration::from_secs(1)).await;
        if ends == State::Unknown {
            let swept = here.store.sweep(100, Duration::ZERO).await.expect("the store answers");
            assert_eq!(swept, Swept { unknown: 1, ..Swept::default() });
        } else {
            let applied = Resolution::Applied(None);
            let resolved = here.store.resolve(&id, fence, applied, &lifetime(), "carol", "seen").await;
            assert_eq!(resolved, Ok(Resolved::Done));
        }
        gate.rollback().await.expect("now it goes on");
        assert_eq!(late.await.expect("no panic"), 0, "{key}");
        let renewed = here.store.renew(&[(id.clone(), fence)], LEASE).await;
        assert_eq!(renewed, Ok(vec![FencedWrite::Superseded]));
        assert_eq!(entry(&here.store, &id).await.record.state, ends);
    }
}

/// Claims of one statement may have leases of any length: each lapses at its own time, and none is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_one_batch_lapse_each_at_its_own_time() {
    let here = postgres().await;
    let leases = [LEASE, LEASE * 4, LEASE + Duration::from_millis(300), LEASE * 2];
    for (at, lease) in leases.into_iter().enumerate() {
        won(&here.store, ClaimRequest { lease, ..claim_request(&id(&format!("lapses-{at}"))) }).await;
    }
    let together = "WITH apart AS (DELETE FROM semel.opened RETURNING first, lease_until, fences)
        INSERT INTO semel.opened SELECT min(first), min(lease_until), array_agg(fence)
        FROM apart, unnest(fences) AS given (fence)";
    assert_eq!(here.client.execute(together, &[]).await.expect("the statement is valid"), 1);
    let mut unknown = 0;
    for (passed, expected) in [(LEASE - Duration::from_secs(3), 0), (Duration::from_secs(4), 2), (LEASE, 3)] {
        here.pass(passed).await;
        unknown += here.store.sweep(100, Duration::ZERO).await.expect("the store answers").unknown;
        assert_eq!(unknown, expected);
    }
    here.pass(LEASE * 2).await;
    assert_eq!(here.store.sweep(100, Duration::ZERO).await.expect("the store answers").unknown, 1);
    assert_eq!(here.number("SELECT count(*) FROM semel.opened").await, 0);
}

/// Of a batch of claims one meets a claim that another process makes at the same moment: it is told so, and the others win.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_another_makes_at_the_same_moment_harms_no_other() {
    let here = patient_postgres().await;
    let ids: Vec<Id> = (0..40).map(|number| id(&format!("at-once-{number}"))).collect();
    let mut other = here.database.client().await;
    let claiming = other.transaction().await.expect("a transaction");
    let taken = &ids[30];
    let hash = taken.hash();
    claiming
        .execute(TAKE, &[&hash.as_slice(), &taken.scope.as_bytes().as_slice(), &taken.key.as_str()])
        .await
        .expect("the key is taken, but not yet for others to see");
    let claims: Vec<_> = ids
        .iter()
        .map(|id| {
            let (store, request) = (Arc::clone(&here.store), claim_request(id));
            tokio::spawn(async move { store.claim(request).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    claiming.commit().await.expect("now they see it");
    for (id, claim) in ids.iter().zip(claims) {
        match claim.await.expect("no panic") {
            Ok(ClaimOutcome::Won { .. }) => assert_ne!(id, taken),
            Ok(ClaimOutcome::Known { .. }) => assert_eq!(id, taken),
            other => panic!("{id:?}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_in_one_process_wakes_the_waiters_of_another() {
    let database = Database::create().await;
    let (here, there) = (database.store(2).await, database.store(2).await);
    // The other store listens as soon as its connection stands.
    let client = database.client().await;
    let listening = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        client.query_one(sql, &[]).await.expect("the sessions can be read").get::<_, i64>(0)
    };
    while listening().await < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let id = id("elsewhere");
    let fence = won(&here, claim_request(&id)).await;
    let listener = there.hints().listen(id.hash());
    let next = listener.next();
    assert_eq!(here.settle(&id, fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Done));
    tokio::time::timeout(Duration::from_secs(5), next).await.expect("the waiter elsewhere is woken");
}
