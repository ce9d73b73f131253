//! The guard and the limiters.

use super::world::*;

#[tokio::test]
async fn stale_actions_are_refused_and_recorded() {
    let world = World::new();
    let app = world.with("POST /orders", presets::walker());
    let (_, now) = world
        .store
        .look_up(&semel_store::Id {
            scope: semel_contract::scope::Scope::of(None, None, None),
            key: semel_contract::key::Key::parse(&semel_contract::key::Format::Token255, "x").unwrap(),
        })
        .await
        .unwrap();
    let uuid = |n: u32| format!("3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e{n:02x}");
    let at = |age: Duration| json!({"clientGeneratedAt": now.minus(age).to_string()}).to_string();
    let day = Duration::from_secs(86_400);
    let hour = Duration::from_secs(3600);
    assert_eq!(post_to(&app, "/orders", &uuid(1), &at(7 * day + 5 * hour)).await.status, 201);
    let stale = post_to(&app, "/orders", &uuid(2), &at(8 * day)).await;
    let body: Value = serde_json::from_str(&stale.body).unwrap();
    assert_eq!(
        (stale.status, &body["error"], &body["details"]["ageDays"]),
        (422, &json!("STALE_ACTION"), &json!(8))
    );
    let again = post_to(&app, "/orders", &uuid(2), &at(8 * day)).await;
    assert_eq!(
        (again.status, again.is_replay(), &again.body),
        (422, true, &stale.body),
        "the refusal is on record"
    );
    for bad in ["{}", r#"{"clientGeneratedAt":"yesterday"}"#, r#"{"clientGeneratedAt":5}"#] {
        assert_eq!(post_to(&app, "/orders", &uuid(3), bad).await.status, 400);
    }
    assert_eq!(world.runs(), 1);
    world.clock.advance(3 * hour);
    let replay = post_to(&app, "/orders", &uuid(1), &at(7 * day + 5 * hour)).await;
    assert_eq!(
        (replay.status, replay.is_replay()),
        (201, true),
        "what was accepted stays accepted, however old it grows"
    );
}

#[tokio::test]
async fn required_headers_and_times_are_kept_with_the_record() {
    let world = World::new();
    let app = world.with("POST /orders", presets::feed());
    let mut sent = request("/orders", Some("k"), "{}");
    assert_eq!(send(&app, request("/orders", Some("k"), "{}")).await.status, 400);
    sent.headers_mut().insert("x-client-tx-id", "tx-1".parse().unwrap());
    assert_eq!(send(&app, sent).await.status, 201);
    assert_eq!(world.entries().await[0].about.headers, [("x-client-tx-id".to_owned(), "tx-1".to_owned())]);
}

#[tokio::test]
async fn over_the_request_limit_known_keys_are_still_answered() {
    let rate = Rate { count: 2, window: Duration::from_secs(60) };
    let mut profile = presets::ietf();
    profile.limits.request = Some(rate);
    let world = World::new();
    let app = world.with("POST /orders", profile.clone());
    for _ in 0..4 {
        assert_eq!(
            post_to(&app, "/orders", "k", "{}").await.body,
            "order 1: {}",
            "a replay is never refused"
        );
    }
    let refused = post_to(&app, "/orders", "new", "{}").await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (429, "request-limited", 1));
    assert!(refused.header("ratelimit").starts_with("\"request\";r=0;t="), "{}", refused.header("ratelimit"));
    assert_eq!(refused.header("ratelimit-policy"), "\"request\";q=2;w=60");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    profile.limits.request_refuses_known = true;
    let app = World::new();
    let strict = app.with("POST /orders", profile);
    let statuses = [(); 3].map(|()| post_to(&strict, "/orders", "k", "{}"));
    let mut seen = Vec::new();
    for status in statuses {
        seen.push(status.await.status);
    }
    assert_eq!(seen, [201, 201, 429], "unless the route asks for it");
}

#[tokio::test]
async fn new_keys_pay_once_and_known_keys_never() {
    let world = World::new();
    let mut profile = presets::feed();
    profile.key.require_headers.clear();
    profile.limits.admission = Some(Rate { count: 2, window: Duration::from_secs(3600) });
    let app = world.with("POST /orders", profile);
    for key in ["a", "b", "a", "b", "a"] {
        assert_eq!(post_to(&app, "/orders", key, "{}").await.status, 201);
    }
    let refused = post_to(&app, "/orders", "c", "{}").await;
    assert_eq!((refused.status, world.runs()), (429, 2));
    assert_eq!(post_to(&app, "/orders", "b", "{}").await.status, 201, "the old keys are still answered");
    let other = Request::post("/orders")
        .header("x-user", "bob")
        .header("idempotency-key", "c")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(send(&app, other).await.status, 201, "another principal has a budget of its own");
    world.clock.advance(Duration::from_secs(2 * 3600));
    assert_eq!(post_to(&app, "/orders", "c", "{}").await.status, 201);
}
