//! A database that an older release wrote is brought up to date, with everything that was under way.

use semel_delivery::relay::store::accept::Accepted;
use semel_delivery::relay::store::conformance;

use crate::base::{Base, client};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_version_1_goes_on_where_it_was() {
    let base = Base::create().await;
    client(&base.url).await.batch_execute(include_str!("../fixtures/relay-1.sql")).await.unwrap();
    let store = base.store().await;
    conformance::upgraded(&store).await;
    // Opened again, there is nothing more to do.
    conformance::submitted(&base.store().await).await;
    base.drop().await;
}

/// Whoever still runs the release before it is refused by the database, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn statements_of_version_1_fail_and_change_nothing() {
    let base = Base::create().await;
    client(&base.url).await.batch_execute(include_str!("../fixtures/relay-1.sql")).await.unwrap();
    let old = client(&base.url).await;
    old.batch_execute("SET search_path = semel_relay").await.unwrap();
    let taken =
        old.prepare("SELECT id, next_seq, state FROM relay_lane WHERE name = $1 FOR UPDATE").await.unwrap();
    assert_eq!(old.query(&taken, &[&"a"]).await.unwrap().len(), 1);
    let store = base.store().await;
    assert!(old.query(&taken, &[&"a"]).await.is_err(), "it cannot take a number");
    for sql in [
        "UPDATE relay_lane SET fence = fence + 1",
        "UPDATE relay_lane SET watermark = 2",
        "SELECT fence FROM relay_lane",
        "DELETE FROM relay_ready",
    ] {
        assert!(old.batch_execute(sql).await.is_err(), "{sql}");
    }
    conformance::upgraded(&store).await;
    base.drop().await;
}

/// S2-05. The first step of a roll-out: the relay's schema is there, and whoever wrote by itself before goes on as it was. Then the
/// second: the relay takes requests in.
#[tokio::test(flavor = "multi_thread")]
async fn an_applications_own_tables_and_statements_go_on_beside_the_relays_schema() {
    const THERE: &str = "SELECT n.nspname || '.' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(c.relacl::text, '')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' ORDER BY 1";
    let base = Base::create().await;
    let old = client(&base.url).await;
    old.batch_execute(
        "CREATE TABLE score (patrol text PRIMARY KEY, points bigint NOT NULL);
         CREATE TABLE relay_lane (id bigint PRIMARY KEY, note text NOT NULL)",
    )
    .await
    .unwrap();
    let add = old
        .prepare("INSERT INTO score VALUES ($1, $2) ON CONFLICT (patrol) DO UPDATE SET points = score.points + excluded.points RETURNING points")
        .await
        .unwrap();
    let points = async || old.query_one(&add, &[&"eagles", &5_i64]).await.unwrap().get::<_, i64>(0);
    let there = async || {
        let rows = old.query(THERE, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, Option<String>>(0)).collect::<Vec<_>>()
    };
    assert_eq!(points().await, 5);
    let before = there().await;
    let store = base.store().await;
    assert_eq!(points().await, 10, "what was prepared before");
    assert_eq!(
        there().await,
        before,
        "nothing of the application's was touched, not even a table of the same name"
    );
    old.execute("INSERT INTO relay_lane VALUES (1, 'mine')", &[]).await.unwrap();
    let accepted = store.accept(&conformance::submission("ann", "1", &[("eagles", 5)])).await.unwrap();
    assert!(matches!(accepted, Accepted::New { .. }), "{accepted:?}");
    assert_eq!(points().await, 15);
    base.drop().await;
}
