//! Explain and the gate say the same of a request: random configurations, random requests, the gate itself in this process.

use std::sync::Arc;

use axum::body::Body;
use http::Request as HttpRequest;
use semel_contract::key::{Format, Key};
use semel_contract::record::Guarantee;
use semel_store::limits::{Fallback, MemoryLimiter};
use semel_store::memory::MemoryStore;
use semel_store::{ClaimStore, Filter};
use tower::{Layer, ServiceExt};

use super::reading::Reading;
use super::request::Request;
use crate::config::{Config, target};
use crate::serve::{announce, plan};

/// Configurations, and requests to each.
const CONFIGURATIONS: u64 = 250;
const REQUESTS: u64 = 24;

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn maybe(&mut self, text: &str) -> String {
        if self.below(3) == 0 { text.to_owned() } else { String::new() }
    }
}

const IDENTITIES: [&str; 5] = ["authorization", "cookie:sid", "trusted:X-User", "shared:all", "shared:kiosk"];
const KEYS: [&str; 7] = [
    "8e03978e-40d5-43e8-bc93-6894a57f9324",
    "\"8e03978e-40d5-43e8-bc93-6894a57f9324\"",
    "k1",
    "\"unclosed",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "",
    "with space",
];

fn settings(random: &mut Random) -> String {
    let mut text = String::new();
    let profile = random.one(&["ietf", "stripe", "agents", "scores", "mesh", "feed"]);
    text.push_str(&random.maybe(&format!("profile = \"{profile}\"\n")));
    let presence = random.one(&["required", "optional", "mint"]);
    text.push_str(&random.maybe(&format!("key = \"{presence}\"\n")));
    let sources = random.one(&["[\"header:X-Key\"]", "[\"json:/id\"]", "[\"header:X-Key\", \"json:/id\"]"]);
    text.push_str(&random.maybe(&format!("key_sources = {sources}\n")));
    let format = random.one(&["uuid4-lower", "uuid", "token255", "ulid"]);
    text.push_str(&random.maybe(&format!("key_format = \"{format}\"\n")));
    let syntax = random.one(&["bare", "sf-string", "both"]);
    text.push_str(&random.maybe(&format!("key_syntax = \"{syntax}\"\n")));
    text.push_str(&random.maybe("max_body = \"16B\"\n"));
    text.push_str(&random.maybe("fingerprint = { include = [\"/id\"] }\n"));
    text
}

fn configuration(random: &mut Random) -> String {
    let identity = random.one(&IDENTITIES);
    let mut text = random.maybe(&format!("identity = \"{identity}\"\n"));
    text.push_str(&format!("[defaults]\n{}", settings(random)));
    for (name, pattern) in [("a", "POST /a"), ("b", "* /b/{id}"), ("rest", "PUT|PATCH /{path*}")] {
        if random.below(2) == 0 {
            text.push_str(&format!("[route.{name}]\nmatch = \"{pattern}\"\n{}", settings(random)));
            let identity = random.one(&IDENTITIES);
            text.push_str(&random.maybe(&format!("identity = \"{identity}\"\n")));
        }
    }
    text
}

fn request(random: &mut Random) -> Request {
    let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
    let mut header = |name: &str, value: &str| headers.push((name.to_owned(), value.as_bytes().to_vec()));
    header("Host", random.one(&["shop.example", "SHOP.example:80", "127.0.0.1:7400"]));
    for name in ["Idempotency-Key", "X-Idempotency-Key", "X-Key"] {
        if random.below(3) == 0 {
            header(name, random.one(&KEYS));
        }
    }
    for (name, value) in [
        ("Authorization", "Bearer me"),
        ("Cookie", "sid=1"),
        ("X-User", "me"),
        ("X-Client-Tx-Id", "t1"),
        ("Content-Type", "application/json"),
        ("Content-Type", "text/plain"),
    ] {
        if random.below(3) > 0 {
            header(name, value);
        }
    }
    let body = random.one(&[
        "",
        "{}",
        "{\"id\":\"k1\"}",
        "{\"id\":7}",
        "{\"id\":\"k1\",\"more\":1234567}",
        "not json",
    ]);
    Request {
        method: random.one(&["POST", "PUT", "PATCH", "GET", "DELETE"]).to_owned(),
        path: random.one(&["/a", "/b/7", "/b/7?x=1", "/c/d", "/"]).to_owned(),
        headers,
        body: body.as_bytes().to_vec(),
    }
}

/// What the gate made of a request: its status, its problem, its guarantee, and the one record that it left.
struct Made {
    status: u16,
    problem: Option<String>,
    guarantee: Option<String>,
    record: Option<(String, String, Option<String>)>,
}

async fn ask_gate(config: &Config, request: &Request) -> Made {
    let records = Arc::new(MemoryStore::new());
    let limiter = Arc::new(MemoryLimiter::default());
    let store: Arc<dyn ClaimStore> = records.clone();
    let planned = plan::plan_on(config, false, store, Fallback::new(limiter.clone(), limiter));
    let planned = planned.unwrap_or_else(|stop| panic!("{}", stop.message));
    let inner = tower::service_fn(|_: HttpRequest<Body>| async {
        Ok::<_, std::convert::Infallible>(
            http::Response::builder().status(201).body(Body::from("made")).unwrap(),
        )
    });
    let mut asked = HttpRequest::builder().method(request.method.as_str()).uri(&request.path);
    for (name, value) in &request.headers {
        asked = asked.header(name, value.as_slice());
    }
    let asked = asked.header("content-length", request.body.len());
    let mut asked = asked.body(Body::from(request.body.clone())).expect("a request");
    asked
        .extensions_mut()
        .insert(axum::extract::ConnectInfo(std::net::SocketAddr::from(([127, 0, 0, 1], 1))));
    let answer = planned.gate.layer(inner).oneshot(asked).await.unwrap_or_else(|never| match never {});
    let header = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    let page =
        header("link").and_then(|link| Some(link.split_once("problems/")?.1.split_once('>')?.0.to_owned()));
    let kept = records.list(&Filter { limit: 2, ..Filter::default() }).await.expect("a list");
    assert!(kept.len() < 2);
    let record = kept.first().map(|entry| {
        let fingerprint = entry.record.fingerprint.as_ref().map(ToString::to_string);
        (entry.id.scope.to_string(), entry.id.key.as_str().to_owned(), fingerprint)
    });
    Made {
        status: answer.status().as_u16(),
        problem: page.filter(|_| answer.status() != 201),
        guarantee: header("semel-guarantee"),
        record,
    }
}

#[tokio::test]
async fn explain_and_the_gate_say_the_same() {
    let (mut keyed, mut refused, mut passed) = (0, 0, 0);
    for seed in 0..CONFIGURATIONS {
        let mut random = Random(seed);
        let text = configuration(&mut random);
        let mut config =
            Config::of_text(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        if config
            .routes
            .iter()
            .map(|route| &route.profile)
            .chain([&config.defaults])
            .any(|profile| !profile.unsafeties().is_empty())
        {
            continue;
        }
        config.gate.set_upstream(target("http://127.0.0.1:9").expect("a target"));
        let said = announce::protected(&config, false);
        for _ in 0..REQUESTS {
            let request = request(&mut random);
            let about = format!("seed {seed}\n{text}\n{request:?}");
            let explained = Reading::of(&config, None, &request).json();
            let made = ask_gate(&config, &request).await;
            let problem = explained["problem"]["type"]
                .as_str()
                .map(|uri| uri.rsplit(':').next().unwrap_or(uri).to_owned());
            assert_eq!(problem, made.problem, "{about}\n{explained:#}");
            let text_of = |name: &str| explained[name].as_str().map(str::to_owned);
            match (&problem, text_of("key")) {
                (Some(_), _) => {
                    refused += 1;
                    assert!(made.status >= 400 && made.record.is_none(), "{about}");
                }
                (None, Some(key)) => {
                    keyed += 1;
                    assert_eq!(made.guarantee.as_deref(), Some("fenced"), "{about}");
                    let expected = (text_of("scope").expect("a scope"), key, text_of("fingerprint"));
                    assert_eq!(made.record, Some(expected), "{about}\n{explained:#}");
                    let name = text_of("route").unwrap_or_default();
                    assert!(
                        config.protects_every_path()
                            || said.iter().any(|line| line.contains(&format!(" as {name} "))),
                        "{about}: {said:?}"
                    );
                }
                (None, None) => {
                    passed += 1;
                    let is_minted = made.record.is_some();
                    assert_eq!(
                        is_minted,
                        explained["note"] == "it has no key: one would be made for it",
                        "{about}"
                    );
                    assert!(
                        is_minted || made.guarantee.is_none_or(|level| level == Guarantee::None.name()),
                        "{about}"
                    );
                }
            }
        }
    }
    assert!(
        keyed > 100 && refused > 100 && passed > 100,
        "{keyed} keyed, {refused} refused, {passed} passed"
    );
    assert!(Key::parse(&Format::Uuid4Lower, KEYS[0]).is_ok(), "some keys are good enough for everybody");
}
