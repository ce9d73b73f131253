//! What is done, and that it is on the trail.

use semel_contract::decide::Standing;

use super::*;

async fn standing(world: &World, id: &Id) -> Standing {
    let (entry, now) = world.store.look_up(id).await.unwrap();
    Standing::of(entry.as_ref().map(|entry| &entry.record), now)
}

#[tokio::test]
async fn an_unknown_outcome_is_resolved_as_applied_with_its_answer() {
    let world = World::new();
    let (id, fence) = world.unknown("alice", "k").await;
    let router = world.open();
    let told = json!({"as": "applied", "status": 201, "body": "{\"id\":7}", "headers": [["Location", "/o/7"]],
        "reason": "found in the books"});
    let seen = post(&router, &format!("/v1/records/{}/resolve", fence.number), told).await;
    assert_eq!((seen.status, &seen.json()["state"]), (200, &json!("settled")), "{}", seen.text);
    let (entry, _) = world.store.look_up(&id).await.unwrap();
    let answer = entry.unwrap().answer.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (201, &b"{\"id\":7}"[..]));
    assert_eq!(answer.headers, [("location".to_owned(), b"/o/7".to_vec())].into());
    let row = latest(&router).await;
    assert_eq!((&row["action"], &row["actor"]), (&json!("resolve-applied"), &json!("carol (loopback)")));
    assert_eq!((&row["reason"], &row["record"]), (&json!("found in the books"), &json!(id_of(fence))));
    let again =
        post(&router, &format!("/v1/records/{}/resolve", fence.number), json!({"as": "applied"})).await;
    assert_eq!(again.refusal(), (409, "not-unknown".to_owned()), "the old id still finds it");
    world.clock.advance(Duration::from_secs(29 * 86_400));
    assert_eq!(standing(&world, &id).await, Standing::Settled, "it outlives every retry");
}

#[tokio::test]
async fn not_applied_is_accepted_once_it_can_no_longer_take_effect() {
    let world = World::new();
    let (id, fence) = world.unknown("alice", "k").await;
    let router = world.open();
    let path = format!("/v1/records/{}/resolve", fence.number);
    let told = || json!({"as": "not-applied", "reason": "not in the books"});
    let early = post(&router, &path, told()).await;
    assert_eq!(early.refusal(), (409, "too-early".to_owned()));
    let until = early.json()["not_before"].as_str().unwrap().to_owned();
    let (entry, _) = world.store.look_up(&id).await.unwrap();
    assert_eq!(until, entry.unwrap().late_until.to_string());
    world.clock.advance(Duration::from_secs(91));
    let seen = post(&router, &path, told()).await;
    assert_eq!((seen.status, &seen.json()["state"]), (200, &json!("released")), "{}", seen.text);
    assert_eq!(standing(&world, &id).await, Standing::Released, "free, and seen to be");
    assert_eq!(latest(&router).await["action"], "resolve-not-applied");
}

/// What somebody found out about an attempt says nothing of a later one, of which they know nothing.
#[tokio::test]
async fn a_resolution_of_an_attempt_is_not_one_of_the_attempt_after_it() {
    let world = World::new();
    let (id, first) = world.unknown("alice", "k").await;
    world.clock.advance(Duration::from_secs(91));
    let router = world.open();
    let path = format!("/v1/records/{}/resolve", first.number);
    let told = || json!({"as": "not-applied", "reason": "not in the books"});
    assert_eq!(post(&router, &path, told()).await.status, 200);
    let (_, second) = world.unknown("alice", "k").await;
    world.clock.advance(Duration::from_secs(91));
    for told in [told(), json!({"as": "applied"})] {
        let seen = post(&router, &path, told).await;
        assert_eq!(seen.refusal(), (409, "superseded".to_owned()), "{}", seen.text);
        assert_eq!(seen.json()["record"], id_of(second));
        assert_eq!(standing(&world, &id).await, Standing::Unknown);
    }
    let seen = post(&router, &format!("/v1/records/{}/resolve", second.number), told()).await;
    assert_eq!(seen.status, 200, "{}", seen.text);
}

#[tokio::test]
async fn a_resolution_that_makes_no_sense_is_refused() {
    let world = World::new();
    let (id, fence) = world.unknown("alice", "k").await;
    let router = world.open();
    let path = format!("/v1/records/{}/resolve", fence.number);
    for bad in [
        json!({}),
        json!({"as": "perhaps"}),
        json!({"as": "not-applied"}),
        json!({"as": "not-applied", "reason": "  "}),
        json!({"as": "not-applied", "reason": "x", "status": 201}),
        json!({"as": "applied", "body": "x"}),
        json!({"as": "applied", "status": 42}),
        json!({"as": "applied", "status": 201, "body": "x", "body_base64": "eA=="}),
        json!({"as": "applied", "status": 201, "body_base64": "?"}),
        json!({"as": "applied", "status": 201, "headers": [["bad name", "x"]]}),
        json!({"as": "applied", "status": 201, "headers": [["Transfer-Encoding", "chunked"]]}),
        json!({"as": "applied", "status": 201, "headers": [["Semel-Outcome", "applied"]]}),
        json!({"as": "applied", "keep": "for ever"}),
        json!({"as": "applied", "keep": "1h"}),
        json!({"as": "applied", "stats": 201}),
    ] {
        let seen = post(&router, &path, bad.clone()).await;
        assert_eq!(seen.refusal(), (400, "bad-request".to_owned()), "{bad}");
    }
    assert_eq!(standing(&world, &id).await, Standing::Unknown, "nothing was done");
    let (_, settled) = world.settled("alice", "s").await;
    let path = format!("/v1/records/{}/resolve", settled.number);
    let seen = post(&router, &path, json!({"as": "applied"})).await;
    assert_eq!((seen.refusal().1.as_str(), &seen.json()["standing"]), ("not-unknown", &json!("settled")));
    assert!(latest(&router).await.is_null(), "and nothing stands in the trail");
}

#[tokio::test]
async fn a_key_is_sealed_only_where_it_had_no_effect() {
    let world = World::new();
    let (id, fence) = world.unknown("alice", "k").await;
    let router = world.open();
    let seal = async |id: &str| {
        post(&router, &format!("/v1/records/{id}/seal"), json!({"reason": "sent again with another key"}))
            .await
    };
    assert_eq!(seal(&id_of(fence)).await.refusal(), (409, "key-in-use".to_owned()));
    world.clock.advance(Duration::from_secs(91));
    let told = json!({"as": "not-applied", "reason": "not in the books"});
    let released = post(&router, &format!("/v1/records/{}/resolve", fence.number), told).await.json();
    let seen = seal(released["id"].as_str().unwrap()).await;
    assert_eq!((seen.status, &seen.json()["state"]), (200, &json!("sealed")), "{}", seen.text);
    assert_eq!(standing(&world, &id).await, Standing::Sealed);
    let row = latest(&router).await;
    assert_eq!((&row["action"], &row["actor"]), (&json!("seal"), &json!("carol (loopback)")));
}

#[tokio::test]
async fn a_sweep_by_hand_is_logged_and_on_the_trail() {
    let world = World::new();
    world.settled("alice", "a").await;
    world.settled("alice", "b").await;
    world.clock.advance(Duration::from_secs(26 * 3600));
    let router = world.open();
    let kept = post(&router, "/v1/sweep", json!({"grace": "10h"})).await;
    assert_eq!(kept.json()["removed"], 0);
    let seen = post(&router, "/v1/sweep", empty()).await;
    assert_eq!((&seen.json()["removed"], &seen.json()["clock_frozen"]), (&json!(2), &json!(false)));
    let row = latest(&router).await;
    assert_eq!((&row["action"], &row["count"]), (&json!("sweep"), &json!(2)));
    let logged = get(&router, "/v1/cleanups").await.json();
    assert_eq!(logged["cleanups"][0]["removed"], 2);
    assert_eq!(logged["cleanups"].as_array().unwrap().len(), 2, "each run is one row");
}

#[tokio::test]
async fn forgetting_says_what_is_left_and_names_nobody_on_the_trail() {
    let world = World::new();
    world.settled("alice", "a").await;
    world.unknown("alice", "b").await;
    world.settled("bob", "c").await;
    world.store.count_stale(None, "alice").await.unwrap();
    let router = world.open();
    assert_eq!(get(&router, "/v1/stale").await.json()["stale"][0]["count"], 1);
    let preview = post(&router, "/v1/forget", json!({"principal": "alice", "dry_run": true})).await.json();
    assert_eq!(preview, json!({"dry_run": true, "would_forget": 1, "forgotten": 0, "left": 1}));
    let seen = post(&router, "/v1/forget", json!({"principal": "alice"})).await.json();
    assert_eq!(seen, json!({"forgotten": 1, "left": 1}));
    for stranger in [json!({"principal": "alic"}), json!({"principal": "bob", "tenant": "acme"})] {
        let refused = post(&router, "/v1/forget", stranger.clone()).await;
        assert_eq!(refused.refusal(), (404, "no-such-principal".to_owned()), "{stranger}");
    }
    let row = latest(&router).await;
    assert_eq!((&row["action"], &row["count"]), (&json!("forget"), &json!(1)));
    assert!(!row.to_string().contains("alice"), "{row}");
    assert_eq!(get(&router, "/v1/stale").await.json()["stale"], json!([]));
    assert_eq!(post(&router, "/v1/forget", json!({"principal": ""})).await.status, 400);
}

#[tokio::test]
async fn a_restore_is_reported_and_listed() {
    let world = World::new();
    let router = world.open();
    world.clock.advance(Duration::from_secs(3600));
    let told = json!({"backup_time": "2027-01-15T08:00:00+01:00", "reason": "the disk died"});
    let seen = post(&router, "/v1/restored", told.clone()).await;
    assert_eq!(seen.status, 200, "{}", seen.text);
    assert_eq!(seen.json()["backup_time"], "2027-01-15T07:00:00Z");
    assert_eq!(seen.json()["undated"], "unknown");
    let mut trusting = told;
    trusting["trust_undated"] = json!(true);
    post(&router, "/v1/restored", trusting).await;
    let listed = get(&router, "/v1/restores").await.json();
    assert_eq!(listed["restores"].as_array().unwrap().len(), 1);
    assert_eq!(listed["restores"][0]["undated"], "trusted");
    let row = latest(&router).await;
    assert_eq!(row["action"], "restored");
    assert!(row["reason"].as_str().unwrap().contains("the disk died"), "{row}");
    for bad in ["yesterday", "2999-01-01T00:00:00Z"] {
        assert_eq!(post(&router, "/v1/restored", json!({"backup_time": bad})).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn a_jump_of_the_clock_is_confirmed_with_a_reason() {
    let world = World::new();
    let router = world.open();
    let confirm = async |body: Value| post(&router, "/v1/clock/confirm", body).await;
    let reason = || json!({"reason": "the battery was changed"});
    assert_eq!(confirm(reason()).await.refusal(), (409, "clock-not-frozen".to_owned()));
    world.clock.set_wall_off(86_400_000);
    let frozen = get(&router, "/v1/clock").await.json();
    assert_eq!((&frozen["frozen"], &frozen["jump_ms"]), (&json!(true), &json!(86_400_000)));
    assert_eq!(confirm(empty()).await.status, 400, "it must be explained");
    assert_eq!(confirm(reason()).await.json()["frozen"], false);
    assert_eq!(latest(&router).await["action"], "confirm-clock");
}

/// A reason that is refused after the act would say "not done" of what was done.
#[tokio::test]
async fn a_reason_is_judged_before_anything_is_done() {
    let world = World::new();
    let (_, unknown) = world.unknown("alice", "b").await;
    let (id, freed) = world.claim("alice", "c").await;
    world.settle(&id, freed, Settlement::Release).await;
    world.settled("alice", "a").await;
    world.clock.advance(Duration::from_secs(600));
    let router = world.open();
    let count = async || get(&router, "/v1/records").await.json()["records"].as_array().unwrap().len();
    let before = count().await;
    let long = "ü".repeat(1001);
    for (path, told) in [
        ("/v1/forget".to_owned(), json!({"principal": "alice"})),
        ("/v1/sweep".to_owned(), json!({})),
        ("/v1/restored".to_owned(), json!({"backup_time": "1970-01-01T00:00:01Z"})),
        ("/v1/clock/confirm".to_owned(), json!({})),
        (format!("/v1/records/{}/resolve", unknown.number), json!({"as": "applied"})),
        (format!("/v1/records/{}/seal", freed.number), json!({})),
    ] {
        let mut told = told;
        told["reason"] = json!(long);
        let seen = post(&router, &path, told).await;
        assert!(seen.status == 400 && seen.text.contains("at most 2000 bytes"), "{path}: {}", seen.text);
        assert_eq!(latest(&router).await, Value::Null, "{path} did nothing");
    }
    assert_eq!(count().await, before);
}
