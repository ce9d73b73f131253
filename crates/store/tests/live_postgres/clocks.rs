//! The clock is the server's, and servers' clocks go wrong. Whatever they show, nothing expires by a jump that nobody
//! meant, for any process and for any handler.

use std::time::Duration;

use semel_contract::decide::{Claim, Standing};
use semel_store::conformance::Fixture;
use semel_store::postgres::PostgresStore;
use semel_store::{ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id};

use crate::fixture::{Postgres, claim_request, id, lifetime, postgres, settled, won};

const MONTH_MILLIS: i64 = 86_400_000 * 30;

async fn standing(store: &PostgresStore, id: &Id) -> Standing {
    let (entry, now) = store.look_up(id).await.expect("the store answers");
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

async fn done(here: &Postgres) -> (Id, ClaimRequest) {
    let id = id("done");
    let fence = won(&here.store, claim_request(&id)).await;
    let written = here.store.settle(&id, fence, settled("x"), &lifetime()).await;
    assert_eq!(written, Ok(FencedWrite::Done));
    let take_over = ClaimRequest { how: Claim::TakeOver, replaces: Some(fence), ..claim_request(&id) };
    (id, take_over)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_ahead_freezes_the_clock_for_everybody_until_it_is_confirmed() {
    let here = postgres().await;
    let (id, take_over) = done(&here).await;
    let (_, before) = here.store.look_up(&id).await.expect("the store answers");
    here.set_wall_off(MONTH_MILLIS).await;
    // Not even a statement that is the first to meet the jump believes it.
    assert!(matches!(here.store.claim(take_over.clone()).await, Ok(ClaimOutcome::Known { .. })));
    let jumped = here.store.frozen().await.expect("the store answers").expect("the clock is frozen");
    assert!((jumped - MONTH_MILLIS).abs() < 60_000, "{jumped}");
    // A process that starts now never saw the right time, but reads what the others found out.
    let fresh = here.database.store(2).await;
    assert_eq!(standing(&fresh, &id).await, Standing::Settled);
    assert!(matches!(fresh.claim(take_over.clone()).await, Ok(ClaimOutcome::Known { .. })));
    assert_eq!(fresh.sweep(100, Duration::ZERO).await.expect("the store answers").removed, 0);
    let (_, after) = fresh.look_up(&id).await.expect("the store answers");
    assert!((0..60_000).contains(&after.millis_since(before)), "time goes on as it ticks");
    fresh.confirm_clock().await.expect("an operator confirms");
    assert_eq!(here.store.frozen().await, Ok(None));
    assert_eq!(standing(&here.store, &id).await, Standing::Expired);
    assert!(matches!(here.store.claim(take_over).await, Ok(ClaimOutcome::Won { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_clock_lets_nothing_be_swept_even_if_it_expired_before() {
    let here = postgres().await;
    let (id, _) = done(&here).await;
    here.pass(lifetime().record() + Duration::from_secs(1)).await;
    assert_eq!(standing(&here.store, &id).await, Standing::Expired);
    here.set_wall_off(MONTH_MILLIS).await;
    here.store.ready().await.expect("the store answers");
    assert_eq!(here.store.sweep(100, Duration::ZERO).await.expect("the store answers").removed, 0);
    here.set_wall_off(-MONTH_MILLIS).await;
    here.store.ready().await.expect("the store answers");
    assert_eq!(here.store.frozen().await, Ok(None), "a jump that is taken back is forgotten");
    assert_eq!(here.store.sweep(100, Duration::ZERO).await.expect("the store answers").removed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_shortens_no_lifetime_also_of_what_handlers_settle() {
    let here = postgres().await;
    let id = id("handler");
    let fence = won(&here.store, claim_request(&id)).await;
    let (_, before) = here.store.look_up(&id).await.expect("the store answers");
    // As the store's own task does every few seconds.
    let mark = "UPDATE semel.clock SET high_water_ms = $1";
    here.client.execute(mark, &[&before.millis()]).await.expect("the mark is kept");
    here.set_wall_off(-MONTH_MILLIS).await;
    let settle = "SELECT semel.settle($1, 201, '{}', 'x')";
    here.client.query(settle, &[&fence.to_string()]).await.expect("the handler settles");
    let found = crate::fixture::entry(&here.store, &id).await;
    assert!(found.settled_at.is_some_and(|at| at >= before), "{found:?}");
    assert_eq!(standing(&here.store, &id).await, Standing::Settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_back_while_nobody_was_here_goes_on_from_the_mark() {
    let here = postgres().await;
    let (_, before) = here.store.look_up(&id("any")).await.expect("the store answers");
    let mark = "UPDATE semel.clock SET high_water_ms = $1";
    here.client.execute(mark, &[&before.millis()]).await.expect("the mark is kept");
    here.set_wall_off(-MONTH_MILLIS).await;
    let fresh = here.database.store(2).await;
    let (_, after) = fresh.look_up(&id("any")).await.expect("the store answers");
    assert!((0..60_000).contains(&after.millis_since(before)));
    tokio::time::sleep(Duration::from_millis(30)).await;
    let (_, later) = fresh.look_up(&id("any")).await.expect("the store answers");
    assert!(later.millis_since(after) >= 20, "and it does not stand still");
}

/// Steps of the server's clock, in milliseconds: two below a minute, many small ones, and there and back.
const STEPS: [&[i64]; 4] =
    [&[55_000, 55_000], &[200; 200], &[-40_000, 59_000, 59_000], &[55_000, 172_800_000]];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_servers_clock_of_any_size_and_number_let_no_claim_lapse_early() {
    for steps in STEPS {
        let here = postgres().await;
        let id = id("held");
        let started = std::time::Instant::now();
        won(&here.store, claim_request(&id)).await;
        for step in steps {
            here.set_wall_off(*step).await;
            here.store.ready().await.expect("the store answers");
        }
        // A process that starts in the middle of it comes to the same opinion.
        let fresh = here.database.store(2).await;
        for store in [&here.store, &fresh] {
            let swept = store.sweep(100, Duration::ZERO).await.expect("the store answers");
            let found = standing(store, &id).await;
            assert!(
                started.elapsed() < crate::fixture::LEASE * 9 / 10,
                "the machine is too slow for this test"
            );
            assert_eq!((swept.unknown, found), (0, Standing::Claimed), "{steps:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_ahead_while_no_gate_ran_is_frozen_at_the_next_start() {
    let Postgres { store, client, database } = postgres().await;
    let id = id("done");
    let fence = won(&store, claim_request(&id)).await;
    assert_eq!(store.settle(&id, fence, settled("x"), &lifetime()).await, Ok(FencedWrite::Done));
    let take_over = ClaimRequest { how: Claim::TakeOver, replaces: Some(fence), ..claim_request(&id) };
    drop(store);
    let set = "UPDATE semel.clock SET offset_ms = offset_ms + $1";
    client.execute(set, &[&MONTH_MILLIS]).await.expect("the clock is set");
    let store = database.store(2).await;
    assert_eq!(standing(&store, &id).await, Standing::Settled);
    assert!(
        matches!(store.claim(take_over.clone()).await, Ok(ClaimOutcome::Known { .. })),
        "it must not run again"
    );
    assert_eq!(store.sweep(100, Duration::ZERO).await.expect("the store answers").removed, 0);
    assert!(store.frozen().await.expect("the store answers").is_some());
    store.confirm_clock().await.expect("an operator confirms");
    assert_eq!(standing(&store, &id).await, Standing::Expired);
    assert!(matches!(store.claim(take_over).await, Ok(ClaimOutcome::Won { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_another_machine_does_not_believe_a_gap_that_nothing_explains() {
    let here = postgres().await;
    let (id, take_over) = done(&here).await;
    let Postgres { store, client, database } = here;
    drop(store);
    // Another machine has no mark of its own, and the server shows another time than any clock here.
    client.execute("DELETE FROM semel.clock_mark", &[]).await.expect("the mark is gone");
    let set = "UPDATE semel.clock SET offset_ms = offset_ms + $1";
    client.execute(set, &[&MONTH_MILLIS]).await.expect("the clock is set");
    let store = database.store(2).await;
    assert_eq!(standing(&store, &id).await, Standing::Settled);
    assert!(matches!(store.claim(take_over).await, Ok(ClaimOutcome::Known { .. })), "it must not run again");
    assert!(store.frozen().await.expect("the store answers").is_some());
    let row =
        client.query_one("SELECT is_unexplained FROM semel.clock", &[]).await.expect("the row is there");
    assert!(row.get::<_, bool>(0), "a time service may still vouch for it");
}

/// A server without a clock of its own starts long ago, and a time service sets it only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_only_after_the_start_may_still_be_vouched_for() {
    let here = postgres().await;
    let (id, _) = done(&here).await;
    let Postgres { store, client, database } = here;
    drop(store);
    client.execute("DELETE FROM semel.clock_mark", &[]).await.expect("another run of the machine");
    let set = "UPDATE semel.clock SET offset_ms = offset_ms + $1";
    client.execute(set, &[&-MONTH_MILLIS]).await.expect("the clock starts long ago");
    let store = database.store(2).await;
    store.ready().await.expect("the store answers");
    client.execute(set, &[&(2 * MONTH_MILLIS)]).await.expect("the clock is set");
    store.ready().await.expect("the store answers");
    assert_eq!(standing(&store, &id).await, Standing::Settled);
    assert!(store.frozen().await.expect("the store answers").is_some(), "nobody vouches for it yet");
    let row =
        client.query_one("SELECT is_unexplained FROM semel.clock", &[]).await.expect("the row is there");
    assert!(row.get::<_, bool>(0), "a time service may vouch for it");
}
