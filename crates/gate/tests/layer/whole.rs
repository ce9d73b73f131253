//! The gate as a whole: any path, observing only, draining.

use super::world::*;

#[tokio::test]
async fn any_path_is_an_endpoint_of_its_own() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    let first = post_to(&app, "/orders", "k", "{}").await;
    assert_eq!((first.status, first.header("semel-guarantee")), (201, "fenced"));
    assert!(post_to(&app, "/orders", "k", "{}").await.is_replay());
    let other = post_to(&app, "/status/200", "k", "{}").await;
    assert_eq!((other.status, other.is_replay(), world.runs()), (200, false, 2));
    assert_eq!(world.entries().await[0].about.endpoint, "POST /orders");
    let long = format!("/status/200?x=1&path={}", "y".repeat(300));
    post_to(&app, &long, "q", "{}").await;
    post_to(&app, &format!("/{}", "y".repeat(300)), "long", "{}").await;
    assert!(world.entries().await.iter().all(|entry| entry.about.endpoint.len() <= 255));
}

#[tokio::test]
async fn a_key_where_no_route_covers_it_is_told_that_nothing_is_promised() {
    let world = World::new();
    let app = world.with("POST /other", presets::ietf());
    let seen = post_to(&app, "/orders", "k", "{}").await;
    assert_eq!((seen.status, seen.header("semel-guarantee")), (201, "none"));
    assert_eq!(send(&app, request("/orders", None, "{}")).await.header("semel-guarantee"), "");
}

#[tokio::test]
async fn a_gate_that_observes_changes_nothing() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()).observe());
    for run in 1..=3 {
        let seen = post_to(&app, "/orders", "k", "{}").await;
        assert_eq!((seen.status, seen.body.as_str()), (201, format!("order {run}: {{}}").as_str()));
        assert!(!seen.is_replay() && seen.header("semel-guarantee").is_empty());
    }
    assert_eq!(world.entries().await.len(), 1, "the key is noted");
    let mut nobody = request("/orders", Some("\"broken"), "{}");
    nobody.headers_mut().remove("x-user");
    assert_eq!(send(&app, nobody).await.status, 201, "nothing is refused");
    let large = "x".repeat(3 << 20);
    assert_eq!(post_to(&app, "/large", "l", &large).await.status, 200, "nothing is too large");
}

#[tokio::test(start_paused = true)]
async fn draining_waits_for_what_runs_and_takes_nothing_new() {
    let world = World::new();
    let gate = world.gate().route(Route::any()).build().unwrap();
    let app = world.behind(gate.clone());
    let running = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "{}").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let draining = tokio::spawn(async move { gate.drain(Duration::from_secs(30)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = post_to(&app, "/orders", "new", "{}").await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (503, "overloaded", 1));
    assert!(!draining.is_finished());
    world.go.add_permits(1);
    assert_eq!((running.await.unwrap().status, draining.await.unwrap()), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_in_time_is_unknown() {
    let world = World::new();
    let gate = world.gate().route(Route::any()).build().unwrap();
    let app = world.behind(gate.clone());
    let running = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "{}").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gate.drain(Duration::from_secs(2)).await, 1);
    assert_eq!(world.entries().await[0].record.state, semel_contract::record::State::Unknown);
    running.abort();
}

/// A request whose body is on its way while the configuration is replaced runs under neither name if its retry has run.
#[tokio::test]
async fn a_gate_that_was_replaced_claims_nothing() {
    let world = World::new();
    let named = |name: &str| Route::new(name, "POST /orders").unwrap();
    // By what is said of former names alone: what the store remembers of forms would let each find the other's claim.
    let old = world.gate().forget_former().route(named("create")).build().unwrap();
    let renamed = named("create-order").former_names(["create".to_owned()]);
    let next = world.app(world.gate().forget_former().route(renamed));
    let (sender, body) = tokio::sync::mpsc::channel::<&str>(1);
    let body = futures_util::stream::unfold(body, async |mut body| {
        body.recv().await.map(|piece| (Ok::<_, std::io::Error>(piece), body))
    });
    let (parts, _) = request("/orders", Some("k"), "").into_parts();
    let slow = Request::from_parts(parts, Body::from_stream(body));
    let first = tokio::spawn({
        let app = world.behind(old.clone());
        async move { send(&app, slow).await }
    });
    // The channel holds one piece: once it takes the second, the first was read by the gate.
    for piece in ["{", "}"] {
        sender.send(piece).await.unwrap();
    }
    old.close();
    let retry = post_to(&next, "/orders", "k", "{}").await;
    assert_eq!((retry.status, world.runs()), (201, 1));
    drop(sender);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.problem().as_str()), (503, "overloaded"));
    assert_eq!((first.header("x-should-retry"), world.runs()), ("true", 1));
    assert!(post_to(&next, "/orders", "k", "{}").await.is_replay());
    // What it knows it still tells.
    assert_eq!(world.entries().await.len(), 1);
}

/// An atomic attempt that follows one of unknown outcome leaves it unknown, also where the drain's deadline ends it.
#[tokio::test(start_paused = true)]
async fn draining_frees_no_key_whose_earlier_attempt_is_unknown() {
    let world = World::new();
    let mut profile = presets::ietf();
    profile.on_unknown = OnUnknown::Rerun;
    let route = |profile: Profile| Route::new("r", "POST /slow").unwrap().profile(profile);
    let fenced = world.gate().route(route(profile.clone()).deadline(Duration::from_secs(1)));
    assert_eq!(post_to(&world.app(fenced), "/slow", "k", "{}").await.status, 504);
    let atomic = world.gate().route(route(profile).atomic()).build().unwrap();
    let running = tokio::spawn({
        let app = world.behind(atomic.clone());
        async move { post_to(&app, "/slow", "k", "{}").await }
    });
    while world.runs() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(atomic.drain(Duration::from_secs(2)).await, 1);
    assert_eq!(world.entries().await[0].record.state, semel_contract::record::State::Unknown);
    running.abort();
}

/// A service that cannot be reached.
#[derive(Clone)]
struct Away;

impl tower::Service<Request<Body>> for Away {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response.extensions_mut().insert(NoAnswer::NotSent("refused".to_owned()));
        std::future::ready(Ok(response))
    }
}

#[tokio::test]
async fn what_was_observed_and_not_sent_is_not_said_to_have_happened() {
    let world = World::new();
    let observing = world.gate().route(Route::any()).observe().build().unwrap();
    let away = Router::new().fallback_service(tower::Layer::layer(&observing, Away));
    assert_eq!(post_to(&away, "/orders", "k", "{}").await.status, 502);
    while !world.entries().await.is_empty() {
        tokio::task::yield_now().await;
    }
    let enforcing = world.app(world.gate().route(Route::any()));
    assert_eq!(post_to(&enforcing, "/orders", "k", "{}").await.status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn what_the_headers_condemn_is_refused_before_the_body_is_read() {
    let world = World::new();
    let app = world.app(world.gate().route(Route::any()));
    let silent =
        || Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let mut large = request("/orders", Some("k"), "");
    large.headers_mut().insert("content-length", "3000000".parse().unwrap());
    *large.body_mut() = silent();
    assert_eq!(send(&app, large).await.status, 413);
    let mut bad = request("/orders", Some(&"k".repeat(300)), "");
    *bad.body_mut() = silent();
    assert_eq!(send(&app, bad).await.problem(), "key-invalid");
}

#[tokio::test]
async fn what_an_upstream_says_of_its_effect_is_told_alike_every_time() {
    for (said, status, told) in [("unknown", 201, "unknown"), ("bogus", 201, ""), ("applied", 503, "")] {
        let world = World::new();
        let app = world.with("POST /status/{s}", presets::ietf());
        let ask = || {
            let mut request = request(&format!("/status/{status}"), Some("k"), "{}");
            request.headers_mut().insert("x-tell", said.parse().unwrap());
            request
        };
        let (first, second) = (send(&app, ask()).await, send(&app, ask()).await);
        assert_eq!((first.status, second.status, world.runs()), (status, status, 1), "{said}");
        assert_eq!((first.header("semel-outcome"), second.header("semel-outcome")), (told, told), "{said}");
    }
}
