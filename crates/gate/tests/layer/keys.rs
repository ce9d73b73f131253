//! The keys API: the state of a key for its own principal, and sealing.

use super::world::*;

const API: &str = "/.well-known/semel/keys";

fn ask(user: &str, method: &str, path: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(format!("{API}{path}")).header("x-user", user);
    request.body(Body::empty()).unwrap()
}

fn read(seen: &Seen) -> Value {
    serde_json::from_str(&seen.body).unwrap()
}

#[tokio::test]
async fn a_keys_state_is_told_to_its_own_principal_only() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let unused = send(&app, ask("alice", "GET", "/k?endpoint=r")).await;
    assert_eq!((unused.status, unused.problem().as_str()), (404, "key-unknown"));
    post_to(&app, "/orders", "k", "{}").await;
    let known = send(&app, ask("alice", "GET", "/k?endpoint=r")).await;
    let told = read(&known);
    assert_eq!((known.status, &told["state"], &told["status"]), (200, &json!("settled"), &json!(201)));
    assert_eq!(told["state_name"], "completed", "as the profile calls it");
    assert_eq!(known.header("cache-control"), "no-store");
    assert!(told.get("response").is_none(), "the state alone is told");
    assert_eq!(send(&app, ask("mallory", "GET", "/k?endpoint=r")).await.status, 404);
    let mut nobody = ask("", "GET", "/k?endpoint=r");
    nobody.headers_mut().remove("x-user");
    assert_eq!(send(&app, nobody).await.status, 401);
    assert_eq!(world.runs(), 1, "asking runs nothing");
}

#[tokio::test]
async fn a_sealed_key_is_refused_when_it_arrives_late() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let sealed = send(&app, ask("alice", "POST", "/k/seal?endpoint=r")).await;
    assert_eq!((sealed.status, &read(&sealed)["sealed"]), (200, &json!(true)));
    let again = send(&app, ask("alice", "POST", "/k/seal?endpoint=r")).await;
    assert_eq!((again.status, &read(&again)["state"]), (200, &json!("sealed")));
    let late = post_to(&app, "/orders", "k", "{}").await;
    assert_eq!((late.status, late.problem().as_str(), world.runs()), (409, "key-sealed", 0));
    assert_eq!(post_to(&app, "/orders", "other", "{}").await.status, 201);
}

#[tokio::test]
async fn sealing_a_used_key_returns_its_record() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    post_to(&app, "/orders", "k", "{}").await;
    let told = read(&send(&app, ask("alice", "POST", "/k/seal?endpoint=r")).await);
    assert_eq!((&told["sealed"], &told["state"]), (&json!(false), &json!("settled")));
    assert_eq!(
        (&told["response"]["status"], &told["response"]["body"]),
        (&json!(201), &json!("order 1: {}"))
    );
    assert!(post_to(&app, "/orders", "k", "{}").await.is_replay(), "it still replays");
}

#[tokio::test]
async fn the_endpoint_must_be_said_where_there_are_several() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    post_to(&app, "/orders", "k", "{}").await;
    assert_eq!(send(&app, ask("alice", "GET", "/k")).await.status, 400);
    assert_eq!(send(&app, ask("alice", "GET", "/k?endpoint=POST%20/orders")).await.status, 200);
    assert_eq!(send(&app, ask("alice", "GET", "/k?endpoint=POST+/other")).await.status, 404);
    let wrong = send(&app, ask("alice", "DELETE", "/k")).await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, "GET"));
}

#[tokio::test]
async fn a_key_known_by_a_former_name_is_neither_sealed_nor_unknown() {
    let world = World::new();
    let old = world.app(world.gate().route(Route::new("old", "POST /orders").unwrap()));
    post_to(&old, "/orders", "k", "{}").await;
    let renamed = Route::new("new", "POST /orders").unwrap().former_names(["old".to_owned()]);
    let app = world.app(world.gate().route(renamed));
    let told = read(&send(&app, ask("alice", "POST", "/k/seal?endpoint=new")).await);
    assert_eq!((&told["sealed"], &told["state"]), (&json!(false), &json!("settled")));
    assert_eq!(send(&app, ask("alice", "GET", "/k?endpoint=new")).await.status, 200);
    assert!(post_to(&app, "/orders", "k", "{}").await.is_replay());
}

/// Made-up principals do not fill the store with keys that were never used.
#[tokio::test]
async fn unused_keys_are_sealed_within_a_budget_of_all_principals() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let mut last = 200;
    let mut sealed = 0;
    for number in 0..2_000 {
        let seen = send(&app, ask(&format!("u{number}"), "POST", "/k/seal?endpoint=r")).await;
        last = seen.status;
        if last != 200 {
            assert_eq!((seen.status, seen.problem().as_str()), (429, "admission-limited"));
            assert_ne!(seen.header("retry-after"), "");
            break;
        }
        sealed += 1;
    }
    assert_eq!(last, 429, "{sealed} principals sealed a key each");
    // What is used already costs nothing to tell.
    let again = send(&app, ask("u1", "POST", "/k/seal?endpoint=r")).await;
    assert_eq!((again.status, &read(&again)["state"]), (200, &json!("sealed")));
    assert_eq!(post_to(&app, "/orders", "other", "{}").await.status, 201, "requests are not charged for it");
}

#[tokio::test]
async fn sealing_an_unused_key_is_charged_like_a_new_key() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.limits.admission = Some(Rate { count: 2, window: Duration::from_secs(3600) });
    let app = world.with("POST /orders", profile);
    for (key, status) in [("a", 200), ("b", 200), ("c", 429), ("a", 200)] {
        let seen = send(&app, ask("alice", "POST", &format!("/{key}/seal?endpoint=r"))).await;
        assert_eq!(seen.status, status, "{key}: {}", seen.body);
    }
}

/// Under a gate that was replaced nobody can say that nothing happened: its successor may have run it.
#[tokio::test]
async fn a_closed_gate_seals_nothing() {
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /orders").unwrap()).build().unwrap();
    let app = world.behind(gate.clone());
    gate.close();
    let seen = send(&app, ask("alice", "POST", "/k/seal?endpoint=r")).await;
    assert_eq!((seen.status, seen.header("x-should-retry")), (503, "true"));
}

/// A gate that lets everything pass cannot say that a key is cancelled: whoever believed it would send the request anew.
#[tokio::test]
async fn a_gate_that_observes_seals_nothing() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::new("r", "POST /orders").unwrap()).observe());
    let seal = async |key: &str| send(&app, ask("alice", "POST", &format!("/{key}/seal?endpoint=r"))).await;
    let unused = seal("k").await;
    assert_eq!((unused.status, unused.problem().as_str()), (404, "key-unknown"), "{unused:?}");
    assert!(unused.body.contains("only observes"), "{unused:?}");
    assert_eq!(post_to(&app, "/orders", "k", "{}").await.status, 201, "it would not have held it up");
    let used = seal("k").await;
    assert!(
        used.status == 200 && used.body.contains(r#""sealed":false"#),
        "what was noted is told: {used:?}"
    );
}

#[tokio::test]
async fn a_key_in_a_shared_scope_is_still_its_own_principals() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.scope.principal = false;
    let recipe = profile.fingerprint.as_mut().unwrap();
    recipe.inputs.push(semel_contract::fingerprint::Input::Principal);
    let gate = world.gate().identity(semel_gate::CallerExtension);
    let app = world.app(gate.route(Route::new("r", "POST /orders").unwrap().profile(profile)));
    let by = |mut request: Request<Body>, principal: &str| {
        let caller = Caller { tenant: Some("acme".to_owned()), principal: principal.to_owned() };
        request.extensions_mut().insert(caller);
        request
    };
    assert_eq!(send(&app, by(request("/orders", Some("k"), "{}"), "alice")).await.status, 201);
    for (method, path) in [("GET", "/k?endpoint=r"), ("POST", "/k/seal?endpoint=r")] {
        let other = send(&app, by(ask("", method, path), "bob")).await;
        assert_eq!((other.status, other.problem().as_str()), (404, "key-unknown"), "{method}");
        assert_eq!(send(&app, by(ask("", method, path), "alice")).await.status, 200);
    }
}
