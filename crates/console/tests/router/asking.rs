//! What is shown.

use super::*;

#[tokio::test]
async fn records_are_listed_by_state_principal_route_and_age() {
    let world = World::new();
    let (_, settled) = world.settled("alice", "a").await;
    let (_, unknown) = world.unknown("bob", "b").await;
    world.clock.advance(Duration::from_secs(3600));
    let (_, claimed) = world.claim("alice", "c").await;
    let router = world.open();
    let list = async |query: &str| ids(&get(&router, &format!("/v1/records{query}")).await);
    let (settled, unknown, claimed) = (id_of(settled), id_of(unknown), id_of(claimed));
    assert_eq!(list("").await, [settled.clone(), unknown.clone(), claimed.clone()]);
    assert_eq!(list("?state=unknown").await, std::slice::from_ref(&unknown));
    assert_eq!(list("?principal=alice").await, [settled.clone(), claimed.clone()]);
    assert_eq!(list("?route=pay&older_than=30m").await, [settled.clone(), unknown.clone()]);
    assert_eq!(list("?route=other").await, [] as [String; 0]);
    let page = get(&router, "/v1/records?limit=2").await;
    let next = page.json()["next"].as_str().unwrap().to_owned();
    assert_eq!((ids(&page), next.clone()), (vec![settled, unknown.clone()], unknown));
    let last = get(&router, &format!("/v1/records?limit=2&after={next}")).await;
    assert_eq!((ids(&last), &last.json()["next"]), (vec![claimed], &Value::Null));
    let unmarked = list("?state=unknown").await.len();
    world.clock.advance(Duration::from_secs(31));
    assert_eq!(list("?state=unknown").await.len(), unmarked + 1, "a lapsed claim is unknown, marked or not");
    assert_eq!(list("?state=claimed").await, [] as [String; 0]);
    for bad in ["state=lost", "older_than=soon", "limit=0", "limit=5000", "after=x", "sate=unknown"] {
        let seen = get(&router, &format!("/v1/records?{bad}")).await;
        assert_eq!(seen.refusal(), (400, "bad-request".to_owned()), "{bad}");
    }
}

#[tokio::test]
async fn a_record_is_shown_with_its_timeline_and_without_its_proof() {
    let world = World::new();
    let (_, fence) = world.unknown("alice", "k").await;
    let router = world.open();
    let seen = get(&router, &format!("/v1/records/{}", fence.number)).await;
    let shown = seen.json();
    assert_eq!(
        (&shown["state"], &shown["key"], &shown["route"]),
        (&json!("unknown"), &json!("k"), &json!("pay"))
    );
    let lines: Vec<String> = shown["timeline"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["what"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(lines[0], "claimed by request request-of-k");
    assert!(lines.iter().any(|line| line.contains("`not-applied` is accepted after it")), "{lines:?}");
    assert!(!seen.text.contains("5ec2e700"), "the nonce is the holder's proof: {}", seen.text);
    assert_eq!(get(&router, "/v1/records/999").await.refusal(), (404, "no-such-record".to_owned()));
    assert_eq!(get(&router, "/v1/records/k").await.refusal(), (400, "bad-request".to_owned()));
}

#[tokio::test]
async fn a_record_tells_about_how_often_it_was_renewed_and_replayed_since_the_start() {
    let world = World::new();
    let (_, fence) = world.settled("alice", "k").await;
    let (_, other) = world.settled("alice", "l").await;
    world.store.hints().renewals().add(fence.number);
    for _ in 0..3 {
        world.store.hints().replays().add(fence.number);
    }
    let router = world.open();
    let shown = get(&router, &format!("/v1/records/{}", fence.number)).await.json();
    let lines = shown["timeline"].to_string();
    assert_eq!(shown["replays"], json!(3));
    for line in
        ["renewed, about once since", "answered again from the record, about 3 times since this process"]
    {
        assert!(lines.contains(line), "{line}: {lines}");
    }
    let shown = get(&router, &format!("/v1/records/{}", other.number)).await.json();
    assert_eq!(shown["replays"], json!(0));
    assert!(!shown["timeline"].to_string().contains("since this process"), "{shown}");
}

#[tokio::test]
async fn a_search_finds_ids_requests_and_keys() {
    let world = World::new();
    let (_, first) = world.settled("alice", "2").await;
    let (_, second) = world.settled("bob", "2").await;
    let router = world.open();
    let search = async |text: &str| ids(&get(&router, &format!("/v1/search?q={text}")).await);
    assert_eq!(second.number, 2, "the key of both is also the id of one");
    let both = [id_of(second), id_of(first)];
    assert_eq!(search("2").await, both, "each once");
    assert_eq!(search("request-of-2").await, [id_of(first), id_of(second)]);
    assert_eq!(search("nothing").await, [] as [String; 0]);
    assert_eq!(get(&router, "/v1/search?q=").await.status, 400);
}

#[tokio::test]
async fn readiness_is_about_serving() {
    let world = World::new();
    let ready = get(&world.open(), "/readyz").await;
    assert_eq!((ready.status, &ready.json()["clock_frozen"]), (200, &json!(false)));
    world.clock.set_wall_off(86_400_000);
    let frozen = get(&world.open(), "/readyz").await;
    assert_eq!((frozen.status, &frozen.json()["clock_frozen"]), (200, &json!(true)), "it still serves");
    let access = Access::on("127.0.0.1:1".parse().unwrap(), None, None).unwrap();
    let leaving = Console::on(Arc::clone(&world.store) as _, access)
        .unready_while(|| Some("shutting down".to_owned()))
        .router();
    let leaving_seen = get(&leaving, "/readyz").await;
    assert_eq!((leaving_seen.status, &leaving_seen.json()["reason"]), (503, &json!("shutting down")));
    assert_eq!(get(&leaving, "/healthz").await.status, 200, "it lives");
}

#[tokio::test]
async fn metrics_tell_of_the_store_and_name_nobody() {
    let world = World::new();
    world.unknown("alice-the-principal", "the-key").await;
    world.clock.advance(Duration::from_secs(90));
    let text = get(&world.open(), "/metrics").await.text;
    for line in [
        "semel_store_ready 1",
        "semel_store_clock_frozen 0",
        "semel_store_unknown_records 1",
        "semel_store_unknown_oldest_seconds 90",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("alice") && !text.contains("the-key"), "{text}");
}

#[tokio::test]
async fn a_list_can_begin_with_the_newest() {
    let world = World::new();
    for key in ["a", "b", "c"] {
        world.settled("alice", key).await;
    }
    world.unknown("alice", "d").await;
    let router = world.open();
    let keys = async |path: &str| {
        let seen = get(&router, path).await.json();
        let keys: Vec<_> = seen["records"].as_array().unwrap().iter().map(|it| it["key"].clone()).collect();
        (json!(keys), seen["next"].as_str().map(str::to_owned))
    };
    assert_eq!(keys("/v1/records").await.0, json!(["a", "b", "c", "d"]));
    assert_eq!(keys("/v1/records?order=oldest").await.0, json!(["a", "b", "c", "d"]));
    let (first, next) = keys("/v1/records?order=newest&limit=3").await;
    assert_eq!(first, json!(["d", "c", "b"]));
    let next = format!("/v1/records?order=newest&limit=3&after={}", next.unwrap());
    assert_eq!(keys(&next).await.0, json!(["a"]));
    assert_eq!(get(&router, "/v1/records?order=random").await.status, 400);
}

/// A list is narrowed before it is cut: a page that says that there is more is never empty for that.
#[tokio::test]
async fn open_records_are_narrowed_before_they_are_counted() {
    let world = World::new();
    world.unknown("alice", "wanted").await;
    for at in 0..60 {
        world.unknown("alice", &format!("k-{at}")).await;
    }
    let router = world.open();
    let path = "/v1/records?order=newest&limit=50&within=100000&request_id=request-of-wanted";
    for state in ["", "&state=unknown"] {
        let seen = get(&router, &format!("{path}{state}")).await.json();
        let found: Vec<&Value> = seen["records"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
        assert_eq!(
            (found, &seen["next"], &seen["complete"]),
            (vec![&json!("wanted")], &Value::Null, &json!(true))
        );
    }
}

/// What was not looked at is not said to be nothing: the list says how far it looked, and goes on from there.
#[tokio::test]
async fn a_list_of_open_records_that_ends_early_says_so_and_goes_on() {
    let world = World::new();
    world.claim("alice", "wanted").await;
    world.clock.advance(Duration::from_secs(31));
    for at in 0..1200 {
        world.claim("bob", &format!("k-{at}")).await;
    }
    let router = world.open();
    for (state, others) in [("claimed", 0), ("unknown", 1)] {
        let path =
            format!("/v1/records?order=newest&limit=50&within=1&request_id=request-of-wanted&state={state}");
        let first = get(&router, &path).await.json();
        assert_eq!((&first["records"], &first["complete"]), (&json!([]), &json!(false)), "{state}: {first}");
        let next = first["next"].as_str().unwrap_or_else(|| panic!("{state} does not go on: {first}"));
        let last = get(&router, &format!("{path}&after={next}")).await.json();
        assert_eq!(last["records"].as_array().map(Vec::len), Some(others), "{state}: {last}");
        assert_eq!((&last["next"], &last["complete"]), (&Value::Null, &json!(true)), "{state}: {last}");
    }
}
