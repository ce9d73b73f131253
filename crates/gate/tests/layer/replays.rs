//! The same request again, and another one under the same key.

use super::world::*;

#[tokio::test]
async fn a_retry_gets_the_first_answer_byte_for_byte() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    let first = post_to(&app, "/orders", "k", r#"{"a":1,"b":2}"#).await;
    let second = post_to(&app, "/orders", "\"k\"", "{ \"b\": 2, \"a\": 1 }").await;
    assert_eq!((first.status, first.body.as_str()), (201, "order 1: {\"a\":1,\"b\":2}"));
    assert_eq!((second.status, &second.body, world.runs()), (201, &first.body, 1));
    assert!(second.is_replay() && !first.is_replay());
    assert_eq!(second.headers.get_all("x-tag").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(second.header("location"), "/orders/1");
    assert_eq!(
        (first.header("set-cookie"), second.header("set-cookie"), second.header("date")),
        ("secret=1", "", "")
    );
    for seen in [first, second] {
        assert_eq!((seen.header("semel-guarantee"), seen.header("semel-retention")), ("fenced", "86400"));
    }
}

#[tokio::test]
async fn a_record_knows_about_how_often_it_was_answered_again() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    for key in ["k", "k", "k", "other"] {
        post_to(&app, "/orders", key, "{}").await;
    }
    let entries = world.entries().await;
    let replays = |key: &str| {
        let entry = entries.iter().find(|entry| entry.id.key.as_str() == key).expect("it is on record");
        world.store.hints().replays().of(entry.record.fence.number).map(|seen| seen.count)
    };
    assert_eq!((replays("k"), replays("other")), (Some(2), None));
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    let world = World::new();
    let app = world.with("POST /orders", presets::ietf());
    post_to(&app, "/orders", "k", r#"{"a":1}"#).await;
    let other = post_to(&app, "/orders", "k", r#"{"a":2}"#).await;
    assert_eq!((other.status, other.problem().as_str(), world.runs()), (422, "fingerprint-mismatch", 1));
    assert_eq!((other.header("x-should-retry"), other.is_replay()), ("false", false));
    let query = post_to(&app, "/orders?x=1", "k", r#"{"a":1}"#).await;
    assert_eq!((query.status, world.runs()), (422, 1));
}

#[tokio::test]
async fn path_parameters_count() {
    let world = World::new();
    let app = world.with("POST /orders/{id}/refund", presets::ietf());
    assert_eq!(post_to(&app, "/orders/1/refund", "k", "").await.body, "refunded 1");
    assert_eq!(post_to(&app, "/orders/2/refund", "k", "").await.status, 422);
    assert_eq!(post_to(&app, "/orders/1/refund", "k", "").await.body, "refunded 1");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn conflicts_show_the_payload_hashes_where_the_profile_says_so() {
    let world = World::new();
    let app = world.with("POST /orders", Profile { guard: None, ..presets::walker() });
    let uuid = "3f1f9c1e-6f0a-4c3b-9b0f-0a1b2c3d4e5f";
    post_to(&app, "/orders", uuid, r#"{"a":1,"clientSubmittedAt":"x"}"#).await;
    assert!(post_to(&app, "/orders", uuid, r#"{"a":1,"clientSubmittedAt":"y"}"#).await.is_replay());
    let conflict = post_to(&app, "/orders", uuid, r#"{"a":2}"#).await;
    let body: Value = serde_json::from_str(&conflict.body).unwrap();
    assert_eq!((conflict.status, &body["error"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    // printf '{"a":1}' | sha256sum, and the same for 2
    assert_eq!(
        body["details"]["expectedHash"],
        "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    );
    assert_eq!(
        body["details"]["receivedHash"],
        "7e8059f495589fcd981232cc11d00b00da3802c01d688fa1cf1f6bed6e5bb33c"
    );
}
