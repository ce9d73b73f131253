//! How long the pure part of a request takes: reading, fingerprinting, deciding.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use semel_contract::decide::{Arrival, decide};
use semel_contract::fingerprint::{Fingerprint, Parts, Secret, Version};
use semel_contract::profile::presets;
use semel_contract::record::{Fence, Guarantee, Record, State};
use semel_contract::request::Body;
use semel_contract::scope::Scope;
use semel_contract::time::Timestamp;

/// 200 bytes, as an order might be.
const ORDER: &[u8] = br#"{"customer":"c-10482","items":[{"sku":"A-17","quantity":2,"price":1250},{"sku":"B-03","quantity":1,"price":499.5}],"currency":"EUR","note":"leave at the door","express":true,"reference":"2026-000173"}"#;

fn fingerprints(c: &mut Criterion) {
    assert_eq!(ORDER.len(), 200);
    let recipe = presets::ietf().fingerprint.expect("the default looks at the request");
    let parts = Parts {
        method: "POST",
        route: "create-order",
        params: &[("id", "7")],
        query: "",
        principal: "alice",
    };
    let secret = Secret::new(&[7; 32]);
    let mut bench = |name: &str, content_type: &'static [u8], secret: Option<&Secret>| {
        c.bench_function(name, |b| {
            b.iter(|| {
                let body = Body::new(Some(content_type), black_box(ORDER));
                recipe.fingerprint(&parts, &recipe.form(&body).expect("it is JSON"), secret)
            });
        });
    };
    bench("fingerprint 200 B of JSON", b"application/json", None);
    bench("fingerprint 200 B of JSON, keyed", b"application/json", Some(&secret));
    bench("fingerprint 200 B raw", b"text/plain", None);
    c.bench_function("scope", |b| b.iter(|| Scope::of(None, Some(black_box("alice")), Some("create-order"))));
}

fn decisions(c: &mut Criterion) {
    let profile = presets::ietf();
    let own = [Fingerprint { version: Version::Plain, bytes: [1; 32] }];
    let arrival = Arrival { fingerprints: &own, first_sent: None };
    let now = Timestamp::from_millis(1_800_000_000_000);
    let record = Record {
        state: State::Settled,
        guarantee: Guarantee::Fenced,
        fence: Fence { number: 1, nonce: 1 },
        fingerprint: Some(own[0]),
        payload_hash: None,
        lease_until: now,
        created_at: now,
        expires_at: Some(Timestamp::from_millis(now.millis() + 1)),
    };
    c.bench_function("decide", |b| {
        b.iter(|| decide(&profile, black_box(&arrival), Some(black_box(&record)), now))
    });
    let headers = [("Idempotency-Key", "\"3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f\"")];
    c.bench_function("read key", |b| {
        b.iter(|| profile.key.read(black_box(headers.as_slice()), &Body::new(None, b"")));
    });
}

criterion_group!(benches, fingerprints, decisions);
criterion_main!(benches);
