//! The admin API over the store in memory: who is let in, what is shown, what is done and that it is on the trail.

#[path = "router/asking.rs"]
mod asking;
#[path = "router/describing.rs"]
mod describing;
#[path = "router/doing.rs"]
mod doing;
#[path = "router/doors.rs"]
mod doors;
#[path = "router/forms.rs"]
mod forms;
#[path = "router/hostile.rs"]
mod hostile;
#[path = "router/outages.rs"]
mod outages;
#[path = "router/pages.rs"]
mod pages;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use semel_console::{Access, Console, Metrics, Token};
use semel_contract::decide::Claim;
use semel_contract::key::{Format, Key};
use semel_contract::profile::presets;
use semel_contract::record::{Fence, Guarantee};
use semel_contract::scope::Scope;
use semel_store::conformance::TestClock;
use semel_store::memory::MemoryStore;
use semel_store::{About, Answer, ClaimOutcome, ClaimRequest, ClaimStore, Id, Settlement};
use serde_json::{Value, json};
use tower::ServiceExt;

const FULL: &str = "the-full-token-of-the-tests";
const READ: &str = "the-read-token-of-the-tests";

/// A store with a clock of its own.
struct World {
    clock: Arc<TestClock>,
    store: Arc<MemoryStore>,
}

/// An answer, read in full.
#[derive(Debug)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Seen {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The status and the code of a refusal.
    fn refusal(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(TestClock::default());
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as _));
        Self { clock, store }
    }

    fn on(&self, access: Access) -> Router {
        Console::on(Arc::clone(&self.store) as _, access).metrics(Metrics::default()).router()
    }

    /// On loopback, without a token.
    fn open(&self) -> Router {
        self.on(Access::on("127.0.0.1:7401".parse().unwrap(), None, None).unwrap())
    }

    /// Reachable by others, with both tokens.
    fn closed(&self) -> Router {
        let token = |text| Some(Token::new(text).unwrap());
        self.on(Access::on("0.0.0.0:7401".parse().unwrap(), token(FULL), token(READ)).unwrap())
    }

    /// Claims a key.
    async fn claim(&self, principal: &str, key: &str) -> (Id, Fence) {
        let id = Id {
            scope: Scope::of(None, Some(principal), Some("pay")),
            key: Key::parse(&Format::Printable255, key).unwrap(),
        };
        let about = About {
            endpoint: "pay".to_owned(),
            principal: principal.to_owned(),
            request_id: format!("request-of-{key}"),
            ..About::default()
        };
        // A key that was freed is claimed again in place of the row that says so.
        let (known, _) = self.store.look_up(&id).await.unwrap();
        let replaces = known.map(|entry| entry.record.fence);
        let request = ClaimRequest {
            id: id.clone(),
            how: if replaces.is_some() { Claim::Reclaim } else { Claim::New },
            replaces,
            nonce: 0x5ec2_e700_5ec2_e700,
            lease: Duration::from_secs(30),
            late: Duration::from_secs(60),
            guarantee: Guarantee::Fenced,
            fingerprint: None,
            payload_hash: None,
            rotation: None,
            about: about.into(),
            terms: None,
        };
        match self.store.claim(request).await.unwrap() {
            ClaimOutcome::Won { fence, .. } => (id, fence),
            other => panic!("expected to win, found {other:?}"),
        }
    }

    async fn settled(&self, principal: &str, key: &str) -> (Id, Fence) {
        let (id, fence) = self.claim(principal, key).await;
        let headers = vec![("content-type".to_owned(), b"text/plain".to_vec())];
        let answer =
            Answer { status: 201, headers: headers.into(), body: "secret".into(), outcome_unknown: false };
        self.settle(&id, fence, Settlement::Settle(answer)).await;
        (id, fence)
    }

    async fn unknown(&self, principal: &str, key: &str) -> (Id, Fence) {
        let (id, fence) = self.claim(principal, key).await;
        self.settle(&id, fence, Settlement::Unknown).await;
        (id, fence)
    }

    async fn settle(&self, id: &Id, fence: Fence, settlement: Settlement) {
        self.store.settle(id, fence, settlement, &presets::ietf().lifetime).await.unwrap();
    }
}

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "127.0.0.1:7401")
}

async fn send(router: &Router, request: Request<Body>) -> Seen {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Seen { status: parts.status.as_u16(), headers: parts.headers, text }
}

async fn get(router: &Router, path: &str) -> Seen {
    send(router, request("GET", path).body(Body::empty()).unwrap()).await
}

async fn post(router: &Router, path: &str, body: Value) -> Seen {
    let request = request("POST", path)
        .header("content-type", "application/json")
        .header("semel-actor", "carol")
        .body(Body::from(body.to_string()));
    send(router, request.unwrap()).await
}

/// The latest row of the audit trail.
async fn latest(router: &Router) -> Value {
    get(router, "/v1/audit?limit=1").await.json()["audit"].get(0).cloned().unwrap_or_default()
}

fn ids(seen: &Seen) -> Vec<String> {
    let records = seen.json()["records"].as_array().cloned().unwrap_or_default();
    records.iter().map(|record| record["id"].as_str().unwrap_or_default().to_owned()).collect()
}

fn id_of(fence: Fence) -> String {
    fence.number.to_string()
}

fn empty() -> Value {
    json!({})
}
