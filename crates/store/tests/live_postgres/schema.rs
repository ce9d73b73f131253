//! The schema: applied once, recognised, and with an index for everything that runs often.

use semel_store::postgres::{ConnectError, Migrations, Options, PostgresStore, sql};
use tokio_postgres::Client;

use crate::fixture::{Database, postgres};

const ROWS: i64 = 1_000_000;
/// The number of the newest migration.
const NEWEST: i32 = 17;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_are_applied_once_also_by_many_at_a_time() {
    let database = Database::create().await;
    let opening: Vec<_> = (0..6)
        .map(|_| {
            let url = database.url.clone();
            tokio::spawn(async move { PostgresStore::connect(&url, Options::default()).await.map(drop) })
        })
        .collect();
    for opened in opening {
        assert_eq!(opened.await.expect("no panic"), Ok(()));
    }
    let client = database.client().await;
    let applied = async || {
        let rows =
            client.query("SELECT number, applied_at::text FROM semel.migration ORDER BY number", &[]).await;
        let rows = rows.expect("the migrations are recorded");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(i32, String)>>()
    };
    let before = applied().await;
    assert_eq!(
        before.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        (1..=NEWEST).collect::<Vec<_>>()
    );
    let refusing = Options { migrations: Migrations::Refuse, ..Options::default() };
    PostgresStore::connect(&database.url, refusing).await.expect("nothing is missing");
    assert_eq!(applied().await, before, "applied twice is applied once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_not_known_is_refused() {
    let database = Database::create().await;
    let refusing = || Options { migrations: Migrations::Refuse, ..Options::default() };
    let missing = PostgresStore::connect(&database.url, refusing()).await.map(drop);
    assert_eq!(missing, Err(ConnectError::SchemaOlder { schema: "semel", found: 0, known: NEWEST }));
    drop(database.store(1).await);
    let client = database.client().await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect("the test may change the table");
    let open = async || PostgresStore::connect(&database.url, Options::default()).await.map(drop);

    let later = NEWEST + 1;
    let insert = "INSERT INTO semel.migration (number, name, checksum, works_for)";
    run(&format!("{insert} VALUES ({later}, 'later', '', {NEWEST})")).await;
    assert_eq!(open().await, Ok(()), "a newer schema that says that it works for this release");
    run(&format!("UPDATE semel.migration SET works_for = {later} WHERE number = {later}")).await;
    assert_eq!(open().await, Err(ConnectError::SchemaNewer { schema: "semel", found: later, known: NEWEST }));
    run(&format!("DELETE FROM semel.migration WHERE number = {later}")).await;
    assert_eq!(open().await, Ok(()));
    run("UPDATE semel.migration SET checksum = 'edited' WHERE number = 2").await;
    let changed = ConnectError::SchemaChanged { schema: "semel", number: 2, name: "settle".to_owned() };
    assert_eq!(open().await, Err(changed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_session_of_the_store_is_pinned() {
    let here = postgres().await;
    let name: String = here.client.query_one("SELECT current_database()", &[]).await.expect("a name").get(0);
    // What a database may prefer, and what the store must not follow.
    for setting in ["synchronous_commit = off", "default_transaction_isolation = 'serializable'"] {
        let sql = format!("ALTER DATABASE {name} SET {setting}");
        here.client.batch_execute(&sql).await.expect("a database has preferences");
    }
    let store = here.database.store(1).await;
    let check = "CREATE FUNCTION public.check_session() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF current_setting('synchronous_commit') <> 'on'
                    OR current_setting('transaction_isolation') <> 'read committed'
                    OR current_setting('statement_timeout') = '0' OR current_setting('lock_timeout') = '0'
                    OR current_setting('application_name') <> 'semel' THEN
                    RAISE EXCEPTION 'a session that is not pinned';
                END IF;
                RETURN NULL;
            END $$;
        CREATE TRIGGER check_session AFTER INSERT OR UPDATE OR DELETE ON semel.record
            FOR EACH STATEMENT EXECUTE FUNCTION public.check_session();
        CREATE TRIGGER check_session AFTER INSERT OR UPDATE OR DELETE ON semel.lease
            FOR EACH STATEMENT EXECUTE FUNCTION public.check_session()";
    here.client.batch_execute(check).await.expect("the test may watch");
    let id = crate::fixture::id("pinned");
    let fence = crate::fixture::won(&store, crate::fixture::claim_request(&id)).await;
    let held = [(id.clone(), fence)];
    use semel_store::ClaimStore;
    store.renew(&held, crate::fixture::LEASE).await.expect("a renewal is pinned too");
    let settled = crate::fixture::settled("x");
    store.settle(&id, fence, settled, &crate::fixture::lifetime()).await.expect("a settlement is pinned too");
}

/// The plan of a statement on a session without any of the store's settings.
async fn plan(client: &Client, sql: &str, values: &str) -> String {
    client.batch_execute(&format!("PREPARE examined AS {sql}")).await.expect("the statement is valid");
    let rows = client.query(&format!("EXPLAIN EXECUTE examined(0, 0, 0, {values})"), &[]).await;
    let rows = rows.expect("the statement can be explained");
    client.batch_execute("DEALLOCATE examined").await.expect("it is forgotten");
    rows.iter().map(|row| format!("{}\n", row.get::<_, &str>(0))).collect()
}

/// How the store's own sessions plan.
const PINNED: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
    SET enable_mergejoin = off; SET enable_material = off";

/// Plans are kept as long as a session: what is cheap while a table is empty must not read all that was written since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_that_are_made_while_the_tables_are_empty_reach_rows_one_by_one() {
    let here = postgres().await;
    here.client.batch_execute(PINNED).await.expect("a setting");
    let settle = "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL";
    let statements = [
        ("settle", sql::SETTLE, settle),
        ("renew", sql::RENEW, "NULL, NULL, NULL, NULL"),
        ("sweep of claims", sql::SWEEP_OPENED, "NULL"),
        ("find by key", sql::FIND_KEY, "NULL, NULL"),
    ];
    for (name, sql, values) in statements {
        let plan = plan(&here.client, sql, values).await;
        assert!(!plan.contains("Materialize"), "{name}:\n{plan}");
        let scans = plan.lines().zip(plan.lines().skip(1)).filter(|(line, _)| line.contains("on record"));
        for (scan, condition) in scans.filter(|(scan, _)| scan.contains("Index Scan")) {
            assert!(condition.contains("Index Cond"), "{name} reads a whole index ({scan}):\n{plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_often_reads_no_table_from_end_to_end() {
    let here = postgres().await;
    let fill = format!(
        "INSERT INTO semel.record (fence, nonce, hash, scope, key, endpoint, principal, state, guarantee, created_at,
            first_lease_until, late_until, settled_at, expires_at, request_headers, request_id, status, body)
        SELECT n, n, decode(md5(n::text), 'hex'), decode(repeat('ab', 32), 'hex'), n::text, 'pay', 'p' || n % 500,
            2, 2, n, n, n, n, n + 1000000, '', '', 200, '' FROM generate_series(1, {ROWS}) n;
        INSERT INTO semel.lease SELECT n, n FROM generate_series({ROWS} + 1, {ROWS} + 2000) n;
        INSERT INTO semel.opened SELECT n, 8000000000000 + n, ARRAY[n] FROM generate_series(1, 20000) n;
        ANALYZE semel.record; ANALYZE semel.lease; ANALYZE semel.opened; ANALYZE semel.clock"
    );
    here.client.batch_execute(&fill).await.expect("the table is filled");
    let hash = "decode(md5('7'), 'hex')";
    let statements = [
        ("look-up", sql::LOOK_UP, format!("{hash}, decode(repeat('ab', 32), 'hex'), '7'")),
        ("known", sql::KNOWN, format!("ARRAY[{hash}], ARRAY[{hash}]")),
        (
            "claim",
            sql::CLAIM,
            format!(
                "ARRAY[{hash}], ARRAY[{hash}], ARRAY['7'], ARRAY[7], ARRAY[7], ARRAY[7], ARRAY[2::smallint],
                    ARRAY[{hash}], ARRAY[1::smallint], ARRAY[{hash}], ARRAY[{hash}], ARRAY['e'], ARRAY['t'], ARRAY['p'],
                    ARRAY[7], ARRAY[{hash}], ARRAY['r'], ARRAY[7], ARRAY[1::smallint], ARRAY[7], ARRAY[7]"
            ),
        ),
        ("sweep", sql::SWEEP_EXPIRED, "0, 100".to_owned()),
        ("sweep of claims", sql::SWEEP_OPENED, "100".to_owned()),
        ("list", sql::LIST[0], "100, NULL, NULL, NULL, 50".to_owned()),
        ("list, newest first", sql::LIST[1], "9000, NULL, NULL, NULL, 50".to_owned()),
        ("list of claims", sql::LIST_CLAIMED[0], "100, 1::smallint, NULL, NULL, 50".to_owned()),
        ("list of unknown outcomes", sql::LIST_UNKNOWN[0], "100, 5::smallint, NULL, NULL, 50".to_owned()),
        ("find by number", sql::FIND, "1, 77".to_owned()),
        ("find by key", sql::FIND_KEY, "1, '77'".to_owned()),
        ("list of a principal", sql::LIST_OF_PRINCIPAL[0], "0, NULL, NULL, NULL, 50, 'p7'".to_owned()),
        ("forget", sql::FORGET, "'p7', 1000, 'carol', NULL".to_owned()),
        (
            "settle",
            sql::SETTLE,
            format!(
            "ARRAY[7], ARRAY[7], ARRAY[{hash}], ARRAY[2::smallint], ARRAY[200], ARRAY[{hash}], ARRAY[{hash}],
                ARRAY[false], ARRAY[1], ARRAY[false], ARRAY[false]"
        ),
        ),
        ("renew", sql::RENEW, format!("ARRAY[7], ARRAY[7], ARRAY[{hash}], 1000")),
    ];
    // As any session plans it, and as the store's own sessions do.
    for (settings, tables) in
        [("SET plan_cache_mode = force_custom_plan", &["record"][..]), (PINNED, &["record", "lease"])]
    {
        here.client.batch_execute(settings).await.expect("a setting");
        for (name, sql, values) in &statements {
            let plan = plan(&here.client, sql, values).await;
            for table in tables {
                let whole = format!("Seq Scan on {table}");
                assert!(!plan.contains(&whole), "{name} reads all of {table} ({settings}):\n{plan}");
            }
        }
    }
    let unknown = plan(&here.client, sql::LIST_UNKNOWN[0], "100, 5::smallint, NULL, NULL, 50").await;
    assert!(
        unknown.contains("unknown_pkey") && !unknown.contains("Sort"),
        "settled records are not read:\n{unknown}"
    );
    let sweep = plan(&here.client, sql::SWEEP_OPENED, "100").await;
    assert!(
        sweep.contains("opened_lease_until") && !sweep.contains("Seq Scan on opened"),
        "only what is due:\n{sweep}"
    );
    let sweep = plan(&here.client, sql::SWEEP_EXPIRED, "0, 100").await;
    assert!(sweep.contains("record_lifetime") && !sweep.contains("Sort"), "in order of expiry:\n{sweep}");
    let by_key = plan(&here.client, sql::FIND_KEY, "1, '77'").await;
    assert!(by_key.contains("record_key"), "a key is looked up:\n{by_key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_changes_no_index() {
    use semel_store::ClaimStore;
    let here = postgres().await;
    let id = crate::fixture::id("hot");
    let fence = crate::fixture::won(&here.store, crate::fixture::claim_request(&id)).await;
    let place = "SELECT ctid::text, xmin::text FROM semel.record";
    let row = async || {
        let row = here.client.query_one(place, &[]).await.expect("the record is there");
        (row.get::<_, String>(0), row.get::<_, String>(1))
    };
    let before = row().await;
    for _ in 0..50 {
        here.store.renew(&[(id.clone(), fence)], crate::fixture::LEASE).await.expect("it renews");
    }
    assert_eq!(row().await, before, "the record is not written");
    let pages = "SELECT pg_relation_size('semel.lease_pkey') / 8192";
    assert!(here.number(pages).await <= 2, "and the lease moves within its page");
}

/// The row stays in its page, and every index goes on naming the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_changes_no_index() {
    let here = postgres().await;
    for number in 0..40 {
        let id = crate::fixture::id(&format!("hot-{number}"));
        crate::fixture::won(&here.store, crate::fixture::claim_request(&id)).await;
    }
    // As the store does it, where the server's counts can be seen before they are sent to the statistics.
    let settle = sql::SETTLE
        .replace("$1::bigint", "0::bigint")
        .replace("$2::bigint", "0::bigint")
        .replace("$3::bigint", "0::bigint");
    let ending = "SELECT fence, nonce, hash, 2::smallint AS state, 201 AS status, ''::bytea AS headers,
        decode(repeat('ab', 60), 'hex') AS body, false AS outcome_unknown, 86400000::bigint AS keep_ms,
        false AS from_created, false AS remove FROM semel.record";
    let (before, after) = settle.split_once("SELECT * FROM unnest(").expect("it names its endings");
    let (_, after) = after.split_once(")\n), mine").expect("and locks them");
    let settle = format!("{before}{ending}), mine{after}");
    let counts = "SELECT pg_stat_get_xact_tuples_updated('semel.record'::regclass),
        pg_stat_get_xact_tuples_hot_updated('semel.record'::regclass)";
    here.client.batch_execute("BEGIN").await.expect("a transaction");
    here.client.query(&settle, &[]).await.expect("the statement is valid");
    let row = here.client.query_one(counts, &[]).await.expect("the counts");
    here.client.batch_execute("ROLLBACK").await.expect("nothing stays");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (40, 40), "all of them, each in its page");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_outcomes_are_listed_as_long_as_they_are_unknown() {
    use semel_store::{ClaimStore, Settlement};
    let here = postgres().await;
    let listed =
        "SELECT count(*) FROM semel.unknown u JOIN semel.record r ON r.fence = u.fence AND r.state = 5";
    let both = async || (here.number("SELECT count(*) FROM semel.unknown").await, here.number(listed).await);
    let mut claims = Vec::new();
    for name in ["settled", "left", "removed"] {
        let id = crate::fixture::id(name);
        let fence = crate::fixture::won(&here.store, crate::fixture::claim_request(&id)).await;
        here.store
            .settle(&id, fence, Settlement::Unknown, &crate::fixture::lifetime())
            .await
            .expect("it is written");
        claims.push((id, fence));
    }
    assert_eq!(both().await, (3, 3));
    let (id, fence) = &claims[0];
    let settled = crate::fixture::settled("late");
    here.store.settle(id, *fence, settled, &crate::fixture::lifetime()).await.expect("late, and in time");
    assert_eq!(both().await, (2, 2));
    let gone = format!("DELETE FROM semel.record WHERE fence = {}", claims[2].1.number);
    here.client.batch_execute(&gone).await.expect("it is removed");
    assert_eq!(both().await, (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_an_older_release_is_upgraded_without_loss() {
    let database = Database::create().await;
    let client = database.client().await;
    let frozen = include_str!("../fixtures/postgres_3.sql");
    client.batch_execute(frozen).await.expect("the fixture can be loaded");
    let store = database.store(2).await;
    let newest = client.query_one("SELECT max(number) FROM semel.migration", &[]).await;
    assert_eq!(newest.expect("the migrations are recorded").get::<_, i32>(0), NEWEST);
    // The claim of the older release lapsed long ago.
    client.execute("SELECT semel.shift_clock(60000)", &[]).await.expect("the clock is moved");
    crate::upgrades::holds(&*store).await;
}
