//! `semel.enter_new` and `semel.leave_new`, the pair for libraries that send BEGIN and COMMIT themselves: the same record as
//! semel.enter and semel.leave write, no effect without a record, and nothing of the caller's found by its path.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use crate::once_fixture::{Call, EFFECT, Shop, code, print, shop, until};

const ENTER_NEW: &str = "SELECT semel.enter_new($1::bytea, $2::bytea, $3::text)";
/// What COMMIT says where the key was not left: the marker refers to a row that never is.
const NOT_LEFT: &str = "23503";
/// What leave_new says where somebody else has the key: the unique index does.
const TAKEN: &str = "23505";
const LEAVE_NEW: &str =
    "SELECT semel.leave_new($1::bytea, $2::bytea, $3::text, $4::bytea, 'create-order'::text, NULL::text,
    'alice'::text, 'r-1'::text, NULL::bigint, NULL::bytea, ''::bytea, $5::bytea, $6::bigint, 90600000::bigint,
    false, 1024::integer, $7::integer, ''::bytea, $8::bytea)";

async fn enter(session: &Client, call: &Call, hold: &str) -> Result<bool, Error> {
    let (hash, mark) = (call.id.hash(), None::<Vec<u8>>);
    let values: [&(dyn ToSql + Sync); 3] = [&hash.as_slice(), &mark, &hold];
    Ok(session.query_one(ENTER_NEW, &values).await?.get(0))
}

async fn leave(session: &Client, call: &Call, status: i32, body: &[u8]) -> Result<bool, Error> {
    leave_as(session, call, call, status, body).await
}

/// Leaves `call`, and says that it is `said`.
async fn leave_as(
    session: &Client,
    call: &Call,
    said: &Call,
    status: i32,
    body: &[u8],
) -> Result<bool, Error> {
    let (hash, scope, key) = (call.id.hash(), said.id.scope, said.id.key.as_str());
    let values: [&(dyn ToSql + Sync); 8] = [
        &hash.as_slice(),
        &scope.as_bytes().as_slice(),
        &key,
        &call.prints[0],
        &None::<Vec<u8>>,
        &0_i64,
        &status,
        &body,
    ];
    Ok(session.query_one(LEAVE_NEW, &values).await?.get(0))
}

async fn begin(session: &Client, call: &Call) {
    session.batch_execute("BEGIN").await.expect("a transaction");
    assert!(enter(session, call, "30000").await.expect("it enters"));
}

async fn columns(shop: &Shop, of: &Call) -> String {
    let hash = of.id.hash().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let row = "SELECT row_to_json(r)::jsonb - '{fence,hash,key,created_at,first_lease_until,late_until,settled_at,expires_at}'::text[]
        || jsonb_build_object('lives', r.expires_at - r.settled_at, 'held', r.created_at <= r.settled_at,
            'lease', r.first_lease_until = r.created_at AND r.late_until = r.created_at)
        FROM semel.record AS r WHERE hash = ";
    let rows = shop.here.client.query(&format!("SELECT ({row}'\\x{hash}')::text"), &[]).await.expect("a row");
    rows[0].get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_pairs_write_the_same_record() {
    let shop = shop().await;
    let session = shop.session().await;
    let (usual, new) = (Call::new("usual"), Call::new("new"));
    assert_eq!(shop.run(&usual).await.unwrap(), "execute");
    begin(&session, &new).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert!(leave(&session, &new, 201, b"made").await.unwrap(), "the answer is kept");
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(columns(&shop, &new).await, columns(&shop, &usual).await);
    assert_eq!(new.look_verdict(&session).await, "replay");
    assert_eq!(new.printed(&[print(1, 9)]).look_verdict(&session).await, "mismatch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mismatch_tells_the_hash_of_the_payload_that_the_key_stands_for() {
    let shop = shop().await;
    let session = shop.session().await;
    let mut call = Call::new("hashed");
    call.about = call.about.replacen('{', &format!("{{\"payload_hash\": \"{}\", ", "ab".repeat(32)), 1);
    assert_eq!(shop.run(&call).await.unwrap(), "execute");
    let other = call.printed(&[print(1, 9)]);
    for row in [other.look(&session).await, other.enter_row(&session).await.unwrap()] {
        assert_eq!(row.get::<_, &str>("verdict"), "mismatch");
        assert_eq!(row.get::<_, Option<&[u8]>>("payload_hash"), Some([0xab; 32].as_slice()));
    }
    assert_eq!(
        call.look(&session).await.get::<_, Option<&[u8]>>("payload_hash"),
        None,
        "a replay needs none"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_or_held_is_not_new_and_nothing_can_be_written() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let (known, held) = (Call::new("known"), Call::new("held"));
    assert_eq!(shop.run(&known).await.unwrap(), "execute");
    held.begin(&other).await;
    for call in [&known, &held] {
        session.batch_execute("BEGIN").await.unwrap();
        assert!(!enter(&session, call, "30000").await.unwrap());
        assert_eq!(code(session.batch_execute(EFFECT).await), "25006");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    other.batch_execute("ROLLBACK").await.unwrap();
    begin(&session, &held).await;
    assert_eq!(held.look_verdict(&other).await, "in-flight", "both pairs take the same lock");
    assert_eq!(shop.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_calls_of_the_pair_raise_and_leave_no_record() {
    let shop = shop().await;
    let session = shop.session().await;
    let (call, other) = (Call::new("first"), Call::new("second"));
    // Twice, and after a write.
    begin(&session, &call).await;
    assert_eq!(code(enter(&session, &call, "30000").await), "SM003");
    session.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    session.batch_execute(EFFECT).await.unwrap();
    assert_eq!(code(enter(&session, &call, "30000").await), "SM003");
    session.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    assert_eq!(code(leave(&session, &call, 201, b"").await), "SM003", "without enter_new");
    session.batch_execute("ROLLBACK").await.unwrap();
    // Of another key, under another name, with a status that frees the key, with none, twice, inside a savepoint.
    for (which, expected) in
        [(0, "SM003"), (1, "22023"), (2, "SM005"), (3, "22023"), (4, "SM003"), (5, "SM003")]
    {
        begin(&session, &call).await;
        let refused = match which {
            0 => leave(&session, &other, 201, b"").await,
            1 => leave_as(&session, &call, &other, 201, b"").await,
            2 => leave(&session, &call, 503, b"").await,
            3 => leave(&session, &call, 99, b"").await,
            4 => {
                leave(&session, &call, 201, b"").await.unwrap();
                leave(&session, &call, 201, b"").await
            }
            _ => {
                session.batch_execute("SAVEPOINT s").await.unwrap();
                leave(&session, &call, 201, b"").await
            }
        };
        assert_eq!(code(refused), expected, "case {which}");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    // By the other pair.
    begin(&session, &call).await;
    assert_eq!(code(call.leave(&session, 201, b"").await), "SM003");
    session.batch_execute("ROLLBACK").await.unwrap();
    call.begin(&session).await;
    assert_eq!(code(leave(&session, &call, 201, b"").await), "SM003");
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_is_refused_whether_the_key_is_new_or_not() {
    let shop = shop().await;
    let (session, other) = (shop.session().await, shop.session().await);
    let (known, held, new) = (Call::new("known"), Call::new("held"), Call::new("new"));
    assert_eq!(shop.run(&known).await.unwrap(), "execute");
    held.begin(&other).await;
    for call in [&known, &held, &new] {
        session.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
        assert_eq!(code(enter(&session, call, "30000").await), "SM003");
        session.batch_execute("ROLLBACK").await.unwrap();
    }
    // What is not new leaves nothing to be left.
    session.batch_execute("BEGIN").await.unwrap();
    assert!(!enter(&session, &known, "30000").await.unwrap());
    session.batch_execute("COMMIT").await.expect("there is nothing to leave");
    assert_eq!(shop.here.number("SELECT count(*) FROM semel.unleft").await, 0, "no marker stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constraints_of_the_pair_that_are_checked_early_or_deferred_again_let_no_effect_through() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("constraints");
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    session.batch_execute("SAVEPOINT s").await.unwrap();
    assert_eq!(code(session.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await), NOT_LEFT);
    session.batch_execute("ROLLBACK TO s; SET CONSTRAINTS ALL DEFERRED").await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), NOT_LEFT);
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

/// `semel.enter_new` with something else in its place.
async fn plant(session: &Client, what: &str, instead: &str) {
    let sql = "SELECT pg_get_functiondef('semel.enter_new(bytea,bytea,text)'::regprocedure)";
    let body: String = session.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(body.matches(what).count(), 1, "where to plant");
    session.batch_execute(&body.replace(what, instead)).await.unwrap();
}

/// Enters while another request ends between the lock and the look-up; what it is told, and what becomes of its leave.
async fn enter_while_another_ends(is_planted: bool) -> (bool, String) {
    let shop = shop().await;
    let session = shop.session().await;
    // A gate between the two steps: whoever enters waits there for the test.
    let gate = "PERFORM pg_advisory_lock(42); PERFORM pg_advisory_unlock(42);\n    ";
    let (lock, found) = ("IF pg_catalog.pg_try_advisory_xact_lock(", "IF is_first THEN");
    if is_planted {
        // The look-up first, then the lock.
        plant(&session, lock, "IF true OR pg_catalog.pg_try_advisory_xact_lock(").await;
        let locks = "pg_try_advisory_xact_lock(('x' || encode(substring(enter_new.id, 1, 8), 'hex'))::bit(64)::bigint)";
        let late = format!("{gate}IF is_first AND {locks} THEN");
        plant(&session, found, &late).await;
    } else {
        plant(&session, lock, &format!("{gate}{lock}")).await;
    }
    let (call, first) = (Call::new("order"), shop.session().await);
    begin(&first, &call).await;
    first.batch_execute(EFFECT).await.unwrap();
    session.batch_execute("SELECT pg_advisory_lock(42)").await.unwrap();
    let second = shop.session().await;
    second.batch_execute("BEGIN").await.unwrap();
    let late = call.clone();
    let entering = tokio::spawn(async move { (enter(&second, &late, "30000").await.unwrap(), second) });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("the second stands at the gate", || async { shop.here.number(waits).await == 1 }).await;
    assert!(leave(&first, &call, 201, b"made").await.unwrap());
    first.batch_execute("COMMIT").await.unwrap();
    session.batch_execute("SELECT pg_advisory_unlock(42)").await.unwrap();
    let (is_new, second) = entering.await.unwrap();
    if !is_new {
        return (false, "not left".to_owned());
    }
    second.batch_execute(EFFECT).await.unwrap();
    let left = code(leave(&second, &call, 201, b"again").await);
    second.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (1, 1), "caught by the index");
    (true, left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pair_locks_before_it_looks_up() {
    assert_eq!(enter_while_another_ends(false).await, (false, "not left".to_owned()));
    let planted = enter_while_another_ends(true).await;
    assert_eq!(planted, (true, TAKEN.to_owned()), "the wrong order is seen to be wrong");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_leave_new_fails() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("unleft");
    // In autocommit the transaction ends with the call that entered.
    let refused = enter(&session, &call, "30000").await.unwrap_err();
    let constraint = refused.as_db_error().and_then(|error| error.constraint());
    assert_eq!((refused.code().map(|code| code.code()), constraint), (Some(NOT_LEFT), Some("key_is_left")));
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), NOT_LEFT);
    assert_eq!(code(leave(&session, &call, 201, b"").await), "SM003", "there is nothing left to leave");
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
    assert_eq!(call.look_verdict(&session).await, "execute", "the key is free");
    // A leave whose error was swallowed is no leave either.
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    session.batch_execute("SAVEPOINT s").await.unwrap();
    assert_eq!(code(leave(&session, &call, 503, b"").await), "SM005");
    session.batch_execute("ROLLBACK TO s").await.unwrap();
    assert_eq!(code(session.batch_execute("COMMIT").await), NOT_LEFT);
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
    // The rows by which it is watched go with the transaction.
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert!(leave(&session, &call, 201, b"").await.unwrap());
    session.batch_execute("COMMIT").await.unwrap();
    let rows = session.query_one("SELECT count(*) FROM semel.unleft", &[]).await.unwrap();
    assert_eq!((shop.effects().await, rows.get::<_, i64>(0)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_too_large_leaves_a_tombstone() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("large");
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    assert!(!leave(&session, &call, 201, &[b'x'; 1025]).await.unwrap());
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!(call.look_verdict(&session).await, "not-kept");
    assert_eq!((shop.effects().await, shop.records().await), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_decides_where_the_lock_did_not() {
    let shop = shop().await;
    let session = shop.session().await;
    let call = Call::new("raced");
    begin(&session, &call).await;
    session.batch_execute(EFFECT).await.unwrap();
    // Somebody who knows of no lock.
    let hash = call.id.hash();
    let insert = "INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, principal, state, guarantee, created_at,
        first_lease_until, late_until, request_headers, request_id)
        VALUES (nextval('semel.fence'), 1, $1, '', 'raced', '', '', 4, 1, 0, 0, 0, '', '')";
    shop.here.client.execute(insert, &[&hash.as_slice()]).await.unwrap();
    assert_eq!(code(leave(&session, &call, 201, b"made").await), TAKEN);
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.effects().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_of_a_new_key_gives_it_back_and_commits_no_more() {
    let shop = shop().await;
    let (frozen, other) = (shop.session().await, shop.session().await);
    let call = Call::new("frozen");
    frozen.batch_execute("BEGIN").await.unwrap();
    assert!(enter(&frozen, &call, "300").await.unwrap());
    let _ = frozen.batch_execute(EFFECT).await;
    until("the key is free", || async { call.look_verdict(&other).await == "execute" }).await;
    assert!(leave(&frozen, &call, 201, b"late").await.is_err());
    assert!(frozen.batch_execute("COMMIT").await.is_err());
    assert_eq!((shop.effects().await, shop.records().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_path_finds_nothing_of_the_callers() {
    let shop = shop().await;
    let session = shop.session().await;
    // Every function and operator that the pair uses, and two of its types, in a schema that is searched first.
    let trap = "CREATE SCHEMA trap; GRANT USAGE, CREATE ON SCHEMA trap TO semel_library;
        GRANT INSERT ON public.effect TO semel_library;
        CREATE FUNCTION trap.spring() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
        CREATE FUNCTION trap.octet_length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT trap.spring()::integer';
        CREATE FUNCTION trap.encode(bytea, text) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.substring(bytea, integer, integer) RETURNS bytea LANGUAGE sql AS 'SELECT trap.spring()::bytea';
        CREATE FUNCTION trap.substr(text, integer) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.substr(text, integer, integer) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT trap.spring()::bytea';
        CREATE FUNCTION trap.convert_to(text, name) RETURNS bytea LANGUAGE sql AS 'SELECT trap.spring()::bytea';
        CREATE FUNCTION trap.get_byte(bytea, integer) RETURNS integer LANGUAGE sql AS 'SELECT trap.spring()::integer';
        CREATE FUNCTION trap.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT trap.spring()::timestamptz';
        CREATE FUNCTION trap.date_part(text, timestamptz) RETURNS float8 LANGUAGE sql AS 'SELECT trap.spring()::float8';
        CREATE FUNCTION trap.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT trap.spring()::bigint';
        CREATE FUNCTION trap.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT trap.spring()::xid8';
        CREATE FUNCTION trap.pg_current_xact_id_if_assigned() RETURNS xid8 LANGUAGE sql AS 'SELECT trap.spring()::xid8';
        CREATE FUNCTION trap.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(xid, xid) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.both(tid, tid) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()::boolean';
        CREATE FUNCTION trap.sum(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT trap.spring()::bigint';
        CREATE FUNCTION trap.join(text, text) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()';
        CREATE FUNCTION trap.join(bytea, bytea) RETURNS bytea LANGUAGE sql AS 'SELECT trap.spring()::bytea';
        CREATE FUNCTION trap.times(float8, integer) RETURNS float8 LANGUAGE sql AS 'SELECT trap.spring()::float8'";
    session.batch_execute(trap).await.expect("a trap");
    let mut operators = String::new();
    for (name, function, kinds) in [
        ("=", "both", &["bytea", "text", "integer", "bigint", "xid", "tid"][..]),
        ("<=", "both", &["integer", "bigint"]),
        (">=", "both", &["integer", "bigint"]),
        ("<", "both", &["integer", "bigint"]),
        (">", "both", &["integer", "bigint"]),
        ("+", "sum", &["bigint"]),
        ("-", "sum", &["bigint"]),
        ("||", "join", &["text", "bytea"]),
    ] {
        for kind in kinds {
            operators += &format!(
                "CREATE OPERATOR trap.{name} (FUNCTION = trap.{function}, LEFTARG = {kind}, RIGHTARG = {kind});"
            );
        }
    }
    operators += "CREATE OPERATOR trap.* (FUNCTION = trap.times, LEFTARG = float8, RIGHTARG = integer);
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA trap TO semel_library;
        SET ROLE semel_library; SET search_path = trap, pg_temp, pg_catalog";
    session.batch_execute(&operators).await.expect("operators");
    assert!(session.query("SELECT 'a'::text = 'b'::text", &[]).await.is_err(), "the trap works");
    let temporary =
        "CREATE TEMPORARY TABLE text (x pg_catalog.int4); CREATE TEMPORARY TABLE bytea (x pg_catalog.int4);
        CREATE TEMPORARY TABLE xid (x pg_catalog.int4); CREATE TEMPORARY TABLE tid (x pg_catalog.int4)";
    session.batch_execute(temporary).await.expect("types of the caller's own");
    let call = Call::new("trapped");
    let (enter_new, leave_new) = (qualify(ENTER_NEW), qualify(LEAVE_NEW));
    session.batch_execute("BEGIN").await.unwrap();
    let (hash, scope, key) = (call.id.hash(), call.id.scope, call.id.key.as_str());
    let none = None::<Vec<u8>>;
    let entered =
        session.query_one(&enter_new, &[&hash.as_slice(), &none, &"30000"]).await.expect("it enters");
    assert!(entered.get::<_, bool>(0));
    session.batch_execute(EFFECT).await.unwrap();
    let values: [&(dyn ToSql + Sync); 8] = [
        &hash.as_slice(),
        &scope.as_bytes().as_slice(),
        &key,
        &call.prints[0],
        &none,
        &0_i64,
        &201,
        &b"made".as_slice(),
    ];
    assert!(session.query_one(&leave_new, &values).await.expect("it leaves").get::<_, bool>(0));
    session.batch_execute("COMMIT").await.unwrap();
    assert_eq!((shop.effects().await, shop.records().await), (1, 1));
}

/// The same statement with every type named in full.
fn qualify(statement: &str) -> String {
    let statement = statement.replace("::bytea", "::pg_catalog.bytea");
    statement.replace("::text", "::pg_catalog.text")
}
