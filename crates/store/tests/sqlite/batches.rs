//! Batches: writes that come together share a commit, members see those before them, and everything is bounded.

use semel_store::Filter;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_come_together_share_commits() {
    const TASKS: u64 = 64;
    const REQUESTS: u64 = 10_000;
    let sqlite = Sqlite::new();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = Arc::clone(&sqlite.store);
            tokio::spawn(async move {
                for at in (task..REQUESTS).step_by(TASKS as usize) {
                    let id = id(&format!("key-{at}"));
                    let fence = won(&store, &id, Guarantee::Fenced).await;
                    assert_eq!(settle(&store, &id, fence, settled("x")).await, FencedWrite::Done);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    let (writes, commits) = (2 * REQUESTS, sqlite.store.commits());
    assert!(commits * 4 < writes, "{commits} commits for {writes} writes");
    let sqlite = sqlite.reopened();
    for at in (0..REQUESTS).step_by(97) {
        assert_eq!(standing(&sqlite.store, &id(&format!("key-{at}"))).await, Standing::Settled);
    }
}

#[tokio::test]
async fn members_of_one_batch_see_those_before_them() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let (first, second) = (id("first"), id("second"));
    let rotated =
        |id: &Id, guarantee| ClaimRequest { rotation: Some([7; 16]), ..claim_request(id, guarantee) };
    for guarantee in [Guarantee::Fenced, Guarantee::Atomic] {
        let busy = Busy::begin(store, &format!("busy-{}", guarantee.name())).await;
        let winner = store.claim(rotated(&first, guarantee));
        let loser = store.claim(rotated(&first, guarantee));
        let other_credential = store.claim(rotated(&second, guarantee));
        busy.end().await;
        let Ok(ClaimOutcome::Won { fence, .. }) = winner.await else { panic!("the first wins") };
        match loser.await {
            Ok(ClaimOutcome::Known { entry, .. }) => assert_eq!(entry.record.fence, fence),
            other => panic!("expected the winner's claim, found {other:?}"),
        }
        assert!(matches!(other_credential.await, Ok(ClaimOutcome::CredentialChanged)));

        let busy = Busy::begin(store, &format!("busier-{}", guarantee.name())).await;
        let release = store.settle(&first, fence, Settlement::Release, &LIFETIME);
        let freed = store.claim(rotated(&second, guarantee));
        busy.end().await;
        assert_eq!(release.await, Ok(FencedWrite::Done));
        let Ok(ClaimOutcome::Won { fence, .. }) = freed.await else { panic!("the key is free") };
        assert_eq!(settle(store, &second, fence, Settlement::Release).await, FencedWrite::Done);
    }
}

static LIFETIME: std::sync::LazyLock<Lifetime> = std::sync::LazyLock::new(lifetime);

#[tokio::test]
async fn an_expired_record_gives_its_rotation_up() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let (old, new) = (id("old"), id("new"));
    let rotated = |id: &Id| ClaimRequest { rotation: Some([7; 16]), ..claim_request(id, Guarantee::Fenced) };
    for (id, body) in [(&old, "old"), (&new, "new")] {
        let Ok(ClaimOutcome::Won { fence, .. }) = store.claim(rotated(id)).await else {
            panic!("it is free")
        };
        assert_eq!(settle(store, id, fence, settled(body)).await, FencedWrite::Done);
        if id == &old {
            sqlite.clock.advance(lifetime().record() + Duration::from_secs(1));
        }
    }
    assert_eq!(standing(store, &new).await, Standing::Settled);
}

#[tokio::test]
async fn a_reservation_that_fails_leaves_what_was_there() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let id = id("order");
    let fence = won(store, &id, Guarantee::Fenced).await;
    assert_eq!(settle(store, &id, fence, Settlement::Unknown).await, FencedWrite::Done);
    let rerun =
        ClaimRequest { how: Claim::Rerun, replaces: Some(fence), ..claim_request(&id, Guarantee::Atomic) };
    let Ok(ClaimOutcome::Won { fence: second, .. }) = store.claim(rerun).await else { panic!("it wins") };
    let listed = store.list(&Filter { limit: 10, ..Filter::default() }).await.expect("the store answers");
    let fences: Vec<Fence> = listed.iter().map(|entry| entry.record.fence).collect();
    assert_eq!(fences, [second], "one key is listed once, as it is now");
    let sqlite = sqlite.reopened();
    assert_eq!(standing(&sqlite.store, &id).await, Standing::Unknown, "the first attempt is still unknown");
}

#[tokio::test]
async fn too_many_waiting_writes_are_refused() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let busy = Busy::begin(store, "busy").await;
    let claims: Vec<_> = (0..9000)
        .map(|at| store.claim(claim_request(&id(&format!("key-{at}")), Guarantee::Fenced)))
        .collect();
    busy.end().await;
    let (mut won, mut refused) = (0, 0);
    for claim in claims {
        match claim.await {
            Ok(ClaimOutcome::Won { .. }) => won += 1,
            Err(StoreError::Unavailable(why)) => {
                assert_eq!(why, "too many writes wait");
                refused += 1;
            }
            other => panic!("neither won nor refused: {other:?}"),
        }
    }
    assert_eq!((won, refused), (8192, 808));
}

#[tokio::test]
async fn the_log_stays_within_its_bound() {
    const LOG_BYTES_MAX: u64 = 52 << 20;
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let mut log = sqlite.path().into_os_string();
    log.push("-wal");
    let body = "x".repeat(1 << 20);
    let mut longest = 0;
    for at in 0..80 {
        let id = id(&format!("key-{at}"));
        let fence = won(store, &id, Guarantee::Fenced).await;
        assert_eq!(settle(store, &id, fence, settled(&body)).await, FencedWrite::Done);
        // A look-up stays in its transaction until something is committed, and must not hold the log back by that.
        assert_eq!(standing(store, &id).await, Standing::Settled);
        longest = longest.max(std::fs::metadata(&log).expect("the log").len());
    }
    assert!(longest < LOG_BYTES_MAX, "the log grew to {longest} bytes");
    drop(sqlite.reopened());
}

#[tokio::test]
async fn a_lease_that_was_renewed_during_a_batch_does_not_lapse() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let id = id("order");
    let fence = won(store, &id, Guarantee::Fenced).await;
    let busy = Busy::begin(store, "busy").await;
    let sweep = tokio::spawn({
        let store = Arc::clone(store);
        async move { store.sweep(100, Duration::ZERO).await }
    });
    tokio::task::yield_now().await;
    sqlite.clock.advance(LEASE - Duration::from_secs(1));
    assert_eq!(store.renew(&[(id.clone(), fence)], LEASE).await, Ok(vec![FencedWrite::Done]));
    sqlite.clock.advance(Duration::from_secs(2));
    busy.end().await;
    assert_eq!(sweep.await.expect("no panic").expect("the store answers").unknown, 0);
    assert_eq!(standing(store, &id).await, Standing::Claimed);
}

#[tokio::test]
async fn a_sweep_removes_nothing_while_the_clock_is_frozen() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    let id = id("order");
    let fence = won(store, &id, Guarantee::Fenced).await;
    assert_eq!(settle(store, &id, fence, settled("x")).await, FencedWrite::Done);
    sqlite.clock.advance(lifetime().record() + Duration::from_secs(1));
    sqlite.clock.set_wall_off(86_400_000);
    let removed = async || store.sweep(100, Duration::ZERO).await.expect("the store answers").removed;
    assert_eq!(removed().await, 0, "it is expired, but the clock has jumped");
    assert!(store.clock_frozen().is_some());
    store.confirm_clock();
    assert_eq!(removed().await, 1);
}

#[tokio::test]
async fn a_member_that_fails_takes_its_own_writes_back_and_no_others() {
    let sqlite = Sqlite::new();
    let path = sqlite.path();
    let Sqlite { clock, store, directory } = sqlite;
    drop(store);
    let raw = semel_store::sqlite::rusqlite::Connection::open(&path).expect("a database");
    raw.execute_batch(
        "CREATE TRIGGER fails BEFORE INSERT ON semel_record WHEN NEW.key = 'bad'
         BEGIN SELECT RAISE(ABORT, 'it fails'); END",
    )
    .expect("a trigger");
    drop(raw);
    let store =
        Arc::new(SqliteStore::open_with_clock(&path, Arc::clone(&clock) as _).expect("the file again"));
    let sqlite = Sqlite { clock, store, directory };
    let store = &sqlite.store;
    let (good, bad) = (id("good"), id("bad"));
    let good_fence = won(store, &good, Guarantee::Fenced).await;
    let bad_fence = won(store, &bad, Guarantee::Fenced).await;
    let busy = Busy::begin(store, "busy").await;
    let commits = store.commits();
    let failed = store.settle(&bad, bad_fence, settled("bad"), &LIFETIME);
    let done = store.settle(&good, good_fence, settled("good"), &LIFETIME);
    busy.end().await;
    assert!(matches!(failed.await, Err(StoreError::Unavailable(_))));
    assert_eq!(done.await, Ok(FencedWrite::Done));
    assert_eq!(store.commits() - commits, 1, "they were one batch");
    let sqlite = sqlite.reopened();
    assert_eq!(standing(&sqlite.store, &bad).await, Standing::Unknown, "its claim is still written");
    assert_eq!(standing(&sqlite.store, &good).await, Standing::Settled);
}
