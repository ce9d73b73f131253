//! A database that an older release wrote is brought up to date, with everything that was under way.

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
