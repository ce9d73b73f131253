//! Handlers that settle in their own transaction, by SQL from any language.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_contract::decide::Claim;
use semel_contract::record::{Fence, State};
use semel_store::postgres::{Fate, PostgresStore};
use semel_store::{
    AdminStore, ClaimOutcome, ClaimRequest, ClaimStore, FencedWrite, Id, Settlement, StoreError,
};
use tokio_postgres::{Client, IsolationLevel};

use crate::fixture::{
    AT_ONCE, LEASE, Postgres, answer, atomic, claim_request, entry, id, lifetime, patient_postgres, postgres,
    settled, won,
};
use crate::once_fixture::Call;

const SETTLE: &str = "SELECT semel.settle($1, $2, $3::text::jsonb, $4)";

async fn settle_by_sql(
    client: &impl tokio_postgres::GenericClient,
    fence: Fence,
    headers: &str,
    body: &[u8],
) -> Result<(), tokio_postgres::Error> {
    client.query(SETTLE, &[&fence.to_string(), &201_i32, &headers, &body]).await.map(drop)
}

fn code(error: &tokio_postgres::Error) -> String {
    error.code().map(|code| code.code().to_owned()).unwrap_or_default()
}

async fn claimed(here: &Postgres, name: &str) -> (Id, Fence) {
    let id = id(name);
    let fence = won(&here.store, atomic(&id)).await;
    (id, fence)
}

async fn with_effects(here: &Postgres) -> Client {
    let client = here.database.client().await;
    client
        .batch_execute("CREATE TABLE public.effect (what text)")
        .await
        .expect("the service has its own table");
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_commits_effect_and_record_together_or_neither() {
    let here = postgres().await;
    let mut handler = with_effects(&here).await;
    let (id, fence) = claimed(&here, "sql").await;
    for commits in [false, true] {
        let tx = handler.transaction().await.expect("a transaction");
        tx.execute("INSERT INTO public.effect VALUES ('paid')", &[]).await.expect("the effect");
        settle_by_sql(&tx, fence, r#"{"Content-Type": "text/plain"}"#, b"made").await.expect("the record");
        if commits {
            tx.commit().await.expect("both");
        } else {
            tx.rollback().await.expect("neither");
            assert_eq!(entry(&here.store, &id).await.record.state, State::Claimed);
        }
        assert_eq!(here.number("SELECT count(*) FROM public.effect").await, i64::from(commits));
    }
    let found = entry(&here.store, &id).await;
    assert_eq!((found.record.state, found.answer), (State::Settled, Some(answer("made"))));
    let settled_at = found.settled_at.expect("it is settled");
    assert_eq!(found.record.expires_at, Some(settled_at.plus(Duration::from_secs(25 * 3600 + 600))));
    settle_by_sql(&handler, fence, r#"{"content-type": "text/plain"}"#, b"made")
        .await
        .expect("again the same");
    let error = settle_by_sql(&handler, fence, "{}", b"other").await.expect_err("another answer");
    assert_eq!(code(&error), "SM001");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_fence_raises_and_says_what_to_do() {
    let here = postgres().await;
    let (id, stale) = claimed(&here, "stale").await;
    here.pass(LEASE + Duration::from_secs(1)).await;
    let second = ClaimRequest { how: Claim::Supersede, replaces: Some(stale), ..atomic(&id) };
    let second = won(&here.store, second).await;
    let other_nonce = Fence { nonce: second.nonce ^ 1, ..second };
    for fence in [stale, other_nonce] {
        let error = settle_by_sql(&here.client, fence, "{}", b"late").await.expect_err("a stale fence");
        let error = error.as_db_error().expect("the server raises");
        assert_eq!(error.code().code(), "SM001");
        assert!(error.hint().is_some_and(|hint| hint.starts_with("Roll back")), "{error:?}");
    }
    assert_eq!(entry(&here.store, &id).await.record.state, State::Claimed);
    for rubbish in ["", "1", "1-00", "-1-0000000000000000", "x-0000000000000000", "1-000000000000000G"] {
        let error = here.client.query(SETTLE, &[&rubbish, &201, &"{}", &b"".as_slice()]).await;
        assert_eq!(code(&error.expect_err("not a fence")), "22023", "{rubbish}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_may_be_kept_is_kept() {
    let here = postgres().await;
    let (id, fence) = claimed(&here, "headers").await;
    let headers = r#"[["X-Tag", "a"], ["Set-Cookie", "s=1"], ["DATE", "now"], ["x-tag", "é"], ["Authorization", "B"],
        ["WWW-Authenticate", "B"], ["Proxy-Anything", "x"], ["Connection", "close"], ["Keep-Alive", "1"],
        ["TE", "x"], ["Trailer", "x"], ["Transfer-Encoding", "chunked"], ["Upgrade", "x"], ["traceparent", "x"],
        ["TraceState", "x"], ["ETag", "\"1\""]]"#;
    settle_by_sql(&here.client, fence, headers, b"").await.expect("it settles");
    let kept = entry(&here.store, &id).await.answer.expect("an answer").headers;
    let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    assert_eq!(kept, [header("x-tag", "a"), header("x-tag", "é"), header("etag", "\"1\"")].into());

    let (id, fence) = claimed(&here, "lists").await;
    settle_by_sql(&here.client, fence, r#"{"b": ["2", "1"], "a": "3"}"#, b"").await.expect("it settles");
    let kept = entry(&here.store, &id).await.answer.expect("an answer").headers;
    assert_eq!(kept, [header("a", "3"), header("b", "2"), header("b", "1")].into());

    let (_, fence) = claimed(&here, "refused").await;
    for bad in [r#"{"a b": "x"}"#, r#"{"a": "x\r\ny: z"}"#, r#"{"a": 1}"#, r#"[["a"]]"#, r#""a""#, "[{}]"] {
        let error = settle_by_sql(&here.client, fence, bad, b"").await.expect_err("not headers");
        assert_eq!(code(&error), "22023", "{bad}");
    }
    let large = vec![b'x'; (1 << 20) + 1];
    let error = settle_by_sql(&here.client, fence, "{}", &large).await.expect_err("too large");
    assert_eq!(code(&error), "SM002");
    settle_by_sql(&here.client, fence, "{}", &large[1..]).await.expect("just not too large");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settling_transaction_commits_synchronously_whatever_the_session_prefers() {
    let here = postgres().await;
    let mut handler = here.database.client().await;
    handler.batch_execute("SET synchronous_commit = off").await.expect("a session may prefer this");
    let show = "SELECT current_setting('synchronous_commit')";
    let (_, fence) = claimed(&here, "durable").await;
    let tx = handler.transaction().await.expect("a transaction");
    settle_by_sql(&tx, fence, "{}", b"x").await.expect("it settles");
    assert_eq!(tx.query_one(show, &[]).await.expect("a row").get::<_, &str>(0), "on");
    tx.commit().await.expect("it commits");
    assert_eq!(handler.query_one(show, &[]).await.expect("a row").get::<_, &str>(0), "off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_never_breaks_a_repeatable_read_settlement() {
    let here = patient_postgres().await;
    let mut handler = here.database.client().await;
    for by_sql in [true, false] {
        let (id, fence) = claimed(&here, "repeatable").await;
        let tx = handler.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await;
        let tx = tx.expect("a transaction");
        tx.query("SELECT count(*) FROM pg_class", &[]).await.expect("the snapshot is taken here");
        let held = [(id.clone(), fence)];
        assert_eq!(
            here.store.renew(&held, LEASE).await,
            Ok(vec![FencedWrite::Done]),
            "before the settlement"
        );
        if by_sql {
            settle_by_sql(&tx, fence, "{}", b"x").await.expect("a renewal does not stand in the way");
        } else {
            let call = Call::of(id.clone()).with(&format!(r#"{{"fence": "{fence}", "owned": true}}"#));
            assert_eq!(call.enter(&tx).await.expect("it enters"), "execute");
            call.leave(&tx, 201, b"x").await.expect("a renewal does not stand in the way");
        }
        let started = Instant::now();
        assert_eq!(here.store.renew(&held, LEASE).await, Ok(vec![FencedWrite::Done]), "and during it");
        assert!(started.elapsed() < AT_ONCE, "a settlement does not hold renewals up");
        tx.commit().await.expect("it commits");
        assert_eq!(
            here.store.renew(&held, LEASE).await,
            Ok(vec![FencedWrite::Superseded]),
            "but not after it"
        );
        assert_eq!(entry(&here.store, &id).await.record.state, State::Settled);
    }
    here.pass(LEASE * 2).await;
    here.store.sweep(100, Duration::ZERO).await.expect("the store answers");
    assert_eq!(here.number("SELECT count(*) FROM semel.opened").await, 0, "nothing can lapse any more");
    assert_eq!(here.number("SELECT count(*) FROM semel.lease").await, 2, "renewals may still be under way");
    here.pass(Duration::from_mins(2)).await;
    here.store.sweep(100, Duration::ZERO).await.expect("the store answers");
    assert_eq!(here.number("SELECT count(*) FROM semel.lease").await, 0, "left leases are swept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handlers_role_can_settle_and_nothing_else() {
    let here = postgres().await;
    let (id, fence) = claimed(&here, "role").await;
    let handler = here.database.client().await;
    handler.batch_execute("SET ROLE semel_handler").await.expect("the migrations made the role");
    for forbidden in [
        "SELECT * FROM semel.record",
        "INSERT INTO semel.lease VALUES (1, 1)",
        "DELETE FROM semel.opened",
        "UPDATE semel.record SET state = 2",
        "DELETE FROM semel.record",
        "TRUNCATE semel.record",
        "SELECT * FROM semel.audit",
        "SELECT * FROM semel.clock",
        "SELECT nextval('semel.fence')",
        "SELECT semel.shift_clock(1)",
        "SELECT semel.confirm_clock()",
        "SELECT semel.now_ms()",
        "SELECT semel.grant_rights()",
        "SELECT semel.state('1-0000000000000000')",
        "CREATE TABLE semel.mine ()",
        "DROP SCHEMA semel CASCADE",
    ] {
        let error = handler.batch_execute(forbidden).await.expect_err(forbidden);
        assert_eq!(code(&error), "42501", "{forbidden}: {error}");
    }
    settle_by_sql(&handler, fence, "{}", b"x").await.expect("it may settle by its fence");
    assert_eq!(entry(&here.store, &id).await.record.state, State::Settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_role_is_enough_and_cannot_change_the_audit_trail() {
    let here = postgres().await;
    let client = here.database.client().await;
    let sql = "CREATE ROLE semel_test_login LOGIN; GRANT semel_service TO semel_test_login";
    // Roles belong to the whole server: another run may have made it.
    let _ = client.batch_execute(sql).await;
    let url = here.database.url_as("semel_test_login");
    let store = PostgresStore::connect(&url, Default::default()).await.expect("it opens without owning it");
    let id = id("service");
    let fence = won(&store, claim_request(&id)).await;
    store.renew(&[(id.clone(), fence)], LEASE).await.expect("it renews");
    store.settle(&id, fence, settled("x"), &lifetime()).await.expect("it settles");
    store.sweep(10, Duration::ZERO).await.expect("it sweeps");
    store.seal(&crate::fixture::id("service"), &Default::default(), &lifetime()).await.expect("it seals");
    store.forget(None, "alice", "carol").await.expect("it forgets");
    store.count_stale(None, "alice").await.expect("it counts");
    store.log_sweep(Default::default(), Duration::ZERO).await.expect("it logs");
    let undated = semel_contract::restore::Undated::Unknown;
    let restored = store.restored(store.last_seen(), undated, "carol", "a test").await;
    restored.expect("it keeps restores");
    let found = store.find(&semel_store::admin::Sought::Key("none".to_owned()), 1).await;
    assert_eq!(found.expect("it finds").len(), 0);
    store.confirm_jump("carol", "a test").await.expect("it confirms the clock");
    store
        .trail(&semel_store::admin::Trail { limit: 1, ..Default::default() })
        .await
        .expect("it reads the trail");
    let client = crate::fixture::client(&url).await;
    for forbidden in ["UPDATE semel.audit SET actor = 'x'", "DELETE FROM semel.audit", "TRUNCATE semel.audit"]
    {
        let error = client.batch_execute(forbidden).await.expect_err(forbidden);
        assert_eq!(code(&error), "42501", "{forbidden}");
        let error = here.client.batch_execute(forbidden).await.expect_err("not even the owner");
        assert!(error.as_db_error().is_some_and(|error| error.message().contains("append-only")), "{error}");
    }
}

/// Runs a supersede against a handler that has settled but not yet ended its transaction.
async fn supersede_against(here: &Postgres, commits: bool) -> (Fence, Result<ClaimOutcome, StoreError>) {
    let mut handler = here.database.client().await;
    let (id, first) = claimed(here, "superseded").await;
    let tx = handler.transaction().await.expect("a transaction");
    settle_by_sql(&tx, first, "{}", b"in time").await.expect("the handler settles");
    here.pass(LEASE + Duration::from_secs(1)).await;
    let superseding = tokio::spawn({
        let store = Arc::clone(&here.store);
        let request = ClaimRequest { how: Claim::Supersede, replaces: Some(first), ..atomic(&id) };
        async move { store.claim(request).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!superseding.is_finished(), "it waits for the handler");
    if commits {
        tx.commit().await.expect("the handler commits");
    } else {
        tx.rollback().await.expect("the handler rolls back");
    }
    (first, superseding.await.expect("no panic"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supersede_loses_against_a_handler_that_commits() {
    let here = patient_postgres().await;
    match supersede_against(&here, true).await {
        (first, Ok(ClaimOutcome::Known { entry, .. })) => {
            assert_eq!((entry.record.state, entry.record.fence), (State::Settled, first));
        }
        (_, other) => panic!("expected the settled record, found {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supersede_wins_against_a_handler_that_rolls_back() {
    let here = patient_postgres().await;
    match supersede_against(&here, false).await {
        (first, Ok(ClaimOutcome::Won { fence, .. })) => assert!(fence.number > first.number),
        (_, other) => panic!("expected to win, found {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_settles_after_being_superseded_raises() {
    let here = postgres().await;
    let mut handler = with_effects(&here).await;
    let (id, first) = claimed(&here, "overtaken").await;
    let tx = handler.transaction().await.expect("a transaction");
    tx.execute("INSERT INTO public.effect VALUES ('paid')", &[]).await.expect("the effect");
    here.pass(LEASE + Duration::from_secs(1)).await;
    won(&here.store, ClaimRequest { how: Claim::Supersede, replaces: Some(first), ..atomic(&id) }).await;
    let error = settle_by_sql(&tx, first, "{}", b"late").await.expect_err("it was superseded");
    assert_eq!(code(&error), "SM001");
    // Even a handler that does not look at the error commits nothing: its transaction is aborted.
    let _ = tx.commit().await;
    assert_eq!(here.number("SELECT count(*) FROM public.effect").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_leaves_a_settling_handler_alone() {
    let here = patient_postgres().await;
    let mut handler = here.database.client().await;
    let (id, fence) = claimed(&here, "swept").await;
    let tx = handler.transaction().await.expect("a transaction");
    settle_by_sql(&tx, fence, "{}", b"x").await.expect("the handler settles");
    here.pass(LEASE + Duration::from_secs(1)).await;
    let started = Instant::now();
    let swept = here.store.sweep(100, Duration::ZERO).await.expect("the store answers");
    assert_eq!((swept.released, swept.unknown), (0, 0));
    assert!(started.elapsed() < AT_ONCE, "and does not wait for it");
    tx.commit().await.expect("it commits");
    assert_eq!(entry(&here.store, &id).await.record.state, State::Settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_waits_for_a_settling_handler() {
    let here = patient_postgres().await;
    let mut handler = here.database.client().await;
    let (slow, fence) = claimed(&here, "slow").await;
    let tx = handler.transaction().await.expect("a transaction");
    settle_by_sql(&tx, fence, "{}", b"x").await.expect("the handler settles");
    let started = Instant::now();
    match here.store.claim(claim_request(&slow)).await {
        Ok(ClaimOutcome::Known { entry, .. }) => assert_eq!(entry.record.state, State::Claimed),
        other => panic!("expected the claim, found {other:?}"),
    }
    // The gate gives up on the slow handler; others settle at the same time, in the same batches.
    let giving_up = tokio::spawn({
        let (store, slow) = (Arc::clone(&here.store), slow.clone());
        async move { store.settle(&slow, fence, Settlement::Unknown, &lifetime()).await }
    });
    let others: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::clone(&here.store);
            tokio::spawn(async move {
                let id = id("quick");
                let fence = won(&store, claim_request(&id)).await;
                store.settle(&id, fence, settled("x"), &lifetime()).await
            })
        })
        .collect();
    for other in others {
        assert_eq!(other.await.expect("no panic"), Ok(FencedWrite::Done));
    }
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    assert!(!giving_up.is_finished());
    tx.commit().await.expect("it commits");
    assert_eq!(giving_up.await.expect("no panic"), Ok(FencedWrite::Superseded));
    assert_eq!(entry(&here.store, &slow).await.record.state, State::Settled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fate_of_a_lost_commit_is_told_once_the_session_has_ended() {
    let here = patient_postgres().await;
    let mut handler = here.database.client().await;
    for commits in [true, false] {
        let (id, fence) = claimed(&here, "orphan").await;
        let call = Call::of(id.clone()).with(&format!(r#"{{"fence": "{fence}", "owned": true}}"#));
        let tx = handler.transaction().await.expect("a transaction");
        assert_eq!(call.enter(&tx).await.expect("it enters"), "execute");
        call.leave(&tx, 201, b"x").await.expect("the handler settles");
        let asked = tokio::spawn({
            let (store, id) = (Arc::clone(&here.store), id.clone());
            async move { store.fate(&id, fence).await }
        });
        let told = tokio::spawn({
            let client = here.database.client().await;
            async move {
                let row = client.query_one("SELECT semel.state($1)", &[&fence.to_string()]).await;
                row.expect("the function answers").get::<_, String>(0)
            }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!asked.is_finished() && !told.is_finished(), "a snapshot would not know yet");
        let (fate, state) = if commits {
            tx.commit().await.expect("it commits");
            (Fate::Committed, "settled")
        } else {
            tx.rollback().await.expect("it rolls back");
            (Fate::NotCommitted, "claimed")
        };
        assert_eq!(asked.await.expect("no panic"), Ok(fate));
        assert_eq!(told.await.expect("no panic"), state);
    }
}
