//! Handlers' closures: their writes and the record are there together or not at all, and no closure harms another.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use semel_store::sqlite::rusqlite::ErrorCode;
use semel_store::sqlite::{WORK_TIME_MAX, Work, WorkError};

use super::*;

const ORDERS: &[&str] = &["CREATE TABLE orders (number INTEGER PRIMARY KEY)"];

fn insert(work: &Work<'_>, number: i64) -> Result<(), WorkError> {
    work.execute("INSERT INTO orders VALUES (?1)", [number]).map(drop)
}

async fn orders(store: &SqliteStore) -> i64 {
    number(store, "SELECT count(*) FROM orders").await
}

#[tokio::test]
async fn effect_and_record_are_one_commit() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    let (id, before) = (id("order"), sqlite.store.commits());
    let fence = won(&sqlite.store, &id, Guarantee::Atomic).await;
    let outcome = sqlite.store.transact(&id, fence, &lifetime(), |work| {
        insert(work, 7)?;
        Ok((work.last_insert_rowid(), settled("ordered")))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Done(7))));
    assert_eq!(sqlite.store.commits() - before, 1, "the claim of an atomic route is not a commit");
    let sqlite = sqlite.reopened();
    assert_eq!(orders(&sqlite.store).await, 1);
    assert_eq!(standing(&sqlite.store, &id).await, Standing::Settled);
}

#[tokio::test]
async fn a_failed_closure_leaves_nothing_and_keeps_its_claim() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    let id = id("order");
    let fence = won(&sqlite.store, &id, Guarantee::Atomic).await;
    let transact = |how: u8| {
        sqlite.store.transact(&id, fence, &lifetime(), move |work| {
            insert(work, 1)?;
            match how {
                0 => return Err(WorkError::Handler("no stock".to_owned())),
                1 => panic!("a bug"),
                _ => insert(work, 1)?,
            }
            Ok(((), settled("ordered")))
        })
    };
    assert!(matches!(transact(0).await, Ok(TransactOutcome::Failed(WorkError::Handler(_)))));
    match transact(1).await {
        Ok(TransactOutcome::Failed(WorkError::Panicked(message))) => assert_eq!(message, "a bug"),
        other => panic!("expected a panic, found {other:?}"),
    }
    assert!(matches!(transact(2).await, Ok(TransactOutcome::Failed(WorkError::Sqlite(_)))));
    assert_eq!(orders(&sqlite.store).await, 0);
    assert_eq!(standing(&sqlite.store, &id).await, Standing::Claimed);
}

#[tokio::test]
async fn a_stale_fence_takes_the_closures_writes_back() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    let id = id("order");
    let stale = won(&sqlite.store, &id, Guarantee::Atomic).await;
    sqlite.clock.advance(LEASE + Duration::from_secs(1));
    let supersede = ClaimRequest {
        how: Claim::Supersede,
        replaces: Some(stale),
        ..claim_request(&id, Guarantee::Atomic)
    };
    let Ok(ClaimOutcome::Won { fence, .. }) = sqlite.store.claim(supersede).await else {
        panic!("an abandoned claim is superseded");
    };
    let transact = |fence| {
        sqlite.store.transact(&id, fence, &lifetime(), |work| {
            insert(work, 1)?;
            Ok(((), settled("ordered")))
        })
    };
    assert!(matches!(transact(stale).await, Ok(TransactOutcome::Superseded)));
    assert_eq!(orders(&sqlite.store).await, 0);
    assert!(matches!(transact(fence).await, Ok(TransactOutcome::Done(()))));
    assert_eq!(orders(&sqlite.store).await, 1);
}

#[tokio::test]
async fn a_closure_of_a_settled_claim_is_not_run_again() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, &["CREATE TABLE visits (x)"]).await;
    for written in [true, false] {
        let id = id(&format!("visit-{written}"));
        let fence = won(&sqlite.store, &id, Guarantee::Atomic).await;
        let transact = || {
            sqlite.store.transact(&id, fence, &lifetime(), |work| {
                work.execute("INSERT INTO visits VALUES (1)", [])?;
                Ok(((), settled("welcome")))
            })
        };
        let before = number(&sqlite.store, "SELECT count(*) FROM visits").await;
        sqlite.store.faults().lose_next_commit(written);
        assert!(is_unknown(&transact().await));
        faults::recovered(&sqlite.store).await;
        match transact().await {
            Ok(TransactOutcome::AlreadyDone) => assert!(written),
            Ok(TransactOutcome::Done(())) => assert!(!written),
            other => panic!("neither done nor to be done: {other:?}"),
        }
        assert_eq!(number(&sqlite.store, "SELECT count(*) FROM visits").await, before + 1);
        assert_eq!(standing(&sqlite.store, &id).await, Standing::Settled);
    }
}

#[tokio::test]
async fn a_release_takes_the_closures_writes_back() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    let id = id("order");
    let fence = won(&sqlite.store, &id, Guarantee::Atomic).await;
    let outcome = sqlite.store.transact(&id, fence, &lifetime(), |work| {
        insert(work, 1)?;
        Ok(((), Settlement::Release))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Done(()))));
    assert_eq!(orders(&sqlite.store).await, 0);
    assert_eq!(standing(&sqlite.store, &id).await, Standing::Absent);
}

#[tokio::test]
async fn a_closure_controls_no_transaction_and_touches_no_record() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    let id = id("order");
    let fence = won(&sqlite.store, &id, Guarantee::Fenced).await;
    for sql in [
        "BEGIN",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT mine",
        "RELEASE semel_work",
        "ROLLBACK TO semel_member",
        "PRAGMA user_version = 7",
        "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "SELECT count(*) FROM semel_record",
        "SELECT count(*) FROM Semel_Claim",
        "DELETE FROM semel_claim",
        "DELETE FROM \"semel_record\" WHERE hash = x'00'",
        // The very text of a statement that the store keeps prepared.
        "DELETE FROM semel_claim WHERE hash = ?1",
        "UPDATE semel_meta SET value = 1",
        "INSERT INTO semel_audit (at, actor, action, reason) VALUES (1, '', '', '')",
        "DROP TABLE semel_record",
        "DROP INDEX semel_record_brief",
        "ALTER TABLE semel_record ADD COLUMN x",
        "CREATE TABLE semel_more (x)",
        "CREATE INDEX mine ON semel_record (key)",
        "CREATE TRIGGER mine AFTER INSERT ON semel_record BEGIN DELETE FROM orders; END",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON semel_record BEGIN DELETE FROM orders; END",
        "INSERT INTO orders SELECT fence FROM semel_record",
    ] {
        let outcome = sqlite.store.transact(&id, fence, &lifetime(), move |work| {
            work.execute(sql, []).or_else(|error| match error {
                // Queries do not go through `execute`.
                WorkError::Sqlite(semel_store::sqlite::rusqlite::Error::ExecuteReturnedResults) => Ok(0),
                error => Err(error),
            })?;
            Ok(((), settled("ordered")))
        });
        match outcome.await {
            Ok(TransactOutcome::Failed(WorkError::Sqlite(error))) => {
                assert_eq!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::AuthorizationForStatementDenied),
                    "{sql}: {error}"
                );
            }
            other => panic!("{sql}: expected a refusal, found {other:?}"),
        }
    }
    assert_eq!(standing(&sqlite.store, &id).await, Standing::Claimed);
}

#[tokio::test]
async fn a_trigger_does_not_carry_a_closure_to_the_records() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    run_sql(
        &sqlite.store,
        &["CREATE TRIGGER mine AFTER INSERT ON orders BEGIN DELETE FROM semel_record; END"],
    )
    .await;
    let id = id("order");
    let fence = won(&sqlite.store, &id, Guarantee::Atomic).await;
    let outcome = sqlite.store.transact(&id, fence, &lifetime(), |work| {
        insert(work, 1)?;
        Ok(((), settled("ordered")))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Failed(WorkError::Sqlite(_)))));
}

/// What a closure may do to its batch.
#[derive(Clone, Copy, Debug)]
enum Mischief {
    RollBackAndGoOn,
    Panic,
    Dangle,
}

#[tokio::test]
async fn a_closure_that_breaks_its_batch_harms_nobody_else() {
    for mischief in [Mischief::RollBackAndGoOn, Mischief::Panic, Mischief::Dangle] {
        let sqlite = Sqlite::new();
        let store = &sqlite.store;
        run_sql(store, ORDERS).await;
        run_sql(
            store,
            &[
                "CREATE TABLE items (of REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
                "INSERT INTO orders VALUES (1)",
            ],
        )
        .await;
        let (good, bad) = (id("good"), id("bad"));
        let good_fence = won(store, &good, Guarantee::Atomic).await;
        let bad_fence = won(store, &bad, Guarantee::Atomic).await;
        let busy = Busy::begin(store, "busy").await;
        let (one, two) = (id("before"), id("after"));
        let before = store.claim(claim_request(&one, Guarantee::Fenced));
        let first = store.transact(&good, good_fence, &lifetime(), |work| {
            insert(work, 2)?;
            Ok(((), settled("good")))
        });
        let second = store.transact(&bad, bad_fence, &lifetime(), move |work| {
            match mischief {
                Mischief::RollBackAndGoOn => {
                    // The conflict rolls the whole transaction back; what follows would commit alone.
                    let _ = work.execute("INSERT OR ROLLBACK INTO orders VALUES (1)", []);
                    let _ = insert(work, 3);
                }
                Mischief::Panic => {
                    insert(work, 3)?;
                    panic!("a bug");
                }
                Mischief::Dangle => work.execute("INSERT INTO items VALUES (99)", []).map(drop)?,
            }
            Ok(((), settled("bad")))
        });
        let after = store.claim(claim_request(&two, Guarantee::Fenced));
        let commits = store.commits();
        busy.end().await;
        assert!(matches!(before.await, Ok(ClaimOutcome::Won { .. })), "{mischief:?}");
        assert!(matches!(first.await, Ok(TransactOutcome::Done(()))), "{mischief:?}");
        let failed = second.await;
        match (mischief, &failed) {
            (Mischief::RollBackAndGoOn, Ok(TransactOutcome::Failed(WorkError::RolledBack)))
            | (Mischief::Panic, Ok(TransactOutcome::Failed(WorkError::Panicked(_))))
            | (Mischief::Dangle, Ok(TransactOutcome::Failed(WorkError::DanglingReferences))) => {}
            (mischief, other) => panic!("{mischief:?}: {other:?}"),
        }
        assert!(matches!(after.await, Ok(ClaimOutcome::Won { .. })), "{mischief:?}");
        assert_eq!(store.commits() - commits, 1, "{mischief:?}: the others share one commit");
        let sqlite = sqlite.reopened();
        assert_eq!(number(&sqlite.store, "SELECT sum(number) FROM orders").await, 3, "{mischief:?}");
        for (id, expected) in [
            (&one, Standing::Unknown),
            (&good, Standing::Settled),
            (&bad, Standing::Absent),
            (&two, Standing::Unknown),
        ] {
            assert_eq!(standing(&sqlite.store, id).await, expected, "{mischief:?}");
        }
    }
}

#[tokio::test]
async fn a_slow_closure_is_interrupted_once() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    run_sql(store, ORDERS).await;
    let (slow, other) = (id("slow"), id("other"));
    let fence = won(store, &slow, Guarantee::Atomic).await;
    let began = Instant::now();
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let busy = Busy::begin(store, "busy").await;
    let claim = store.claim(claim_request(&other, Guarantee::Fenced));
    let outcome = store.transact(&slow, fence, &lifetime(), |work| {
        RUNS.fetch_add(1, Ordering::SeqCst);
        work.execute(
            "INSERT INTO orders WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count) \
             SELECT n FROM count WHERE n < 0",
            [],
        )?;
        Ok(((), settled("slow")))
    });
    busy.end().await;
    assert!(matches!(outcome.await, Ok(TransactOutcome::Failed(WorkError::TooSlow))));
    assert!(matches!(claim.await, Ok(ClaimOutcome::Won { .. })), "its batch goes on without it");
    assert!(began.elapsed() >= WORK_TIME_MAX, "it had its time");
    assert_eq!(RUNS.load(Ordering::SeqCst), 1, "nobody waits for it twice");
    assert_eq!(standing(store, &slow).await, Standing::Claimed);
}

#[tokio::test]
async fn a_closure_that_sleeps_too_long_has_no_effect() {
    let sqlite = Sqlite::new();
    let store = &sqlite.store;
    run_sql(store, ORDERS).await;
    let id = id("slow");
    let fence = won(store, &id, Guarantee::Atomic).await;
    let outcome = store.transact(&id, fence, &lifetime(), |work| {
        insert(work, 1)?;
        std::thread::sleep(WORK_TIME_MAX);
        Ok(((), settled("slow")))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Failed(WorkError::TooSlow))));
    assert_eq!(orders(store).await, 0);
}

#[tokio::test]
async fn fences_grow_also_when_the_first_batch_after_a_restart_is_rolled_back() {
    let sqlite = Sqlite::new();
    run_sql(&sqlite.store, ORDERS).await;
    run_sql(&sqlite.store, &["INSERT INTO orders VALUES (1)"]).await;
    let open = id("open");
    let fence = won(&sqlite.store, &open, Guarantee::Fenced).await;
    let sqlite = sqlite.reopened();
    let outcome = sqlite.store.transact(&open, fence, &lifetime(), |work| {
        work.execute("INSERT OR ROLLBACK INTO orders VALUES (1)", [])?;
        Ok(((), settled("")))
    });
    assert!(matches!(outcome.await, Ok(TransactOutcome::Failed(_))));
    let last = won(&sqlite.store, &id("last"), Guarantee::Fenced).await;
    let sqlite = sqlite.reopened();
    let next = won(&sqlite.store, &id("next"), Guarantee::Fenced).await;
    assert!(next.number > last.number, "{next} after {last}");
}
