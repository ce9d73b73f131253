//! A store that was restored from a backup: what it may have lost is not run again.

use semel_contract::profile::Lifetime;
use semel_contract::restore::Undated;
use semel_contract::time::Timestamp;
use semel_store::{AdminStore, Resolution, Resolved};

use super::world::*;

const HOUR: Duration = Duration::from_secs(3600);

async fn now(world: &World) -> Timestamp {
    world.store.clock().await.unwrap().now
}

async fn restored(world: &World, undated: Undated) {
    let backup_at = now(world).await.minus(HOUR);
    world.store.restored(backup_at, undated, "carol", "disk died").await.unwrap();
}

fn dated(key: &str, first_sent: Timestamp) -> Request<Body> {
    let mut request = request("/orders", Some(key), "{}");
    request.headers_mut().insert("idempotency-first-sent", first_sent.to_string().parse().unwrap());
    request
}

#[tokio::test]
async fn a_key_whose_record_may_be_lost_is_unknown_and_not_run() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let kept = post_to(&app, "/orders", "kept", "{}").await;
    restored(&world, Undated::Unknown).await;
    let start = now(&world).await;
    world.clock.advance(HOUR);
    assert_eq!(post_to(&app, "/orders", "kept", "{}").await.body, kept.body, "what is there is replayed");
    for (key, sent) in [("lost", start.minus(HOUR / 2)), ("retried", start.minus(2 * HOUR))] {
        let seen = send(&app, dated(key, sent)).await;
        assert_eq!((seen.status, seen.problem().as_str()), (409, "outcome-unknown"), "{key}");
    }
    let seen = post_to(&app, "/orders", "undated", "{}").await;
    assert_eq!((seen.status, seen.problem().as_str()), (409, "outcome-unknown"));
    assert_eq!(world.runs(), 1, "nothing is run");
    assert_eq!(send(&app, dated("fresh", start.plus(HOUR / 2))).await.status, 201);
    let in_key = format!("{:012x}", start.plus(HOUR / 2).millis());
    let uuid = format!("{}-{}-7cc3-98c4-dc0c0c07398f", &in_key[..8], &in_key[8..]);
    assert_eq!(post_to(&app, "/orders", &uuid, "{}").await.status, 201, "the time in a key counts too");
    world.clock.advance(26 * HOUR);
    assert_eq!(post_to(&app, "/orders", "later", "{}").await.status, 201, "what was lost would have expired");
}

#[tokio::test]
async fn a_lost_key_that_is_resolved_runs_and_is_not_lost_again() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    restored(&world, Undated::Unknown).await;
    world.clock.advance(HOUR);
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 409);
    let entry = world.entries().await.remove(0);
    assert_eq!(entry.record.state.name(), "unknown", "an operator finds it");
    world.clock.advance(2 * HOUR);
    let lifetime = Lifetime { released: Some(24 * HOUR), ..presets::ietf().lifetime };
    let resolved = world.store.resolve(
        &entry.id,
        entry.record.fence,
        Resolution::NotApplied,
        &lifetime,
        "carol",
        "not in the books",
    );
    assert_eq!(resolved.await, Ok(Resolved::Done));
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 201);
    assert_eq!(world.runs(), 1);
    assert!(post_to(&app, "/orders", "k", "{}").await.is_replay());
}

struct NotApplied;

impl Probe for NotApplied {
    fn ask<'a>(&'a self, _: &'a Entry) -> std::pin::Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(std::future::ready(Finding::NotApplied))
    }
}

#[tokio::test]
async fn a_probe_frees_a_lost_key_for_good() {
    let world = World::new();
    let profile = Profile { on_unknown: OnUnknown::Probe, ..presets::ietf() };
    let gate = world
        .gate()
        .probe(NotApplied)
        .route(Route::new("r", "POST /orders").unwrap().profile(profile).deadline(HOUR / 4));
    let app = world.app(gate);
    restored(&world, Undated::Unknown).await;
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 409, "it could still take effect");
    world.clock.advance(HOUR);
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_operator_may_trust_undated_keys() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    restored(&world, Undated::Trusted).await;
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 201);
    let sent = now(&world).await.minus(HOUR / 2);
    assert_eq!(send(&app, dated("lost", sent)).await.status, 409);
}

#[tokio::test]
async fn a_minted_key_is_never_lost() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.key.presence = semel_contract::key::Presence::Mint;
    let app = world.with("POST /orders", profile);
    restored(&world, Undated::Unknown).await;
    assert_eq!(send(&app, request("/orders", None, "{}")).await.status, 201);
}

#[tokio::test]
async fn stale_actions_are_counted_for_operators() {
    let world = World::new();
    let app = world.with("POST /orders", presets::walker());
    let old = now(&world).await.minus(8 * 24 * HOUR);
    let body = json!({"clientGeneratedAt": old.to_string()}).to_string();
    for n in 0..3 {
        let key = format!("3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e{n:02x}");
        assert_eq!(post_to(&app, "/orders", &key, &body).await.status, 422);
    }
    let rows = world.store.stale(None, 10).await.unwrap();
    assert_eq!((rows.len(), rows[0].principal.as_str(), rows[0].count), (1, "alice", 3));
}

#[tokio::test]
async fn a_key_whose_record_may_be_lost_is_not_sealed() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let seal = async |key: &str, first_sent: Option<Timestamp>| {
        let path = format!("/.well-known/semel/keys/{key}/seal?endpoint=r");
        let mut asked = request(&path, None, "");
        if let Some(sent) = first_sent {
            asked.headers_mut().insert("idempotency-first-sent", sent.to_string().parse().unwrap());
        }
        let seen = send(&app, asked).await;
        let told: Value = serde_json::from_str(&seen.body).unwrap();
        (told["sealed"].clone(), told["state"].clone())
    };
    restored(&world, Undated::Unknown).await;
    let start = now(&world).await;
    world.clock.advance(HOUR);
    let unknown = (json!(false), json!("unknown"));
    assert_eq!(seal("k", None).await, unknown, "a requeue under another key could do it twice");
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.problem(), "outcome-unknown");
    let sealed = (json!(true), json!("sealed"));
    assert_eq!(seal("fresh", Some(start.plus(HOUR / 2))).await, sealed, "surely after the restore");
    world.clock.advance(27 * HOUR);
    assert_eq!(seal("later", None).await, sealed, "what was lost would have expired");
    assert_eq!(world.runs(), 0);
}
