//! Requests that meet while one of them runs.

use super::world::*;

#[tokio::test]
async fn one_of_many_at_once_runs_and_the_others_wait_and_replay() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { post_to(&app, "/slow", "k", "").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.runs(), 1);
    world.go.add_permits(1);
    let mut replays = 0;
    for call in calls {
        let seen = call.await.unwrap();
        assert_eq!((seen.status, seen.body.as_str()), (200, "slow 1"));
        replays += u32::from(seen.is_replay());
    }
    assert_eq!((world.runs(), replays), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn past_the_wait_a_retry_is_told_to_come_back() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = tokio::time::Instant::now();
    let second = post_to(&app, "/slow", "k", "").await;
    assert_eq!((second.status, second.problem().as_str()), (409, "in-flight"));
    assert_eq!((second.header("retry-after"), second.header("x-should-retry")), ("1", "true"));
    assert_eq!(started.elapsed().as_secs(), 25);
    world.go.add_permits(1);
    assert_eq!(first.await.unwrap().body, "slow 1");
}

#[tokio::test]
async fn in_flight_policies_reject_or_accept_at_once() {
    for (policy, status) in
        [(InFlight::Reject { retry_after: Duration::from_secs(2) }, 409), (InFlight::Accepted, 202)]
    {
        let world = World::new();
        let app = world.with("POST /slow", Profile { in_flight: policy, ..presets::ietf() });
        let first = tokio::spawn({
            let app = app.clone();
            async move { post_to(&app, "/slow", "k", "").await }
        });
        while world.runs() == 0 {
            tokio::task::yield_now().await;
        }
        let told = post_to(&app, "/slow", "k", "").await;
        assert_eq!(told.status, status);
        if status == 202 {
            // By its status alone it would read like an acknowledgement, and the first attempt may still come to nothing.
            assert_eq!((told.header("semel-outcome"), told.header("retry-after")), ("pending", "1"));
        }
        world.go.add_permits(1);
        first.await.unwrap();
        assert_eq!(world.runs(), 1);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_cancel_its_request() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "k", "").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.is_err());
    world.go.add_permits(1);
    let second = post_to(&app, "/slow", "k", "").await;
    assert_eq!((second.body.as_str(), second.is_replay(), world.runs()), ("slow 1", true, 1));
}

#[tokio::test]
async fn a_waiter_that_goes_away_never_claims() {
    let world = World::new();
    let app = world.with("POST /slow", presets::ietf());
    let call = |app: Router| tokio::spawn(async move { post_to(&app, "/slow", "k", "").await });
    let first = call(app.clone());
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let waiter = call(app.clone());
    tokio::time::sleep(Duration::from_millis(20)).await;
    waiter.abort();
    let entry = world.entries().await.remove(0);
    let lifetime = presets::ietf().lifetime;
    world
        .store
        .settle(&entry.id, entry.record.fence, semel_store::Settlement::Release, &lifetime)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((world.runs(), world.entries().await.len()), (1, 0), "the released key stays free");
    world.go.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn waiters_are_bounded() {
    let world = World::new();
    let gate =
        world.gate().route(Route::new("r", "POST /slow").unwrap()).max_waiters(100).max_waiters_per_key(2);
    let app = world.app(gate);
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { post_to(&app, "/slow", "k", "").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.go.add_permits(1);
    let mut statuses = Vec::new();
    for call in calls {
        let seen = call.await.unwrap();
        statuses.push((seen.status, seen.problem()));
    }
    let refused =
        statuses.iter().filter(|(status, problem)| *status == 409 && problem == "too-many-waiters").count();
    assert_eq!((refused, world.runs()), (2, 1), "{statuses:?}");
}

#[tokio::test]
async fn work_in_progress_is_bounded_before_the_claim() {
    let world = World::new();
    let gate = world.gate().route(Route::new("r", "POST /slow").unwrap()).max_in_flight(1);
    let app = world.app(gate);
    let first = tokio::spawn({
        let app = app.clone();
        async move { post_to(&app, "/slow", "a", "").await }
    });
    while world.runs() == 0 {
        tokio::task::yield_now().await;
    }
    let second = post_to(&app, "/slow", "b", "").await;
    assert_eq!(
        (second.status, second.problem().as_str(), second.header("retry-after")),
        (503, "overloaded", "1")
    );
    assert_eq!(world.entries().await.len(), 1, "nothing was claimed for it");
    world.go.add_permits(1);
    first.await.unwrap();
}
