//! The handler while it runs: deadlines, leases, grants, dispatch.

use super::world::*;

#[tokio::test(start_paused = true)]
async fn a_handler_past_its_deadline_is_unknown() {
    let world = World::new();
    let route = Route::new("r", "POST /slow").unwrap().deadline(Duration::from_secs(5));
    let app = world.app(world.gate().route(route));
    let first = post_to(&app, "/slow", "k", "").await;
    assert_eq!(
        (first.status, first.problem().as_str(), first.header("semel-outcome")),
        (504, "handler-timeout", "unknown")
    );
    assert_eq!(post_to(&app, "/slow", "k", "").await.problem(), "outcome-unknown");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_the_handler_runs() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.clock.advance(Duration::from_secs(5));
    }
    let lease_until = world.entries().await[0].record.lease_until;
    let (_, now) = world.store.look_up(&world.entries().await[0].id).await.unwrap();
    assert!(lease_until > now, "150 seconds later the lease of 30 still holds");
    let fence = world.entries().await[0].record.fence;
    let renewed = world.store.hints().renewals().of(fence.number).map_or(0, |seen| seen.count);
    assert!((10..=20).contains(&renewed), "{renewed} renewals of a third of the lease each");
    world.go.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn an_atomic_handler_that_does_not_settle_is_a_fault() {
    let world = World::new();
    let route = || Route::post("/orders").atomic();
    let app = world.app(world.gate().route(route()));
    let answer = post_to(&app, "/orders", "k", "").await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("not-settled"), "{}", answer.body);
    let app = world.app(world.gate().route(route()).strict());
    let call = tokio::spawn(async move { post_to(&app, "/orders", "k2", "").await });
    assert!(call.await.unwrap_err().is_panic(), "a strict gate is loud");
}

#[tokio::test]
async fn an_atomic_handler_that_settled_is_answered_from_its_record() {
    async fn settles(State(world): State<World>, grant: Grant) -> String {
        world.runs.fetch_add(1, Ordering::SeqCst);
        let kept = Answer {
            status: 201,
            headers: [].into(),
            body: "from the record".into(),
            outcome_unknown: false,
        };
        let settlement = semel_store::Settlement::Settle(kept.clone());
        world.store.settle(grant.id(), grant.fence(), settlement, grant.lifetime()).await.unwrap();
        semel_gate::settling::confirm(&grant, kept);
        "not this".to_owned()
    }
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /atomic").unwrap().atomic()).build().unwrap();
    let app = Router::new().route("/atomic", post(settles)).with_state(world.clone()).layer(gate);
    for _ in 0..2 {
        let seen = post_to(&app, "/atomic", "k", "").await;
        assert_eq!(
            (seen.status, seen.body.as_str(), seen.header("semel-guarantee")),
            (201, "from the record", "atomic")
        );
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn child_keys_are_stable_across_attempts() {
    async fn derives(State(world): State<World>, grant: Grant) -> Json<Value> {
        world.runs.fetch_add(1, Ordering::SeqCst);
        Json(json!({"charge": grant.derive("charge"), "mail": grant.derive("mail")}))
    }
    let world = World::new();
    let profile = Profile { record: vec![], on_error: OnError::Release, ..presets::ietf() };
    let gate = world.gate().route(Route::new("r", "POST /derive").unwrap().profile(profile)).build().unwrap();
    let app = Router::new().route("/derive", post(derives)).with_state(world.clone()).layer(gate);
    let keys = |seen: Seen| serde_json::from_str::<Value>(&seen.body).unwrap();
    let (first, second, other) = (
        keys(post_to(&app, "/derive", "k", "").await),
        keys(post_to(&app, "/derive", "k", "").await),
        keys(post_to(&app, "/derive", "other", "").await),
    );
    assert_eq!(
        (&first, world.runs()),
        (&second, 3),
        "the first was released, and ran again under the same child keys"
    );
    assert!(first["charge"] != first["mail"] && first["charge"] != other["charge"]);
}

#[tokio::test]
async fn only_what_surely_was_not_sent_frees_the_key() {
    let not_sent = (NoAnswer::NotSent("refused".to_owned()), 502, "upstream-unreachable", "");
    let reset = (NoAnswer::Reset("gone".to_owned()), 502, "upstream-reset", "unknown");
    let late = (NoAnswer::TimedOut("late".to_owned()), 504, "upstream-timeout", "unknown");
    for (broken, status, problem, outcome) in [not_sent, reset, late] {
        let world = World::new();
        let (runs, is_unknown) = (Arc::clone(&world.runs), outcome == "unknown");
        let handler = move || async move {
            runs.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Body::empty());
            response.extensions_mut().insert(broken);
            response
        };
        let gate = world.gate().route(Route::new("r", "POST /forward").unwrap()).build().unwrap();
        let app = Router::new().route("/forward", post(handler)).layer(gate);
        let first = post_to(&app, "/forward", "k", "").await;
        assert_eq!(
            (first.status, first.problem().as_str(), first.header("semel-outcome")),
            (status, problem, outcome)
        );
        post_to(&app, "/forward", "k", "").await;
        assert_eq!(world.runs(), if is_unknown { 1 } else { 2 }, "{problem}");
    }
}

/// A service that takes so long to become ready that the first lease has lapsed.
#[derive(Clone)]
struct SlowToBeReady {
    world: World,
    late: Duration,
}

impl tower::Service<Request<Body>> for SlowToBeReady {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Body>, std::convert::Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        self.world.clock.advance(self.late);
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.world.runs.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::new(Body::from("done"))))
    }
}

#[tokio::test]
async fn nothing_is_dispatched_once_the_first_lease_has_lapsed() {
    for (late, runs) in [(10, 1), (31, 0)] {
        let world = World::new();
        let gate = world.gate().route(Route::new("r", "POST /r").unwrap()).build().unwrap();
        let service = tower::Layer::layer(
            &gate,
            SlowToBeReady { world: world.clone(), late: Duration::from_secs(late) },
        );
        let response = service.oneshot(request("/r", Some("k"), "")).await.unwrap();
        assert_eq!((response.status() == 200, world.runs()), (runs == 1, runs), "{late} s");
    }
}
