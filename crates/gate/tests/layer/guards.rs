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

/// The store's time.
async fn store_time(world: &World) -> semel_contract::time::Timestamp {
    world.store.register_forms("nobody's", &[]).await.unwrap().now
}

fn uuid(n: u32) -> String {
    format!("3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e{n:02x}")
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn actions_from_the_future_are_refused_with_the_values_in_force() {
    let world = World::new();
    let app = world.with("POST /orders", presets::walker());
    let now = store_time(&world).await;
    let at = |ahead: Duration| json!({"clientGeneratedAt": now.plus(ahead).to_string()}).to_string();
    assert_eq!(post_to(&app, "/orders", &uuid(1), &at(HOUR)).await.status, 201);
    let refused = post_to(&app, "/orders", &uuid(2), &at(12 * HOUR)).await;
    let body: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!((refused.status, &body["error"]), (422, &json!("STALE_ACTION")));
    let details = &body["details"];
    assert_eq!(details["clientGeneratedAt"], json!(now.plus(12 * HOUR).to_string()));
    assert_eq!((&details["serverNow"], &details["graceHours"]), (&json!(now.to_string()), &json!(6)));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_action_much_older_than_its_sending_is_malformed_where_the_route_says_so() {
    let world = World::new();
    let mut profile = presets::walker();
    let guard = profile.guard.as_mut().unwrap();
    guard.submitted_at = Some(semel_contract::json::Pointer::parse("/clientSubmittedAt").unwrap());
    guard.bounds.submitted_gap = Some(6 * HOUR);
    let strict = world.with("POST /orders", profile);
    let lax = world.with("POST /orders", presets::walker());
    let now = store_time(&world).await;
    let body = |gap: Duration| {
        let (generated, submitted) = (now.minus(gap).to_string(), now.to_string());
        json!({"clientGeneratedAt": generated, "clientSubmittedAt": submitted}).to_string()
    };
    assert_eq!(post_to(&strict, "/orders", &uuid(1), &body(5 * HOUR)).await.status, 201);
    assert_eq!(post_to(&strict, "/orders", &uuid(2), &body(7 * HOUR)).await.status, 400);
    assert_eq!(world.runs(), 1);
    assert_eq!(post_to(&lax, "/orders", &uuid(2), &body(7 * HOUR)).await.status, 201, "it is off by default");
}

#[tokio::test]
async fn a_client_whose_clock_is_off_is_refused_or_corrected() {
    use semel_contract::staleness::Submitted;
    let day = 24 * HOUR;
    for (submitted, status) in [(Submitted::Refuse, 400), (Submitted::Correct, 201), (Submitted::Ignore, 422)]
    {
        let world = World::new();
        let mut profile = presets::walker();
        let guard = profile.guard.as_mut().unwrap();
        guard.submitted_at = Some(semel_contract::json::Pointer::parse("/clientSubmittedAt").unwrap());
        guard.bounds.submitted = submitted;
        let app = world.with("POST /orders", profile);
        let now = store_time(&world).await;
        // Made a minute before it was sent, by a clock that is ten days slow.
        let sent = now.minus(10 * day);
        let (generated, sent) = (sent.minus(Duration::from_secs(60)).to_string(), sent.to_string());
        let body = json!({"clientGeneratedAt": generated, "clientSubmittedAt": sent}).to_string();
        let seen = post_to(&app, "/orders", &uuid(1), &body).await;
        assert_eq!(seen.status, status, "{submitted:?}: {}", seen.body);
        assert_eq!(world.runs(), u32::from(status == 201));
    }
}

/// What was accepted once is too old when its record is gone: refused by a fresh look, and not run.
#[tokio::test]
async fn a_repeat_after_the_retention_is_stale() {
    let world = World::new();
    let app = world.with("POST /orders", presets::walker());
    let body = json!({"clientGeneratedAt": store_time(&world).await.to_string()}).to_string();
    assert_eq!(post_to(&app, "/orders", &uuid(1), &body).await.status, 201);
    world.clock.advance(8 * 24 * HOUR);
    world.store.sweep(100, Duration::ZERO).await.unwrap();
    let repeat = post_to(&app, "/orders", &uuid(1), &body).await;
    let answer: Value = serde_json::from_str(&repeat.body).unwrap();
    assert_eq!((repeat.status, &answer["error"], world.runs()), (422, &json!("STALE_ACTION"), 1));
    assert!(!repeat.is_replay());
}

/// A budget is spent by the key, whatever its handler says.
#[tokio::test]
async fn a_key_whose_handler_refuses_gets_nothing_back() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.limits.admission = Some(Rate { count: 2, window: HOUR });
    let app = world.with("POST /status/{status}", profile);
    assert_eq!(post_to(&app, "/status/422", "a", "{}").await.status, 422);
    assert_eq!(post_to(&app, "/status/503", "b", "{}").await.status, 503, "its key is free again");
    assert_eq!(post_to(&app, "/status/201", "c", "{}").await.status, 429);
    assert_eq!(world.runs(), 2);
    assert_eq!(post_to(&app, "/status/503", "b", "{}").await.status, 503, "it has paid");
    assert_eq!(world.runs(), 3);
}

/// A principal's budget is for all routes with the same limit; a route with another limit has its own.
#[tokio::test]
async fn a_limit_is_a_principals_not_a_routes() {
    let world = World::new();
    let limited = |count: u32| {
        let mut profile = presets::ietf();
        profile.limits.admission = Some(Rate { count, window: HOUR });
        profile
    };
    let route =
        |name: &str, pattern: &str, count: u32| Route::new(name, pattern).unwrap().profile(limited(count));
    let gate = world.gate().route(route("order", "POST /orders", 2));
    let gate = gate.route(route("refund", "POST /orders/{id}/refund", 2));
    let app = world.app(gate.route(route("large", "POST /large", 3)));
    assert_eq!(post_to(&app, "/orders", "a", "{}").await.status, 201);
    assert_eq!(post_to(&app, "/orders/1/refund", "b", "{}").await.status, 200);
    assert_eq!(post_to(&app, "/orders/1/refund", "c", "{}").await.status, 429);
    assert_eq!(post_to(&app, "/large", "d", "{}").await.status, 200);
}

#[tokio::test]
async fn an_operation_without_http_is_asked_for_no_headers() {
    let world = World::new();
    let gate = world.gate().route(Route::any()).build().unwrap();
    let route = Route::new("post", "POST /").unwrap().profile(presets::feed());
    let caller = Caller { tenant: None, principal: "alice".to_owned() };
    let once = async || {
        let operation = async |_: Grant| (StatusCode::CREATED, "done");
        gate.once(&route, &caller, "k", None, "{}", move |grant| Box::pin(operation(grant))).await
    };
    assert_eq!(once().await.map(|once| once.replayed), Ok(false));
    assert_eq!(once().await.map(|once| once.replayed), Ok(true));
}

/// S3-11: key, the client's number of its transaction, caller, endpoint, payload and operation make a result.
#[tokio::test]
async fn an_operation_without_http_keeps_the_clients_number_of_its_transaction() {
    let world = World::new();
    let gate = world.gate().build().unwrap();
    let caller = Caller { tenant: None, principal: "alice".to_owned() };
    let once = async |profile: Profile, key: &str, number: &str| {
        let route = Route::new("post", "POST /").unwrap().profile(profile);
        gate.once(&route, &caller, key, Some(number), "{}", |_: Grant| async {
            (StatusCode::CREATED, "done")
        })
        .await
    };
    for (key, profile) in [("feeds", presets::feed()), ("plain", presets::ietf())] {
        assert_eq!(once(profile.clone(), key, "tx-1").await.map(|once| once.replayed), Ok(false));
        assert_eq!(once(profile, key, "tx-1").await.map(|once| once.replayed), Ok(true));
    }
    let kept = [("x-client-tx-id".to_owned(), "tx-1".to_owned())];
    let entries = world.entries().await;
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.about.headers == kept), "{entries:?}");
    for number in ["", "tx 1/\u{e9}", "two\nlines"] {
        let refused = once(presets::feed(), "refused", number).await.unwrap_err();
        assert_eq!(refused.kind, Kind::HeaderMissing, "{number:?}");
    }
}
