//! What is logged tells routes and hashes, never keys, bodies or credentials.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use semel_gate::testing::{MemoryStore, TestClock};
use semel_gate::{GateLayer, Route};
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span;

/// Writes down everything that is logged.
#[derive(Clone, Default)]
struct Recorder {
    text: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
}

impl Visit for Recorder {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text.lock().unwrap().push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("semel")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut self.clone());
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn keys_bodies_and_credentials_never_stand_in_logs() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let store = Arc::new(MemoryStore::with_clock(Arc::new(TestClock::default())));
    let gate =
        GateLayer::builder(store).route(Route::new("orders", "POST /{what}").unwrap()).build().unwrap();
    let panics = || async {
        if true {
            panic!("on purpose")
        }
    };
    let app = Router::new()
        .route("/good", post(|| async { "answer-marker" }))
        .route("/bad", post(panics))
        .layer(gate);
    for path in ["/good", "/good", "/bad", "/bad"] {
        let request = Request::post(path)
            .header("authorization", "Bearer token-marker")
            .header("idempotency-key", format!("key-marker{path}"));
        app.clone().oneshot(request.body(Body::from("body-marker")).unwrap()).await.unwrap();
    }
    let text = recorder.text.lock().unwrap().clone();
    assert!(text.contains("route=\"orders\"") && text.contains("key="), "{text}");
    for marker in ["key-marker", "token-marker", "body-marker", "answer-marker"] {
        assert!(!text.contains(marker), "{marker} stands in {text}");
    }
}
