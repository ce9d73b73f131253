//! Servers that messages are sent to: one that does as its paths say, and one behind a gate that loses replies.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, Response, Uri};
use axum::response::IntoResponse;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use semel_contract::identity::Identity;
use semel_contract::profile::{Profile, presets};
use semel_gate::{GateLayer, Route};
use semel_store::memory::MemoryStore;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower::ServiceExt as _;

/// What a server saw.
#[derive(Default)]
pub(crate) struct Seen {
    /// Requests in order: path, headers, body.
    pub(crate) requests: Mutex<Vec<(String, HeaderMap, Vec<u8>)>>,
    /// Effects in order: lane and number.
    pub(crate) effects: Mutex<Vec<(String, u64)>>,
    /// Keys under which each number came.
    pub(crate) keys: Mutex<HashMap<(String, u64), BTreeSet<String>>>,
    /// Done when the first reply is about to be lost.
    pub(crate) on_first: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    arrivals: AtomicU64,
}

/// Which replies are lost.
#[derive(Clone, Copy)]
enum Loses {
    /// One in so many; 0 means none.
    OneIn(u64),
    /// The first.
    First,
}

impl Seen {
    pub(crate) fn paths(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|(path, _, _)| path.clone()).collect()
    }
}

/// A server that answers with the status at the end of the path; `/slow/…` takes a while first, `/401` wants a credential.
pub(crate) async fn obedient() -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let of_server = Arc::clone(&seen);
    let handle = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let seen = Arc::clone(&of_server);
        async move {
            seen.requests.lock().unwrap().push((uri.path().to_owned(), headers.clone(), body.to_vec()));
            if uri.path().starts_with("/slow") {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            let status = uri.path().rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(201);
            let status = if status == 401
                && headers.get("authorization").is_some_and(|value| value == "Bearer good")
            {
                200
            } else {
                status
            };
            let answer = json!({"broker_message_id": "b-1", "history_id": 7, "error": "because"});
            let status = axum::http::StatusCode::from_u16(status).unwrap();
            (status, [("content-type", "application/json"), ("set-cookie", "s=1")], answer.to_string())
                .into_response()
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handle)).await });
    (address, seen)
}

/// A server behind a gate that runs its effects, and loses one reply in `loses`.
pub(crate) async fn gated(loses: u64) -> (SocketAddr, Arc<Seen>) {
    gated_at("127.0.0.1:0", "trusted:X-User", loses).await
}

/// The same, at this address and with this identity.
pub(crate) async fn gated_at(address: &str, identity: &str, loses: u64) -> (SocketAddr, Arc<Seen>) {
    gate(address, identity, presets::ietf(), Loses::OneIn(loses)).await
}

/// A server behind a gate with this identity that loses its first reply.
pub(crate) async fn gated_losing_the_first(identity: &str, profile: Profile) -> (SocketAddr, Arc<Seen>) {
    gate("127.0.0.1:0", identity, profile, Loses::First).await
}

async fn gate(address: &str, identity: &str, mut profile: Profile, loses: Loses) -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let of_handler = Arc::clone(&seen);
    let handler = move |headers: HeaderMap, body: Bytes| {
        let seen = Arc::clone(&of_handler);
        async move {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let at = (body["lane"].as_str().unwrap().to_owned(), body["n"].as_u64().unwrap());
            assert!(headers.contains_key("idempotency-first-sent") && headers.contains_key("x-client-tx-id"));
            seen.effects.lock().unwrap().push(at);
            (axum::http::StatusCode::CREATED, "done")
        }
    };
    let store = Arc::new(MemoryStore::new());
    profile.age = Some(semel_contract::profile::FirstSent { from_uuid7: false });
    let gate = GateLayer::builder(store)
        .identity(identity.parse::<Identity>().unwrap())
        .route(Route::new("note", "POST /notes").unwrap().profile(profile))
        .build()
        .unwrap();
    let app = Router::new().route("/notes", axum::routing::post(handler)).layer(gate);
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let of_server = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (app, seen) = (app.clone(), Arc::clone(&of_server));
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let (app, seen) = (app.clone(), Arc::clone(&seen));
                async move { answer(app, &seen, request, loses).await }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, seen)
}

async fn answer(
    app: Router,
    seen: &Seen,
    request: Request<hyper::body::Incoming>,
    loses: Loses,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = http_body_util::BodyExt::collect(body).await.map_err(std::io::Error::other)?.to_bytes();
    if let Ok(told) = serde_json::from_slice::<Value>(&body)
        && let (Some(lane), Some(n)) = (told["lane"].as_str(), told["n"].as_u64())
    {
        let key = ["idempotency-key", "x-idempotency-key"].iter().find_map(|name| parts.headers.get(*name));
        let key = key.expect("it has a key").to_str().unwrap().to_owned();
        seen.keys.lock().unwrap().entry((lane.to_owned(), n)).or_default().insert(key);
    }
    seen.requests.lock().unwrap().push((parts.uri.path().to_owned(), parts.headers.clone(), body.to_vec()));
    let response =
        app.oneshot(Request::from_parts(parts, Body::from(body))).await.expect("a router does not fail");
    let count = seen.arrivals.fetch_add(1, Ordering::Relaxed);
    let is_lost = match loses {
        // Spread, not every tenth: a lane would otherwise never or always be hit.
        Loses::OneIn(many) => {
            many > 0 && (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(many)
        }
        Loses::First => count == 0,
    };
    if is_lost && let Some(act) = seen.on_first.lock().unwrap().take() {
        act();
    }
    if is_lost { Err(std::io::Error::other("the reply is lost")) } else { Ok(response) }
}
