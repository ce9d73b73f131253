//! Atomic routes on the embedded store: the handler's row and its record are both there or neither.
#![cfg(feature = "sqlite")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http_body_util::BodyExt;
use semel_contract::identity::Identity;
use semel_contract::profile::{OnUnknown, presets};
use semel_gate::sqlite::Grant;
use semel_gate::{GateLayer, Route};
use semel_store::sqlite::{SqliteStore, WorkError, rusqlite};
use tower::ServiceExt;

struct Shop {
    folder: tempfile::TempDir,
    store: Arc<SqliteStore>,
    app: Router,
}

/// What an order says decides what becomes of it.
async fn order(grant: Grant, item: String) -> impl IntoResponse {
    grant
        .transact(move |db| {
            db.execute("CREATE TABLE IF NOT EXISTS item (name TEXT NOT NULL)", [])?;
            db.execute("INSERT INTO item (name) VALUES (?1)", [&item])?;
            match item.as_str() {
                "fails" => Err(WorkError::Handler("no such item".to_owned())),
                "panics" => panic!("on purpose"),
                "meddles" => {
                    db.execute("DELETE FROM semel_record", []).map(|_| (StatusCode::OK, String::new()))
                }
                "commits" => db.execute("COMMIT", []).map(|_| (StatusCode::OK, String::new())),
                _ => Ok((StatusCode::CREATED, format!("row {}", db.last_insert_rowid()))),
            }
        })
        .await
}

impl Shop {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(folder.path().join("shop.db")).unwrap());
        let mut profile = presets::ietf();
        profile.on_unknown = OnUnknown::Hold;
        let gate = GateLayer::builder(Arc::clone(&store))
            .identity("trusted:X-User".parse::<Identity>().unwrap())
            .route(Route::new("orders", "POST /orders").unwrap().profile(profile).atomic())
            .build()
            .unwrap();
        Self { folder, store, app: Router::new().route("/orders", post(order)).layer(gate) }
    }

    async fn order(&self, key: &str, item: &str) -> (u16, String, bool) {
        let request = Request::post("/orders").header("x-user", "alice").header("idempotency-key", key);
        let request = request.header("content-type", "text/plain").body(Body::from(item.to_owned())).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (status, replayed) =
            (response.status().as_u16(), response.headers().contains_key("idempotency-replayed"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap(), replayed)
    }

    fn items(&self) -> u32 {
        let database = rusqlite::Connection::open(self.folder.path().join("shop.db")).unwrap();
        database.query_row("SELECT count(*) FROM item", [], |row| row.get(0)).unwrap_or(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handlers_row_and_its_record_are_one_commit() {
    let shop = Shop::open();
    assert_eq!(shop.order("k", "tea").await, (201, "row 1".to_owned(), false));
    let commits = shop.store.commits();
    assert_eq!(shop.order("k", "tea").await, (201, "row 1".to_owned(), true));
    assert_eq!((shop.items(), shop.store.commits()), (1, commits), "a replay writes nothing");
    assert_eq!(shop.order("k", "coffee").await.0, 422);
    shop.order("other", "tea").await;
    assert_eq!(
        (shop.items(), shop.store.commits()),
        (2, commits + 1),
        "one commit a request: the claim is in memory"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_fails_leaves_nothing_and_frees_the_key() {
    let shop = Shop::open();
    for item in ["fails", "panics", "meddles", "commits"] {
        for _ in 0..2 {
            let (status, body, replayed) = shop.order(item, item).await;
            assert_eq!((status, replayed), (500, false), "{item}: {body}");
        }
        assert_eq!(shop.items(), 0, "{item}");
    }
    assert_eq!(shop.order("good", "tea").await.0, 201);
    assert_eq!(shop.items(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_together_share_commits() {
    let shop = Arc::new(Shop::open());
    let before = shop.store.commits();
    let orders: Vec<_> = (0..500)
        .map(|n| {
            let shop = Arc::clone(&shop);
            // Every key comes five times at once.
            tokio::spawn(
                async move { shop.order(&format!("k{}", n % 100), &format!("item {}", n % 100)).await.0 },
            )
        })
        .collect();
    for order in orders {
        assert_eq!(order.await.unwrap(), 201);
    }
    assert_eq!(shop.items(), 100);
    let commits = shop.store.commits() - before;
    assert!(commits < 60, "{commits} commits for 100 effects");
}

/// Of a request only its hashes are kept: whoever reads the database reads nothing that was sent.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_requests_body_is_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(folder.path().join("shop.db")).unwrap());
    let gate = GateLayer::builder(Arc::clone(&store))
        .identity("trusted:X-User".parse::<Identity>().unwrap())
        .route(Route::new("orders", "POST /orders").unwrap())
        .build()
        .unwrap();
    let app = Router::new().route("/orders", post(async || "kept-in-the-answer")).layer(gate);
    let body = r#"{"card":"sent-and-not-kept"}"#;
    let request = Request::post("/orders?query=sent-and-not-kept").header("x-user", "alice");
    let request = request.header("idempotency-key", "k").header("content-type", "application/json");
    let response = app.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    drop(store);
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        found.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    let has = |text: &str| found.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(has("kept-in-the-answer"), "the scan finds what is there");
    assert!(!has("sent-and-not-kept"));
}
