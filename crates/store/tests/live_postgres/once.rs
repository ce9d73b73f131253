//! Once in one transaction, in SQL alone: no misuse makes an effect without a record, whatever the isolation level, and
//! whoever holds a key delays nobody else.

use tokio_postgres::Client;

use crate::once_fixture::{Call, EFFECT, LEAVE, code, print, shop, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_record_are_committed_together_or_not_at_all() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("both");
    for ends in ["ROLLBACK", "COMMIT"] {
        call.begin(&session).await;
        session.batch_execute(EFFECT).await.unwrap();
        let left = call.leave(&session, 201, b"made").await.unwrap();
        assert_eq!(left.get::<_, &str>("verdict"), "settled");
        session.batch_execute(ends).await.unwrap();
        let expected = i64::from(ends == "COMMIT");
        assert_eq!((shop.effects().await, shop.records().await), (expected, expected), "{ends}");
    }
    assert_eq!(shop.here.number("SELECT count(*) FROM semel.entered").await, 0, "no marker stays");
    session.batch_execute("BEGIN").await.unwrap();
    let again = call.enter_row(&session).await.unwrap();
    assert_eq!(again.get::<_, &str>("verdict"), "replay");
    assert_eq!((again.get::<_, i32>("status"), again.get::<_, &[u8]>("body")), (201, b"made".as_slice()));
    assert_eq!(again.get::<_, &str>("guarantee"), "atomic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autocommit_is_refused() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("autocommit");
    assert_eq!(code(call.enter(&session).await), "SM004");
    assert_eq!(code(call.leave(&session, 201, b"").await), "SM003", "and nothing was entered");
    assert_eq!(shop.records().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_leave_fails() {
    let shop = shop().await;
    let session = shop.session().await;
    Call::new("unleft").begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), "SM004");
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leave_that_was_swallowed_is_no_leave() {
    let shop = shop().await;
    let session = shop.session().await;
    // Inside a savepoint; with a status that frees the key; of another key; with no status at all.
    for (name, status, expected) in
        [("savepoint", 201, "SM003"), ("freed", 503, "SM005"), ("none", 99, "22023")]
    {
        let call = Call::new(name);
        call.begin(&session).await;
        session.batch_execute(EFFECT).await.unwrap();
        session.batch_execute("SAVEPOINT s").await.unwrap();
        assert_eq!(code(call.leave(&session, status, b"").await), expected, "{name}");
        session.batch_execute("ROLLBACK TO s; RELEASE s").await.unwrap();
        assert_eq!(code(session.batch_execute("COMMIT").await), "SM004", "{name}");
    }
    let call = Call::new("in-a-block");
    call.begin(&session).await;
    let hash = call.id.hash().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let block = format!(
        "DO $$ BEGIN PERFORM semel.leave('\\x{hash}', 201, '', ''); EXCEPTION WHEN OTHERS THEN NULL; END $$"
    );
    session.batch_execute(&block).await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), "SM004", "an exception block is a savepoint");
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ignored_verdict_writes_nothing() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("ignored");
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    for (ignored, verdict) in [(call.clone(), "replay"), (call.printed(&[print(1, 8)]), "mismatch")] {
        session.batch_execute("BEGIN").await.unwrap();
        assert_eq!(ignored.enter(&session).await.unwrap(), verdict);
        session.batch_execute("SAVEPOINT s").await.unwrap();
        assert_eq!(code(session.batch_execute(EFFECT).await), "25006", "{verdict}");
        session.batch_execute("ROLLBACK TO s").await.unwrap();
        assert_ne!(code(session.batch_execute("SET TRANSACTION READ WRITE").await), "00000");
        assert_eq!(code(session.batch_execute("ROLLBACK TO s; RELEASE s").await), "00000");
        let once_more = session.batch_execute(EFFECT).await;
        assert_eq!(code(once_more), "25006");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    session.batch_execute(EFFECT).await.expect("the session itself is as it was");
    assert_eq!(shop.effects().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_enters_once_and_before_everything_else() {
    let shop = shop().await;
    let session = shop.session().await;
    let (call, other) = (Call::new("first"), Call::new("second"));
    // Twice: the second is swallowed, and the first still demands its leave.
    call.begin(&session).await;
    session.batch_execute("SAVEPOINT s").await.unwrap();
    assert_eq!(code(other.enter(&session).await), "SM003");
    session.batch_execute("ROLLBACK TO s; RELEASE s").await.unwrap();
    assert_eq!(code(other.leave(&session, 201, b"").await), "SM003", "of a key that was not entered");
    session.batch_execute("ROLLBACK").await.unwrap();
    // After a write, also after a row was locked.
    for before in [EFFECT, "SELECT FROM semel.clock FOR UPDATE"] {
        session.batch_execute("BEGIN").await.unwrap();
        session.batch_execute(before).await.unwrap();
        assert_eq!(code(call.enter(&session).await), "SM003", "{before}");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    // Inside a savepoint.
    session.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
    assert_eq!(code(call.enter(&session).await), "SM003");
    session.batch_execute("ROLLBACK").await.unwrap();
    // Left twice.
    call.begin(&session).await;
    call.leave(&session, 201, b"").await.unwrap();
    assert_eq!(code(call.leave(&session, 201, b"").await), "SM003");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_is_refused_whatever_the_verdict() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let (known, held) = (Call::new("known"), Call::new("held"));
    assert_eq!(shop.run(&known).await.unwrap(), "execute");
    held.begin(&other).await;
    let mismatch = known.printed(&[print(1, 8)]);
    let stale = Call::new("fresh").with(r#"{"fence": "7-0000000000000000"}"#);
    for (call, verdict) in
        [(&known, "replay"), (&mismatch, "mismatch"), (&held, "in-flight"), (&stale, "stale")]
    {
        session.batch_execute("BEGIN").await.unwrap();
        assert_eq!(call.enter(&session).await.unwrap(), verdict);
        session.batch_execute("COMMIT").await.expect("there is nothing to leave");
        // Were it told its verdict, it would find after rolling back to the savepoint that it can write all the same.
        session.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
        assert_eq!(code(call.enter(&session).await), "SM003", "{verdict}");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(shop.here.number("SELECT count(*) FROM semel.entered").await, 0, "no marker stays");
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constraints_that_are_checked_early_do_not_let_an_effect_through() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("constraints");
    call.begin(&session).await;
    session.batch_execute("SAVEPOINT s").await.unwrap();
    assert_eq!(code(session.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await), "SM004");
    session.batch_execute("ROLLBACK TO s; RELEASE s; RESET ALL").await.unwrap();
    session.batch_execute(EFFECT).await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), "SM004");
    assert_eq!(shop.effects().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_that_cannot_be_are_refused() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("arguments");
    let wrong = [
        call.printed(&[vec![1; 32]]),
        Call { about: "{}".to_owned(), ..call.clone() },
        Call { about: r#"{"endpoint": "e"}"#.to_owned(), ..call.clone() },
        call.with(r#"{"formers": [{"scope": "00"}]}"#),
    ];
    for wrong in wrong {
        session.batch_execute("BEGIN").await.unwrap();
        assert_eq!(code(wrong.enter(&session).await), "22023");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    // An id that is not made of scope and key would run the key twice.
    session.batch_execute("BEGIN").await.unwrap();
    let sql = "SELECT * FROM semel.enter(sha256('other')::bytea, sha256('scope'), 'key', NULL, '{}', '{}')";
    assert_eq!(code(session.batch_execute(sql).await), "22023");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(
        code(session.query(LEAVE, &[&b"x".as_slice(), &201, &b"".as_slice(), &b"".as_slice()]).await),
        "SM003"
    );
}

/// Two requests of one key at the same time; what the second is told at each step.
async fn overlap(level: &str) {
    let shop = shop().await;
    let (first, second) = (shop.session().await, shop.session().await);
    let call = Call::new("overlap");
    first.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
    assert_eq!(call.enter(&first).await.unwrap(), "execute");
    first.batch_execute(EFFECT).await.unwrap();
    for _ in 0..2 {
        second.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        assert_eq!(call.enter(&second).await.unwrap(), "in-flight", "{level}");
        second.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(call.look_verdict(&second).await, "in-flight", "{level}");
    }
    call.leave(&first, 201, b"made").await.unwrap();
    assert_eq!(call.look_verdict(&second).await, "in-flight", "{level}: it is not committed");
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(call.look_verdict(&second).await, "replay", "{level}");
    second.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
    assert_eq!(call.enter(&second).await.unwrap(), "replay", "{level}");
    assert_eq!((shop.effects().await, shop.records().await), (1, 1), "{level}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_at_a_time_executes_at_every_isolation_level() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        overlap(level).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_finds_out_when_it_leaves() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let shop = shop().await;
        let session = shop.session().await;
        let call = Call::new("snapshot");
        session
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM public.effect"))
            .await
            .unwrap();
        assert_eq!(shop.run(&call).await.unwrap(), "execute");
        assert_eq!(call.enter(&session).await.unwrap(), "execute", "{level}: its snapshot is from before");
        session.batch_execute(EFFECT).await.unwrap();
        assert_eq!(code(call.leave(&session, 201, b"again").await), "40001", "{level}");
        session.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(shop.run(&call).await.unwrap(), "replay", "{level}: the retry replays");
        assert_eq!((shop.effects().await, shop.records().await), (1, 1), "{level}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_was_lost_is_replayed() {
    let shop = shop().await;
    let call = Call::new("lost");
    let session = shop.session().await;
    call.begin(&session).await;
    session.batch_execute(EFFECT).await.unwrap();
    call.leave(&session, 201, b"made").await.unwrap();
    // The commit is sent, and nobody is there to hear what came of it.
    let _ = tokio::time::timeout(std::time::Duration::ZERO, session.batch_execute("COMMIT")).await;
    drop(session);
    let again = shop.session().await;
    until("the record is found", || async { call.look_verdict(&again).await == "replay" }).await;
    assert_eq!(shop.run(&call).await.unwrap(), "replay");
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_leaves_nothing_and_a_frozen_one_gives_its_key_back() {
    let shop = shop().await;
    let call = Call::new("frozen").with(r#"{"hold_ms": 400}"#);
    let frozen = shop.session().await;
    call.begin(&frozen).await;
    frozen.batch_execute(EFFECT).await.unwrap();
    call.leave(&frozen, 201, b"late").await.unwrap();
    let other = Call::new("another");
    assert_eq!(shop.run(&other).await.unwrap(), "execute", "only its own key is delayed");
    let watcher = shop.session().await;
    until("the key is free again", || async { call.look_verdict(&watcher).await == "execute" }).await;
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    assert_ne!(code(frozen.batch_execute("COMMIT").await), "00000", "its late commit fails");
    // One that dies.
    let (call, dead) = (Call::new("dead"), shop.session().await);
    call.begin(&dead).await;
    dead.batch_execute(EFFECT).await.unwrap();
    let pid: i32 = dead.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    watcher.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    until("the key is free again", || async { call.look_verdict(&watcher).await == "execute" }).await;
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    assert_eq!((shop.effects().await, shop.records().await), (3, 3));
}

/// `semel.enter` with something else in its place.
async fn plant(session: &Client, what: &str, instead: &str) {
    let sql = "SELECT pg_get_functiondef('semel.enter(bytea,bytea,text,bytea[],jsonb,jsonb)'::regprocedure)";
    let body: String = session.query_one(sql, &[]).await.unwrap().get(0);
    assert!(body.contains(what), "nothing to plant in");
    session.batch_execute(&body.replace(what, instead)).await.unwrap();
}

const TRIES: &str = "pg_try_advisory_xact_lock(\n        ('x' || encode(substring(enter.id FROM 1 FOR 8), 'hex'))::bit(64)::bigint)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_the_index_still_prevents_a_second_effect() {
    let shop = shop().await;
    let (first, second) = (shop.session().await, shop.session().await);
    plant(&first, TRIES, "true").await;
    let call = Call::new("unlocked");
    call.begin(&first).await;
    call.begin(&second).await;
    for session in [&first, &second] {
        session.batch_execute(EFFECT).await.unwrap();
    }
    call.leave(&first, 201, b"one").await.unwrap();
    let late = call.clone();
    let waiting = tokio::spawn(async move {
        let outcome = late.leave(&second, 201, b"two").await;
        (code(outcome), second)
    });
    first.batch_execute("COMMIT").await.unwrap();
    let (outcome, second) = waiting.await.unwrap();
    assert_eq!(outcome, "40001");
    second.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (1, 1));
}

/// Enters while another request ends between the lock and the look-up; what it is told.
async fn enter_while_another_ends(is_planted: bool) -> (String, String) {
    let shop = shop().await;
    let session = shop.session().await;
    // A gate between the two steps: whoever enters waits there for the test.
    let gate = "PERFORM pg_advisory_lock(42); PERFORM pg_advisory_unlock(42);\n    ";
    if is_planted {
        // The look-up first, then the lock.
        let both = "enter.verdict := 'execute';";
        plant(&session, TRIES, "true").await;
        plant(&session, both, &format!("{gate}is_held := {TRIES};\n    {both}")).await;
    } else {
        plant(&session, "is_held := ", &format!("{gate}is_held := ")).await;
    }
    let call = Call::new("order");
    let first = shop.session().await;
    call.begin(&first).await;
    first.batch_execute(EFFECT).await.unwrap();
    session.batch_execute("SELECT pg_advisory_lock(42)").await.unwrap();
    let second = shop.session().await;
    second.batch_execute("BEGIN").await.unwrap();
    let late = call.clone();
    let entering = tokio::spawn(async move { (late.enter(&second).await.unwrap(), second) });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("the second stands at the gate", || async { shop.here.number(waits).await == 1 }).await;
    call.leave(&first, 201, b"made").await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    session.batch_execute("SELECT pg_advisory_unlock(42)").await.unwrap();
    let (verdict, second) = entering.await.unwrap();
    if verdict != "execute" {
        return (verdict, "not left".to_owned());
    }
    second.batch_execute(EFFECT).await.unwrap();
    let left = code(call.leave(&second, 201, b"again").await);
    second.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (1, 1), "caught by the index");
    (verdict, left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_comes_before_the_look_up() {
    let (verdict, _) = enter_while_another_ends(false).await;
    assert_eq!(verdict, "replay");
    let (verdict, left) = enter_while_another_ends(true).await;
    assert_eq!(
        (verdict.as_str(), left.as_str()),
        ("execute", "40001"),
        "the wrong order is seen to be wrong"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entering_reads_no_table_from_end_to_end_even_while_it_is_small() {
    let shop = shop().await;
    for name in ["one", "two", "three"] {
        shop.run(&Call::new(name)).await.unwrap();
    }
    let session = shop.session().await;
    session.batch_execute("ANALYZE semel.record; ANALYZE semel.clock").await.unwrap();
    Call::new("four").begin(&session).await;
    let read =
        "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_xact_user_tables WHERE schemaname = 'semel'";
    assert_eq!(session.query_one(read, &[]).await.unwrap().get::<_, i64>(0), 0);
}
