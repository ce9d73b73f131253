//! A store that does not answer, or not yet about everything.

use semel_store::sqlite::SqliteStore;

use super::pages::{LOCAL, page};
use super::*;

#[tokio::test]
async fn a_store_that_is_away_is_said_and_nothing_is_claimed_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(SqliteStore::open_with_clock(folder.path().join("semel.db"), clock as _).unwrap());
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let router = Console::on(Arc::clone(&store) as _, access).router();
    assert_eq!(get(&router, "/readyz").await.status, 200);
    store.count_stale(None, "alice").await.unwrap();
    store.faults().hold_recovery(true);
    store.faults().lose_next_commit(false);
    let unsure = post(&router, "/v1/forget", json!({"principal": "alice"})).await;
    assert_eq!(unsure.refusal(), (503, "commit-unknown".to_owned()), "whether it was done is not known");
    let away = get(&router, "/readyz").await;
    assert_eq!((away.status, &away.json()["status"]), (503, &json!("not ready")), "{}", away.text);
    assert_eq!(away.headers["retry-after"], "1");
    assert_eq!(get(&router, "/healthz").await.status, 200, "the process lives");
    assert_eq!(get(&router, "/v1/records").await.refusal(), (503, "store-unavailable".to_owned()));
    let metrics = get(&router, "/metrics").await;
    assert!(metrics.status == 200 && metrics.text.contains("semel_store_ready 0"), "{}", metrics.text);
    assert!(!metrics.text.contains("semel_store_unknown_records"), "what is not known is not shown");
    store.faults().hold_recovery(false);
    for _ in 0..100 {
        if get(&router, "/readyz").await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is ready again once the store is");
}

#[tokio::test]
async fn while_the_keys_of_a_file_are_read_the_api_and_the_page_say_how_far() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let open = || {
        let path = folder.path().join("semel.db");
        Arc::new(SqliteStore::open_with_clock(path, Arc::clone(&clock) as _).unwrap())
    };
    let key = Key::parse(&Format::Printable255, "k-1").unwrap();
    let id = Id { scope: Scope::of(None, Some("alice"), Some("pay")), key };
    open().seal(&id, &About::default(), &presets::ietf().lifetime).await.unwrap();
    let store = open();
    store.faults().hold_keys(true);
    let access = Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap();
    let router = Console::on(Arc::clone(&store) as _, access).router();
    for path in ["/v1/records?key=k-1", "/v1/search?q=k-1"] {
        let found = get(&router, path).await.json();
        assert_eq!(found["records"], json!([]), "{path}");
        assert_eq!((&found["complete"], &found["reading"]), (&json!(false), &json!(true)), "{path}");
        assert_eq!(found["looked"], json!(0), "{path}");
    }
    let said = "are still being read";
    assert!(page(&router, "/requests?key=k-1", &[LOCAL]).await.text.contains(said));
    assert_eq!(get(&router, "/v1/records").await.json()["records"].as_array().map(Vec::len), Some(1));
    store.faults().hold_keys(false);
    while get(&router, "/v1/search?q=k-1").await.json()["reading"] == json!(true) {}
    let found = get(&router, "/v1/records?key=k-1").await.json();
    assert_eq!(found["records"].as_array().map(Vec::len), Some(1));
    assert_eq!((&found["complete"], &found["reading"]), (&json!(true), &json!(false)));
    assert!(!page(&router, "/requests?key=k-1", &[LOCAL]).await.text.contains(said));
}
