//! What is kept, released or unknown after an answer.

use super::world::*;

#[tokio::test]
async fn answers_are_kept_or_released_as_the_contract_says() {
    for (status, kept) in
        [(200, true), (404, true), (422, true), (409, false), (429, false), (503, false), (401, false)]
    {
        let world = World::new();
        let app = world.with("POST /status/{s}", presets::ietf());
        let path = format!("/status/{status}");
        let (first, second) = (post_to(&app, &path, "k", "").await, post_to(&app, &path, "k", "").await);
        assert_eq!((first.status, second.status, second.is_replay()), (status, status, kept), "{status}");
        assert_eq!(world.runs(), if kept { 1 } else { 2 }, "{status}");
    }
}

#[tokio::test]
async fn a_server_error_is_replayed_as_unknown_unless_it_surely_rolled_back() {
    let world = World::new();
    let app = world.with("POST /status/{s}", presets::ietf());
    let (first, second) =
        (post_to(&app, "/status/500", "k", "").await, post_to(&app, "/status/500", "k", "").await);
    assert_eq!((first.header("semel-outcome"), second.header("semel-outcome")), ("unknown", "unknown"));
    assert_eq!((second.body.as_str(), second.is_replay(), world.runs()), ("run 1", true, 1));
    let world = World::new();
    let app = world.with("POST /status/{s}", Profile { on_error: OnError::Release, ..presets::ietf() });
    post_to(&app, "/status/500", "k", "").await;
    assert_eq!(post_to(&app, "/status/500", "k", "").await.body, "run 2");
}

#[tokio::test]
async fn a_handler_that_knows_the_outcome_is_believed() {
    let world = World::new();
    let app = world.with("POST /status/{s}", presets::ietf());
    let tell = |told: &str, key: &str| {
        let mut request = request("/status/500", Some(key), "");
        request.headers_mut().insert("x-tell", told.parse().unwrap());
        request
    };
    send(&app, tell("not-applied", "a")).await;
    assert_eq!(send(&app, tell("not-applied", "a")).await.body, "run 2", "released");
    send(&app, tell("applied", "b")).await;
    let second = send(&app, tell("applied", "b")).await;
    assert_eq!(
        (second.body.as_str(), second.is_replay(), second.header("semel-outcome")),
        ("run 3", true, "")
    );
}

/// A gate behind this one says so of an attempt that may still come to nothing: kept, it would acknowledge what never was.
#[tokio::test]
async fn that_the_service_still_works_on_it_is_no_answer() {
    let world = World::new();
    let app = world.with("POST /status/{s}", presets::ietf());
    let mut request = request("/status/202", Some("k"), "");
    request.headers_mut().insert("x-tell", "pending".parse().unwrap());
    let first = send(&app, request).await;
    assert_eq!((first.status, first.header("semel-outcome")), (504, "unknown"));
    let second = post_to(&app, "/status/202", "k", "").await;
    assert_eq!((second.status, second.problem().as_str(), world.runs()), (409, "outcome-unknown", 1));
}

#[tokio::test]
async fn a_refusal_that_is_said_again_is_no_success() {
    for status in [200, 404] {
        let world = World::new();
        let replay = semel_contract::profile::Replay::Duplicate { status: 200 };
        let app = world.with("POST /status/{s}", Profile { replay, ..presets::ietf() });
        let path = format!("/status/{status}");
        let (_, second) = (post_to(&app, &path, "k", "").await, post_to(&app, &path, "k", "").await);
        assert_eq!((second.status, second.is_replay(), world.runs()), (status, true, 1));
    }
}

#[tokio::test]
async fn large_answers_and_streams_pass_and_are_never_run_again() {
    for (path, length) in [("/large", 2 << 20), ("/events", 9)] {
        let world = World::new();
        let app = world.with(&format!("POST {path}"), presets::ietf());
        let first = post_to(&app, path, "k", "").await;
        assert_eq!((first.status, first.body.len()), (200, length));
        let second = post_to(&app, path, "k", "").await;
        assert_eq!((second.status, second.problem().as_str(), world.runs()), (409, "answer-not-kept", 1));
        assert!(second.body.contains("\"originalStatus\":200"), "{}", second.body);
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let refused = post_to(&app, "/orders", "k", &"x".repeat((1 << 20) + 1)).await;
    assert_eq!((refused.status, refused.problem().as_str(), world.runs()), (413, "body-too-large", 0));
    assert_eq!(post_to(&app, "/orders", "k", &"x".repeat(1 << 20)).await.status, 201);
}

#[tokio::test]
async fn a_panic_leaves_the_outcome_unknown_and_says_so() {
    let world = World::new();
    let app = world.with("POST /panic", presets::ietf());
    let first = post_to(&app, "/panic", "k", "").await;
    assert_eq!((first.status, first.header("semel-outcome")), (502, "unknown"));
    let second = post_to(&app, "/panic", "k", "").await;
    assert_eq!((second.status, second.problem().as_str(), world.runs()), (409, "outcome-unknown", 1));
}

#[tokio::test]
async fn unknown_outcomes_follow_the_routes_policy() {
    for (policy, runs) in [(OnUnknown::Hold, 1), (OnUnknown::Rerun, 2), (OnUnknown::Forward, 2)] {
        let world = World::new();
        let app = world.with("POST /panic", Profile { on_unknown: policy, ..presets::ietf() });
        for _ in 0..2 {
            post_to(&app, "/panic", "k", "").await;
        }
        assert_eq!(world.runs(), runs, "{policy:?}");
    }
}

struct Says(Finding);

impl Probe for Says {
    fn ask<'a>(&'a self, _: &'a Entry) -> std::pin::Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

#[tokio::test]
async fn a_probe_resolves_what_is_unknown() {
    for (finding, problem) in [
        (Finding::Unknown, "outcome-unknown"),
        (Finding::Applied(None), "answer-not-kept"),
        (Finding::NotApplied, "outcome-unknown"),
    ] {
        let world = World::new();
        let profile = Profile { on_unknown: OnUnknown::Probe, ..presets::ietf() };
        let app = world.app(
            world
                .gate()
                .route(
                    Route::new("r", "POST /panic").unwrap().profile(profile).deadline(Duration::from_secs(5)),
                )
                .probe(Says(finding)),
        );
        post_to(&app, "/panic", "k", "").await;
        let second = post_to(&app, "/panic", "k", "").await;
        assert_eq!(
            (second.problem().as_str(), world.runs()),
            (problem, 1),
            "not-applied is not believed while it could still arrive"
        );
    }
    let world = World::new();
    let profile = Profile { on_unknown: OnUnknown::Probe, ..presets::ietf() };
    let app = world.app(
        world
            .gate()
            .route(Route::new("r", "POST /panic").unwrap().profile(profile).deadline(Duration::from_secs(5)))
            .probe(Says(Finding::NotApplied)),
    );
    post_to(&app, "/panic", "k", "").await;
    world.clock.advance(Duration::from_secs(98));
    post_to(&app, "/panic", "k", "").await;
    assert_eq!(world.runs(), 2, "but once it no longer can, the request runs");
}

/// Answers as it is told, one after another.
#[derive(Clone)]
struct Played(Arc<std::sync::Mutex<Vec<Option<NoAnswer>>>>, Arc<AtomicU32>);

impl tower::Service<Request<Body>> for Played {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.1.fetch_add(1, Ordering::SeqCst);
        let mut response = Response::new(Body::empty());
        if let Some(broken) = self.0.lock().unwrap().pop().flatten() {
            response.extensions_mut().insert(broken);
        }
        std::future::ready(Ok(response))
    }
}

#[tokio::test]
async fn an_attempt_that_was_not_sent_does_not_erase_an_earlier_unknown_one() {
    for (policy, sends) in [(OnUnknown::Forward, 3), (OnUnknown::Rerun, 3)] {
        let world = World::new();
        let (reset, not_sent) = (NoAnswer::Reset("gone".to_owned()), NoAnswer::NotSent("refused".to_owned()));
        let plays = Arc::new(std::sync::Mutex::new(vec![None, Some(not_sent), Some(reset)]));
        let profile = Profile { on_unknown: policy, ..presets::ietf() };
        let gate = world.gate().route(Route::new("r", "POST /x").unwrap().profile(profile)).build().unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let app =
            Router::new().fallback_service(tower::Layer::layer(&gate, Played(plays, Arc::clone(&calls))));
        let first = post_to(&app, "/x", "k", "{}").await;
        assert_eq!((first.status, first.header("semel-outcome")), (502, "unknown"));
        let second = post_to(&app, "/x", "k", "{}").await;
        assert_eq!(
            (second.status, second.header("semel-outcome")),
            (502, "unknown"),
            "the first may have arrived"
        );
        assert_eq!(world.entries().await[0].record.state.name(), "unknown");
        let other = post_to(&app, "/x", "k", r#"{"another":1}"#).await;
        assert_eq!(other.problem(), "fingerprint-mismatch", "the key is not free for something else");
        assert_eq!(post_to(&app, "/x", "k", "{}").await.status, 200);
        assert_eq!(calls.load(Ordering::SeqCst), sends);
    }
}
