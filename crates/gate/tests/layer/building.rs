//! Operations without HTTP, and gates that cannot be built.

use super::world::*;

#[tokio::test]
async fn an_operation_without_http_runs_once() {
    let world = World::new();
    let gate = world.gate().build().unwrap();
    let route = Route::new("nightly-report", "POST /").unwrap();
    let alice = Caller { tenant: None, principal: "alice".to_owned() };
    let run = async |key: &str, payload: &str| {
        let runs = Arc::clone(&world.runs);
        let operation = move |grant: Grant| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(!grant.derive("mail").is_empty());
            format!("report {run}")
        };
        gate.once(&route, &alice, key, None, payload.to_owned(), operation).await
    };
    let (first, second) =
        (run("2026-01-31", r#"{"a":1}"#).await.unwrap(), run("2026-01-31", r#"{ "a": 1 }"#).await.unwrap());
    assert_eq!(
        (first.replayed, second.replayed, &first.answer.body, world.runs()),
        (false, true, &second.answer.body, 1)
    );
    let other = run("2026-01-31", r#"{"a":2}"#).await.unwrap_err();
    assert_eq!(other.kind, Kind::FingerprintMismatch);
    assert_eq!(run("", "{}").await.unwrap_err().kind, Kind::KeyInvalid);
    assert_eq!(run("2026-02-01", r#"{"a":1}"#).await.unwrap().answer.body, "report 2");
}

/// The name of an operation is what it is known by; how its keys are made may change.
#[tokio::test]
async fn an_operation_is_known_after_its_scope_and_fingerprint_were_changed() {
    let world = World::new();
    let gate = world.gate().build().unwrap();
    let alice = Caller { tenant: None, principal: "alice".to_owned() };
    let run = async |route: &Route, key: &str| {
        let runs = Arc::clone(&world.runs);
        let operation =
            move |_: Grant| async move { format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1) };
        gate.once(route, &alice, key, None, r#"{"a":1,"at":2}"#, operation).await.unwrap().answer.body
    };
    let first = Route::new("report", "POST /a").unwrap();
    let mut wide = presets::ietf();
    wide.scope.endpoint = false;
    let wide = Route::new("report", "POST /b").unwrap().profile(wide);
    let mut timeless = presets::ietf();
    let at = semel_contract::json::Pointer::parse("/at").unwrap();
    timeless.fingerprint.as_mut().unwrap().exclude.push(at);
    let timeless =
        Route::new("summary", "POST /b").unwrap().profile(timeless).former_names(["report".to_owned()]);
    let other = Route::new("letter", "POST /b").unwrap();
    assert_eq!(run(&first, "k").await, "run 1");
    for route in [&wide, &timeless, &first] {
        world.clock.advance(Duration::from_secs(600));
        assert_eq!(run(route, "k").await, "run 1", "{route:?}");
    }
    assert_eq!(run(&other, "k").await, "run 2", "another operation, though its pattern is the same");
    assert_eq!(run(&wide, "only-there").await, "run 3");
    world.clock.advance(Duration::from_secs(600));
    assert_eq!(run(&timeless, "only-there").await, "run 3", "in a former form of a former name");
}

#[tokio::test]
async fn unsafe_routes_are_refused_when_the_gate_is_built() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.lifetime.record = Some(Duration::from_secs(1));
    let error = world.gate().route(Route::new("r", "POST /a").unwrap().profile(profile)).build().unwrap_err();
    assert!(error.to_string().contains("record_lifetime"), "{error}");
    let twice =
        world.gate().route(Route::new("a", "POST /a").unwrap()).route(Route::new("b", "POST /a").unwrap());
    assert!(twice.build().is_err());
}

#[tokio::test]
async fn an_atomic_route_needs_a_store_that_its_handler_can_write() {
    use semel_store::at_rest::{AtRest, Protection};
    let world = World::new();
    let compressed = || Arc::new(AtRest::new(Arc::clone(&world.store), Protection::Compress { reads: None }));
    let fenced = Route::new("r", "POST /a").unwrap();
    let error = GateLayer::builder(compressed()).route(fenced.clone().atomic()).build().unwrap_err();
    assert!(error.to_string().contains("compress"), "{error}");
    assert!(GateLayer::builder(compressed()).route(fenced).build().is_ok());
}
