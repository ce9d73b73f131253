//! The OpenAPI document and the routers agree: every operation that is described is there, on the address that it names.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode};
use semel_broker::{Broker, Identity, Parts, Settings, admin_router, database, listen_router, openapi};
use semel_store::clock::SystemClock;
use tower::ServiceExt;

#[tokio::test]
async fn every_operation_is_where_the_document_says() {
    let db = Arc::new(database::memory(Arc::new(SystemClock)).unwrap());
    let broker = Broker::open(Parts::new(db), Settings::default()).await.unwrap();
    let listen = listen_router(broker.clone(), Identity::Tokens, None);
    let admin = admin_router(broker);
    let document: serde_json::Value = serde_json::from_str(openapi()).unwrap();
    let mut operations = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let concrete = path.replace(['{', '}'], "");
        for (method, operation) in methods.as_object().unwrap() {
            let address = operation["x-address"].as_str().unwrap();
            for (router, name) in [(&listen, "listen"), (&admin, "admin")] {
                let request = Request::builder().method(method.to_uppercase().as_str()).uri(&concrete);
                let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
                // A path that is not there answers 404 without a word, and a method that is not, 405.
                let is_json = response.headers().get("content-type").is_some();
                let is_there = response.status() != StatusCode::METHOD_NOT_ALLOWED
                    && (response.status() != StatusCode::NOT_FOUND || is_json);
                let expected = address == "both" || address == name;
                assert_eq!(is_there, expected, "{method} {path} on {name}: {}", response.status());
                operations += usize::from(is_there);
            }
        }
    }
    assert!(operations > 60, "{operations}");
}
