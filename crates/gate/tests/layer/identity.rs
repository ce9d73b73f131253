//! Whose a key is, and where keys are needed.

use super::world::*;

#[tokio::test]
async fn identity_comes_first_and_scopes_never_meet() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let as_user = |user: &str| {
        Request::post("/orders")
            .header("x-user", user)
            .header("idempotency-key", "k")
            .body(Body::from("{}"))
            .unwrap()
    };
    let nobody = Request::post("/orders").header("idempotency-key", "k").body(Body::from("{}")).unwrap();
    assert_eq!(send(&app, as_user("alice")).await.body, "order 1: {}");
    assert_eq!(send(&app, as_user("bob")).await.body, "order 2: {}");
    let refused = send(&app, nobody).await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (401, "identity-missing", 2));
    assert!(!refused.body.contains("order"));
}

#[tokio::test]
async fn a_rotated_token_does_not_run_the_request_again() {
    let world = World::new();
    let gate = GateLayer::builder(Arc::clone(&world.store)).route(Route::new("r", "POST /orders").unwrap());
    let app = world.app(gate);
    let with = |token: &str, key: &str| {
        Request::post("/orders")
            .header("authorization", token)
            .header("idempotency-key", key)
            .body(Body::from("{}"))
            .unwrap()
    };
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    assert_eq!(send(&app, with("Bearer old", uuid)).await.status, 201);
    let rotated = send(&app, with("Bearer new", uuid)).await;
    assert_eq!((rotated.status, rotated.problem().as_str(), world.runs()), (409, "credential-changed", 1));
    assert_eq!(send(&app, with("Bearer old", "short")).await.status, 201);
    assert_eq!(
        send(&app, with("Bearer new", "short")).await.status,
        201,
        "only a UUID is nobody else's by accident"
    );
}

#[tokio::test]
async fn keys_are_required_or_optional_as_the_profile_says() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let missing = send(&app, request("/orders", None, "{}")).await;
    assert_eq!((missing.status, missing.problem().as_str(), world.runs()), (400, "key-missing", 0));
    let app = world.with("POST /orders", presets::stripe());
    for _ in 0..2 {
        let passed = send(&app, request("/orders", None, "{}")).await;
        assert_eq!(
            (passed.status, passed.header("semel-guarantee"), passed.header("semel-retention")),
            (201, "none", "")
        );
    }
    assert_eq!(world.runs(), 2);
    let replayed = [post_to(&app, "/orders", "k", "{}").await, post_to(&app, "/orders", "k", "{}").await];
    assert_eq!((replayed[1].header("idempotent-replayed"), world.runs()), ("true", 3));
}

#[tokio::test]
async fn a_request_without_a_key_is_given_one_where_the_profile_says_so() {
    let world = World::new();
    let app = world.with("POST /orders", presets::mesh());
    for _ in 0..2 {
        assert_eq!(send(&app, request("/orders", None, "{}")).await.header("semel-guarantee"), "fenced");
    }
    let entries = world.entries().await;
    assert_eq!((entries.len(), world.runs()), (2, 2), "each is a request of its own, on record");
    assert!(entries.iter().all(|entry| entry.id.key.as_str().len() == 26), "under a ULID");
    let body = r#"{"client_message_id":"m-1"}"#;
    send(&app, request("/orders", None, body)).await;
    let duplicate = send(&app, request("/orders", None, body)).await;
    assert_eq!((duplicate.status, duplicate.is_replay(), world.runs()), (200, true, 3));
}

/// A sender that looks at the body alone sees that it was known already.
#[tokio::test]
async fn a_duplicate_says_so_in_its_body() {
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /orders").unwrap().profile(presets::mesh()));
    let answer = async || ([("content-type", "application/json")], r#"{ "id": "m-1" }"#);
    let app = Router::new().route("/orders", post(answer)).layer(gate.build().unwrap());
    let body = r#"{"client_message_id":"m-1"}"#;
    assert_eq!(send(&app, request("/orders", None, body)).await.body, r#"{ "id": "m-1" }"#);
    let again = send(&app, request("/orders", None, body)).await;
    let said: Value = serde_json::from_str(&again.body).unwrap();
    assert_eq!((said, again.is_replay()), (json!({"id": "m-1", "duplicate": true}), true));
}

/// An identity is asked every time: what it said of the last request is not what it says of this one.
#[tokio::test]
async fn a_caller_that_was_shut_out_gets_no_replay() {
    #[derive(Clone, Default)]
    struct Open(Arc<std::sync::atomic::AtomicBool>);
    impl semel_gate::Identify for Open {
        fn identify<'a>(&'a self, _: &'a http::request::Parts) -> semel_gate::Identified<'a> {
            let caller = Caller { tenant: None, principal: "alice".to_owned() };
            let is_shut = self.0.load(Ordering::SeqCst);
            let verified = match is_shut {
                true => Err(semel_contract::problem::Problem::from(Kind::IdentityMissing)),
                false => Ok(semel_gate::Verified::new(caller)),
            };
            Box::pin(std::future::ready(verified))
        }
    }
    let (world, open) = (World::new(), Open::default());
    let app = world.app(world.gate().identity(open.clone()).route(Route::any()));
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 201);
    open.0.store(true, Ordering::SeqCst);
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 401, "neither run nor replayed");
    open.0.store(false, Ordering::SeqCst);
    assert!(post_to(&app, "/orders", "k", "{}").await.is_replay());
}

/// Bytes that are no text count as they are: as text, both of these would be the same.
#[tokio::test]
async fn bodies_of_bytes_are_told_apart() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::new("r", "POST /slow").unwrap()));
    world.go.add_permits(2);
    let sent = |bytes: &'static [u8]| {
        let request = Request::post("/slow").header("x-user", "alice").header("idempotency-key", "k");
        request.header("content-type", "application/octet-stream").body(Body::from(bytes)).unwrap()
    };
    assert_eq!(send(&app, sent(b"\xff\x00a")).await.status, 200);
    let other = send(&app, sent(b"\xfe\x00a")).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "fingerprint-mismatch"));
    assert!(send(&app, sent(b"\xff\x00a")).await.is_replay());
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_replay_tells_the_level_of_its_own_claim() {
    let world = World::new();
    post_to(&world.with("POST /orders", presets::ietf()), "/orders", "k", "{}").await;
    let atomic = world.app(world.gate().route(Route::new("r", "POST /orders").unwrap().atomic()));
    assert_eq!(post_to(&atomic, "/orders", "k", "{}").await.header("semel-guarantee"), "fenced");
}

#[tokio::test]
async fn routes_that_are_not_named_are_left_alone() {
    let world = World::new();
    let app = world.with("POST /other", presets::ietf());
    for run in 1..=2 {
        assert_eq!(post_to(&app, "/orders", "k", "{}").await.body, format!("order {run}: {{}}"));
    }
}

#[tokio::test]
async fn a_renamed_endpoint_knows_its_keys() {
    let world = World::new();
    let named = |name: &str| Route::new(name, "POST /orders").unwrap();
    let old = world.app(world.gate().route(named("place-order")));
    post_to(&old, "/orders", "k", "{}").await;
    let forgetful = world.app(world.gate().route(named("create-order")));
    assert!(!post_to(&forgetful, "/orders", "other", "{}").await.is_replay());
    let renamed = world.app(
        world.gate().route(named("create-order").former_names(["buy".to_owned(), "place-order".to_owned()])),
    );
    assert!(post_to(&renamed, "/orders", "k", "{}").await.is_replay(), "known under the former name");
    let altered = post_to(&renamed, "/orders", "k", r#"{"a":1}"#).await;
    assert_eq!((altered.status, altered.problem().as_str()), (422, "fingerprint-mismatch"));
    assert!(post_to(&renamed, "/orders", "other", "{}").await.is_replay(), "known under the new name");
    assert_eq!(world.runs(), 2);
    assert_eq!(post_to(&renamed, "/orders", "new", "{}").await.status, 201);
}

#[tokio::test]
async fn a_secret_keys_fingerprints_and_may_change() {
    let world = World::new();
    let with = |secrets: &[&str]| {
        let secrets =
            secrets.iter().map(|secret| semel_contract::fingerprint::Secret::new(secret.as_bytes()));
        world.app(world.gate().route(Route::new("r", "POST /orders").unwrap()).fingerprint_secrets(secrets))
    };
    post_to(&with(&[]), "/orders", "plain", "{}").await;
    post_to(&with(&["one"]), "/orders", "keyed", "{}").await;
    let prints: Vec<_> =
        world.entries().await.iter().map(|entry| entry.record.fingerprint.unwrap()).collect();
    assert_ne!(prints[0].bytes, prints[1].bytes, "the secret counts");
    for key in ["plain", "keyed"] {
        assert!(post_to(&with(&["two", "one"]), "/orders", key, "{}").await.is_replay(), "{key}");
        assert_eq!(post_to(&with(&["two", "one"]), "/orders", key, "[]").await.status, 422);
    }
}

#[tokio::test]
async fn a_route_may_have_an_identity_of_its_own() {
    let world = World::new();
    let everybody = "shared:registration".parse::<Identity>().unwrap();
    let gate = world
        .gate()
        .route(Route::new("register", "POST /orders").unwrap().identity(everybody))
        .route(Route::new("other", "POST /status/{status}").unwrap());
    let app = world.app(gate);
    let anonymous = |path: &str, key: &str| {
        let mut request = request(path, Some(key), "{}");
        request.headers_mut().remove("x-user");
        request
    };
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    assert_eq!(send(&app, anonymous("/orders", uuid)).await.status, 201);
    assert!(send(&app, anonymous("/orders", uuid)).await.is_replay());
    assert_eq!(send(&app, anonymous("/orders", "guessable")).await.problem(), "key-too-weak");
    assert_eq!(send(&app, anonymous("/status/200", uuid)).await.status, 401);
    assert_eq!(world.runs(), 1);
}
