//! The broker over HTTP: statuses, headers and bodies as they are promised, and what outsiders learn.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, StatusCode};
use semel_broker::Settings;
use semel_delivery::relay::store::sql::Database;
use semel_http::BodyBounds;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt;

use super::kit::{World, rate, sha256, token};
use super::web::{Web, request, told};

const TO_TOPIC: &str = r#"{"to":{"topic":"t"},"body":{"text":"hello world"},"client_tx_id":"tx1"}"#;

pub(crate) async fn a_publish_is_answered_as_promised(world: World) {
    let web = Web::new(&world);
    let first = web.publish("alice", "a", TO_TOPIC).await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.text);
    assert_eq!(first.headers["semel-guarantee"], "atomic");
    assert_eq!(first.headers["semel-retention"], (6 * 86_400).to_string().as_str());
    let receipt = first.json();
    for field in ["broker_message_id", "history_id", "client_message_id", "first_seen_at"] {
        assert!(receipt[field].is_string(), "{field}");
    }
    let again = web.publish("alice", "a", TO_TOPIC).await;
    assert_eq!(again.status, StatusCode::OK);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    let repeated = again.json();
    assert_eq!(repeated["duplicate"], true);
    assert_eq!(repeated["history_available"], true);
    for field in ["broker_message_id", "history_id", "client_message_id", "first_seen_at"] {
        assert_eq!(repeated[field], receipt[field]);
    }
    let other = web.publish("alice", "a", r#"{"to":{"topic":"t"},"body":2}"#).await;
    assert_eq!(
        (other.status, other.json()["error"].as_str()),
        (StatusCode::CONFLICT, Some("idempotency_key_reused"))
    );
    assert_eq!(other.json()["request_fingerprint"].as_str().unwrap().len(), 16);
    let bobs = web.publish("bob", "a", TO_TOPIC).await;
    assert_eq!(bobs.status, StatusCode::CONFLICT);
    assert!(bobs.json().get("broker_message_id").is_none());
    let view = web.ask(Method::GET, "/v1/meshes/m/messages/a", Some("alice"), "").await.json();
    assert_eq!((view["recipients"].as_i64(), view["acknowledged"].as_i64()), (Some(2), Some(0)));
}

pub(crate) async fn refusals_have_their_statuses(world: World) {
    let web = Web::new(&world);
    let large = format!(r#"{{"to":{{"topic":"t"}},"body":"{}"}}"#, "x".repeat(66_000));
    for (body, id, status, code) in [
        ("{", "a", 400, "request_malformed"),
        (r#"{"to":{"topic":"t"},"body":1,"client_message_id":"b"}"#, "a", 400, "request_malformed"),
        (r#"{"to":{"queue":"t"},"body":1}"#, "a", 400, "request_malformed"),
        (r#"{"to":{"topic":"nowhere"},"body":1}"#, "a", 404, "destination_unknown"),
        (r#"{"to":{"member":"nobody"},"body":1}"#, "a", 404, "destination_unknown"),
        (large.as_str(), "a", 413, "body_too_large"),
    ] {
        let answer = web.publish("alice", id, body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error"].as_str()),
            (status, Some(code)),
            "{body:.60}"
        );
        assert_eq!(answer.headers["semel-guarantee"], "atomic");
    }
    let stranger = web.publish("carol", "a", TO_TOPIC).await;
    assert_eq!((stranger.status.as_u16(), stranger.json()["error"].as_str()), (422, Some("not_subscribed")));
    let without = web.ask(Method::POST, "/v1/meshes/m/messages", Some("alice"), TO_TOPIC).await;
    assert_eq!(without.status, StatusCode::BAD_REQUEST);
    world.db.watch.fail(Some("INSERT INTO message_history"));
    let away = web.publish("alice", "a", TO_TOPIC).await;
    assert_eq!(away.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(away.headers.contains_key("retry-after"));
    world.db.watch.fail(None);
    assert_eq!(web.publish("alice", "a", TO_TOPIC).await.status, StatusCode::CREATED);
}

/// Room for one batch, which may take a second.
pub(crate) fn little_room() -> Settings {
    let bounds = BodyBounds { bytes_max: 8 << 20, time_max: Duration::from_secs(1) };
    Settings { bodies: bounds, ..Settings::default() }
}

pub(crate) async fn bodies_share_one_room_and_strangers_have_none(world: World) {
    let web = Web::new(&world);
    // A batch that is begun and never ends takes all the room.
    let asked_for = Arc::new(Notify::new());
    let unfinished = |path: &str, member: &str| {
        let asked_for = Arc::clone(&asked_for);
        let frames = futures_util::stream::poll_fn(move |_| {
            asked_for.notify_one();
            Poll::<Option<Result<bytes::Bytes, std::io::Error>>>::Pending
        });
        let headers = [("content-type", "application/x-ndjson")];
        let (parts, _) = request(Method::POST, path, Some(member), &headers, "").into_parts();
        web.listen.clone().oneshot(Request::from_parts(parts, Body::from_stream(frames)))
    };
    let slow = tokio::spawn(unfinished("/v1/meshes/m/messages", "alice"));
    asked_for.notified().await;
    let refused = web.publish("alice", "a", TO_TOPIC).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text);
    assert_eq!(refused.json()["error"], "overloaded");
    assert_eq!(refused.headers["retry-after"], "1");
    for path in ["/v1/sweep", "/v1/orphans", "/v1/rebuild", "/v1/restored", "/v1/clock/confirm"] {
        let operator = web.operate(Method::POST, path, r#"{"reason":"x"}"#).await;
        assert_eq!(operator.status, StatusCode::SERVICE_UNAVAILABLE, "{path} has no room of its own");
    }
    // Nothing is read of what nobody knows, though it would never end.
    for path in ["/v1/meshes/m/messages", "/v1/meshes/m/topics/t/ack", "/v1/meshes/m/messages/a/moderation"] {
        let stranger = unfinished(path, "nobody").await.unwrap();
        assert_eq!(stranger.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let ended = told(slow.await.unwrap().unwrap()).await;
    assert_eq!(ended.status, StatusCode::REQUEST_TIMEOUT, "{}", ended.text);
    assert_eq!(ended.headers["x-should-retry"], "true");
    assert_eq!(web.publish("alice", "b", TO_TOPIC).await.status, StatusCode::CREATED);
    let reason = |length: usize| format!(r#"{{"reason":"{}"}}"#, "x".repeat(length));
    assert_eq!(web.operate(Method::POST, "/v1/sweep", &reason(100)).await.status, StatusCode::OK);
    let large = web.operate(Method::POST, "/v1/sweep", &reason(64 << 10)).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", large.text);
    // One that broke off says nothing of what was to be sent.
    let frames = futures_util::stream::iter([Ok("{"), Err(std::io::Error::other("reset"))]);
    let (parts, _) = request(Method::POST, "/v1/meshes/m/messages", Some("alice"), &[], "").into_parts();
    let broken = Request::from_parts(parts, Body::from_stream(frames));
    let broken = told(web.listen.clone().oneshot(broken).await.unwrap()).await;
    assert_eq!(broken.status, StatusCode::REQUEST_TIMEOUT, "{}", broken.text);
    assert_eq!(broken.headers["x-should-retry"], "true");
}

pub(crate) async fn outsiders_learn_nothing(world: World) {
    let web = Web::new(&world);
    assert_eq!(web.publish("alice", "a", TO_TOPIC).await.status, StatusCode::CREATED);
    world.broker.put_mesh("other", semel_broker::MeshWish { bytes_max: None, search: true }).await.unwrap();
    let outsider = [sha256(&token("dave"))];
    world.broker.put_member("other", "dave", semel_broker::Role::Owner, &outsider).await.unwrap();
    let mut answers = Vec::new();
    for (method, path) in [
        (Method::POST, "/v1/meshes/m/messages"),
        (Method::POST, "/v1/meshes/none/messages"),
        (Method::GET, "/v1/meshes/m/messages/a"),
        (Method::GET, "/v1/meshes/m/messages/unknown"),
        (Method::GET, "/v1/meshes/m/topics/t/history"),
        (Method::GET, "/v1/meshes/m/topics/none/history"),
        (Method::GET, "/v1/meshes/m/topics/t/events"),
        (Method::GET, "/v1/meshes/m/members/alice"),
        (Method::GET, "/v1/meshes/none"),
        (Method::PUT, "/v1/meshes/m"),
        (Method::POST, "/.well-known/semel/keys/a/seal?endpoint=POST%20/v1/meshes/m/messages"),
        (Method::POST, "/.well-known/semel/keys/unknown/seal?endpoint=POST%20/v1/meshes/m/messages"),
    ] {
        let answer = web.ask(method.clone(), path, Some("dave"), "{}").await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}: {}", answer.text);
        answers.push(answer.text);
        let nobody = web.ask(method.clone(), path, Some("nobody"), "{}").await;
        assert_eq!(nobody.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        assert_eq!(web.ask(method, path, None, "{}").await.status, StatusCode::UNAUTHORIZED);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "every answer is the same");
    // A member that is not subscribed is told the same of a topic that is there and of one that is not.
    let there = web.ask(Method::GET, "/v1/meshes/m/topics/t/history", Some("carol"), "").await;
    let absent = web.ask(Method::GET, "/v1/meshes/m/topics/none/history", Some("carol"), "").await;
    assert_eq!((there.status, &there.text), (StatusCode::FORBIDDEN, &absent.text));
}

pub(crate) async fn several_messages_have_an_answer_each(world: World) {
    let web = Web::new(&world);
    let line = |id: &str, to: &str| format!(r#"{{"client_message_id":"{id}","to":{to},"body":"{id}"}}"#);
    let (topic, nowhere) = (r#"{"topic":"t"}"#, r#"{"topic":"no"}"#);
    let body =
        [line("a", topic), line("b", nowhere), "{".to_owned(), line("c", topic), line("a", topic)].join("\n");
    let headers = [("content-type", "application/x-ndjson")];
    let asked = request(Method::POST, "/v1/meshes/m/messages", Some("alice"), &headers, &body);
    let answer = told(web.listen.clone().oneshot(asked).await.unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let answers: Vec<serde_json::Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<i64> = answers.iter().map(|answer| answer["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses, [201, 404, 400, 201, 200]);
    assert_eq!(answers[4]["broker_message_id"], answers[0]["broker_message_id"]);
    let number =
        |at: usize| answers[at]["history_id"].as_str().unwrap().split('.').nth(1).unwrap().to_owned();
    assert_eq!((number(0), number(3)), ("1".to_owned(), "2".to_owned()), "numbered in their order");
}

pub(crate) async fn pages_mentions_search_and_moderation(world: World) {
    let web = Web::new(&world);
    for at in 1..=5 {
        let body = format!(
            r#"{{"to":{{"topic":"t"}},"body":{{"n":{at},"word":"apple{at} pear"}},"mentions":["bob","carol"]}}"#
        );
        assert_eq!(web.publish("alice", &format!("m{at}"), &body).await.status, StatusCode::CREATED);
    }
    let direct = r#"{"to":{"member":"bob"},"body_base64":"aGk=","content_type":"text/plain"}"#;
    assert_eq!(web.publish("alice", "d", direct).await.status, StatusCode::CREATED);
    let get = |path: &str, member: &'static str| {
        let path = path.to_owned();
        let web = &web;
        async move { web.ask(Method::GET, &path, Some(member), "").await.json() }
    };
    let page = get("/v1/meshes/m/topics/t/history?limit=2", "bob").await;
    assert_eq!(page["messages"].as_array().unwrap().len(), 2);
    let next = page["next_after"].as_str().unwrap().to_owned();
    let rest = get(&format!("/v1/meshes/m/topics/t/history?after={next}"), "bob").await;
    assert_eq!(rest["messages"].as_array().unwrap().len(), 3);
    assert_eq!(rest["next_after"], json!(null));
    assert_eq!(rest["messages"][0]["body"]["n"], 3);
    let directs = get("/v1/meshes/m/direct/history", "bob").await;
    assert_eq!(directs["messages"][0]["body_base64"], "aGk=");
    assert_eq!(directs["messages"][0]["line"], "direct");
    assert_eq!(get("/v1/meshes/m/direct/history", "carol").await["messages"], json!([]));
    let mentions = get("/v1/meshes/m/mentions?limit=3", "bob").await;
    assert_eq!(mentions["messages"].as_array().unwrap().len(), 3);
    let next = mentions["next_after"].as_str().unwrap().to_owned();
    let rest = get(&format!("/v1/meshes/m/mentions?after={next}"), "bob").await;
    assert_eq!(rest["messages"].as_array().unwrap().len(), 2);
    // Carol is mentioned, and may not read the topic.
    assert_eq!(get("/v1/meshes/m/mentions", "carol").await["messages"], json!([]));
    world.broker.rebuild().await.unwrap();
    let found = get("/v1/meshes/m/search?q=Apple3%20pear", "bob").await;
    assert_eq!(found["messages"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found["messages"][0]["client_message_id"], "m3");
    assert_eq!(get("/v1/meshes/m/search?q=apple3", "carol").await["messages"], json!([]));
    let moderation = "/v1/meshes/m/messages/m3/moderation";
    let refused = web.ask(Method::POST, moderation, Some("bob"), r#"{"reason":"x"}"#).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let done = web.ask(Method::POST, moderation, Some("alice"), r#"{"reason":"spam"}"#).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
    let noted = "audit_log WHERE event = 'moderated' AND sender = 'alice' AND detail = 'spam'";
    assert_eq!(world.rows(noted).await, 1, "who did it, and why");
    let page = get("/v1/meshes/m/topics/t/history", "bob").await;
    let hidden = &page["messages"][2];
    assert!(hidden.get("body").is_none() && hidden["moderated"] == true, "{hidden}");
    let body = r#"{"to":{"topic":"t"},"body":{"n":3,"word":"apple3 pear"},"mentions":["bob","carol"]}"#;
    let again = web.publish("alice", "m3", body).await;
    assert_eq!((again.status, again.json()["duplicate"].as_bool()), (StatusCode::OK, Some(true)));
    assert_eq!(get("/v1/meshes/m/search?q=apple3", "bob").await["messages"], json!([]));
    world.assert_no_orphans().await;
}

pub(crate) async fn management_is_for_operators_and_owners(world: World) {
    let web = Web::new(&world);
    let put = Method::PUT;
    let made =
        web.operate(put.clone(), "/v1/meshes/new", r#"{"limits":{"bytes":1000},"search":false}"#).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    assert_eq!(web.operate(put.clone(), "/v1/meshes/new", "{}").await.status, StatusCode::OK);
    let erin = format!(r#"{{"role":"owner","token_sha256":["{}"]}}"#, sha256(&token("erin")));
    let made = web.operate(put.clone(), "/v1/meshes/new/members/erin", &erin).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let owner =
        |method: Method, path: &'static str, body: &'static str| web.ask(method, path, Some("erin"), body);
    let frank = r#"{"role":"member","token_sha256":[]}"#;
    assert_eq!(owner(put.clone(), "/v1/meshes/new/members/frank", frank).await.status, StatusCode::CREATED);
    assert_eq!(owner(put.clone(), "/v1/meshes/new/topics/x", "{}").await.status, StatusCode::CREATED);
    let subscribe = "/v1/meshes/new/topics/x/subscriptions/frank";
    assert_eq!(owner(put.clone(), subscribe, "{}").await.status, StatusCode::CREATED);
    assert_eq!(owner(put.clone(), subscribe, "{}").await.status, StatusCode::OK);
    let hook =
        r#"{"url":"https://example.com/h","topic":"x","secrets":["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}"#;
    assert_eq!(owner(put.clone(), "/v1/meshes/new/webhooks/h", hook).await.status, StatusCode::CREATED);
    for (path, field, expected) in [
        ("/v1/meshes/new", "mesh", "new"),
        ("/v1/meshes/new/members/frank", "role", "member"),
        ("/v1/meshes/new/topics/x", "publish", "subscribers"),
        ("/v1/meshes/new/topics/x/subscriptions/frank", "member", "frank"),
        ("/v1/meshes/new/webhooks/h", "topic", "x"),
    ] {
        let shown = web.operate(Method::GET, path, "").await;
        assert_eq!((shown.status, shown.json()[field].as_str()), (StatusCode::OK, Some(expected)), "{path}");
        assert_eq!(web.ask(Method::GET, path, Some("erin"), "").await.status, StatusCode::OK, "{path}");
        assert_eq!(
            web.ask(Method::GET, path, Some("alice"), "").await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    let lists = web.operate(Method::GET, "/v1/meshes/new/members", "").await.json();
    assert_eq!(lists["members"].as_array().unwrap().len(), 2);
    for path in [
        "/v1/meshes/new/webhooks/h",
        "/v1/meshes/new/topics/x/subscriptions/frank",
        "/v1/meshes/new/topics/x",
        "/v1/meshes/new/members/frank",
    ] {
        for _ in 0..2 {
            assert_eq!(owner(Method::DELETE, path, "").await.status, StatusCode::NO_CONTENT, "{path}");
        }
        assert_eq!(web.operate(Method::GET, path, "").await.status, StatusCode::NOT_FOUND, "{path}");
    }
    // A rotated token: both live, then the new one alone.
    let both = format!(
        r#"{{"role":"owner","token_sha256":["{}","{}"]}}"#,
        sha256(&token("erin")),
        sha256(&token("erin2"))
    );
    web.operate(put.clone(), "/v1/meshes/new/members/erin", &both).await;
    assert_eq!(web.ask(Method::GET, "/v1/meshes/new", Some("erin2"), "").await.status, StatusCode::OK);
    let new = format!(r#"{{"role":"owner","token_sha256":["{}"]}}"#, sha256(&token("erin2")));
    web.operate(put.clone(), "/v1/meshes/new/members/erin", &new).await;
    assert_eq!(
        web.ask(Method::GET, "/v1/meshes/new", Some("erin"), "").await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(web.operate(Method::DELETE, "/v1/meshes/new", "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(
        web.ask(Method::GET, "/v1/meshes/new", Some("erin2"), "").await.status,
        StatusCode::UNAUTHORIZED
    );
    world.assert_no_orphans().await;
}

/// Who did what to which mesh, and why: an owner by the name that the mesh knows, whatever they say of themselves. What was
/// refused, and what changed nothing, is not told; and nobody takes a row out again.
pub(crate) async fn what_operators_and_owners_do_stands_in_the_trail_by_their_names(world: World) {
    let web = Web::new(&world);
    let trail = async || {
        let rows = web.operate(Method::GET, "/v1/audit", "").await.json();
        let row = |row: &Value| {
            ["actor", "action", "mesh", "subject", "reason"]
                .map(|name| row[name].as_str().unwrap().to_owned())
        };
        rows["audit"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let before = trail().await.len();
    let erin = format!(r#"{{"role":"owner","token_sha256":["{}"]}}"#, sha256(&token("erin")));
    web.operate(Method::PUT, "/v1/meshes/new", r#"{"reason":"a new team"}"#).await;
    web.operate(Method::PUT, "/v1/meshes/new/members/erin", &erin).await;
    let refused =
        web.operate(Method::PUT, "/v1/meshes/none/topics/x", r#"{"reason":"it is not there"}"#).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(2001));
    assert_eq!(
        web.operate(Method::PUT, "/v1/meshes/new/topics/x", &long).await.status,
        StatusCode::BAD_REQUEST
    );
    let made =
        web.ask(Method::PUT, "/v1/meshes/new/topics/x", Some("erin"), r#"{"reason":"for the game"}"#).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    let gone =
        web.ask(Method::DELETE, "/v1/meshes/new/topics/x?reason=it%20is%20over", Some("erin"), "").await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    web.operate(Method::DELETE, "/v1/meshes/new/topics/never", "").await;
    let rows = trail().await;
    let told: Vec<[&str; 5]> = rows.iter().map(|row| row.each_ref().map(String::as_str)).collect();
    assert_eq!(
        told[..told.len() - before],
        [
            ["owner erin", "remove-topic", "new", "x", "it is over"],
            ["owner erin", "put-topic", "new", "x", "for the game"],
            ["operator", "put-member", "new", "erin", ""],
            ["operator", "put-mesh", "new", "", "a new team"],
        ]
    );
    let members = web.ask(Method::GET, "/v1/audit", Some("erin"), "").await;
    assert_eq!(members.status, StatusCode::NOT_FOUND, "members have no trail");
    let last: i64 = web.operate(Method::GET, "/v1/audit?limit=1", "").await.json()["next"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let page = web.operate(Method::GET, &format!("/v1/audit?limit=1&before={last}"), "").await.json();
    assert_eq!(page["audit"][0]["action"], "put-topic", "page by page: {page}");
    for sql in ["UPDATE operator_audit SET reason = ''", "DELETE FROM operator_audit"] {
        let mut tx = world.db.begin().await.unwrap();
        assert!(tx.run(sql, vec![]).await.is_err(), "{sql}");
    }
}

/// A list of any length is read page by page, whatever comes and goes meanwhile.
pub(crate) async fn lists_are_paged_by_name(world: World) {
    let web = Web::new(&world);
    web.operate(Method::PUT, "/v1/meshes/paged", "{}").await;
    let member = r#"{"role":"member","token_sha256":[]}"#;
    let hook = r#"{"url":"https://example.com/h","topic":"n-1","secrets":["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}"#;
    for at in 1..=5 {
        for (path, body) in [
            (format!("topics/n-{at}"), "{}"),
            (format!("members/n-{at}"), member),
            (format!("webhooks/n-{at}"), hook),
            (format!("topics/n-1/subscriptions/n-{at}"), "{}"),
        ] {
            let made = web.operate(Method::PUT, &format!("/v1/meshes/paged/{path}"), body).await;
            assert_eq!(made.status, StatusCode::CREATED, "{path}: {}", made.text);
        }
    }
    for (path, list, name) in [
        ("/paged/topics", "topics", "topic"),
        ("/paged/members", "members", "member"),
        ("/paged/webhooks", "webhooks", "webhook"),
        ("/paged/topics/n-1/subscriptions", "subscriptions", "member"),
        ("", "meshes", "mesh"),
    ] {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/meshes{path}?limit=2{after}");
            let page = web.operate(Method::GET, &path, "").await.json();
            let rows = page[list].as_array().unwrap_or_else(|| panic!("{path}: {page}"));
            assert!(rows.len() <= 2, "{path}: {page}");
            found.extend(rows.iter().map(|row| row[name].as_str().unwrap().to_owned()));
            let Some(next) = page["next_after"].as_str() else { break };
            after = format!("&after={next}");
        }
        let whole = web.operate(Method::GET, &format!("/v1/meshes{path}"), "").await.json();
        let all: Vec<&str> =
            whole[list].as_array().unwrap().iter().map(|row| row[name].as_str().unwrap()).collect();
        assert_eq!(found, all, "{list}");
        assert!(list == "meshes" || all.len() == 5, "{list}: {all:?}");
        assert_eq!(whole["next_after"], Value::Null, "{list}");
    }
}

pub(crate) async fn seals_are_as_the_outbox_reads_them(world: World) {
    let web = Web::new(&world);
    let seal = |id: &str| format!("/.well-known/semel/keys/{id}/seal?endpoint=POST%20/v1/meshes/m/messages");
    let sealed = web.ask(Method::POST, &seal("a"), Some("alice"), "").await;
    let body = sealed.json();
    assert_eq!(
        (sealed.status, &body["sealed"], &body["identity"]),
        (StatusCode::OK, &json!(true), &json!("verified"))
    );
    let late = web.publish("alice", "a", TO_TOPIC).await;
    assert_eq!((late.status, late.json()["error"].as_str()), (StatusCode::CONFLICT, Some("key_sealed")));
    let first = web.publish("alice", "b", TO_TOPIC).await.json();
    let settled = web.ask(Method::POST, &seal("b"), Some("alice"), "").await.json();
    assert_eq!((&settled["sealed"], &settled["state"]), (&json!(false), &json!("settled")));
    assert_eq!(settled["broker_message_id"], first["broker_message_id"]);
}

pub(crate) async fn seals_of_unknown_ids_are_limited(world: World) {
    let settings = Settings { request_limit: rate(2, 3600), ..Settings::default() };
    world.broker.set_settings(settings).unwrap();
    let web = Web::new(&world);
    let seal = |id: &str| {
        let path = format!("/.well-known/semel/keys/{id}/seal?endpoint=POST%20/v1/meshes/m/messages");
        let web = &web;
        async move { web.ask(Method::POST, &path, Some("alice"), "").await }
    };
    for id in ["a", "b"] {
        assert_eq!(seal(id).await.status, StatusCode::OK);
    }
    let third = seal("c").await;
    assert_eq!(third.status, StatusCode::TOO_MANY_REQUESTS, "{}", third.text);
    assert!(third.headers.contains_key("retry-after"));
    assert_eq!(world.rows("client_message_dedupe").await, 2);
    assert_eq!(seal("a").await.json()["sealed"], true, "what is known is told");
}

/// The request as a whole is read, too, however far the limit was lowered since.
pub(crate) async fn what_was_larger_than_is_taken_now_is_read(world: World) {
    world.broker.set_settings(Settings { inline_bytes: 1 << 20, ..Settings::default() }).unwrap();
    let web = Web::new(&world);
    let body = format!(r#"{{"to":{{"topic":"t"}},"body":"{}"}}"#, "x".repeat(300_000));
    assert_eq!(web.publish("alice", "a", &body).await.status, StatusCode::CREATED);
    world.broker.set_settings(Settings { inline_bytes: 100, ..Settings::default() }).unwrap();
    let again = web.publish("alice", "a", &body).await;
    assert_eq!((again.status, again.json()["duplicate"].as_bool()), (StatusCode::OK, Some(true)));
    assert_eq!(web.publish("alice", "b", &body).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}

/// Ids of messages are minted before their commit: one that was minted first and commits last is found nevertheless.
pub(crate) async fn a_message_that_commits_late_is_below_no_cursor(world: World) {
    let web = Web::new(&world);
    let publish = |id: &'static str, to: &'static str| {
        let text = format!(r#"{{"to":{to},"body":"apple pear","mentions":["bob"]}}"#);
        let (web, broker) = (&web, &world.broker);
        async move {
            assert_eq!(web.publish("alice", id, &text).await.status, StatusCode::CREATED);
            broker.rebuild().await.unwrap();
        }
    };
    let (topic, direct) = (r#"{"topic":"t"}"#, r#"{"member":"bob"}"#);
    let page = |of: &'static str, after: String| {
        let path = format!("/v1/meshes/m/{of}limit=10&after={after}");
        let web = &web;
        async move {
            let page = web.ask(Method::GET, &path, Some("bob"), "").await.json();
            let ids = page["messages"].as_array().unwrap().iter();
            let ids: Vec<String> =
                ids.map(|message| message["client_message_id"].as_str().unwrap().to_owned()).collect();
            (ids, page["next_after"].as_str().map(str::to_owned))
        }
    };
    publish("a", topic).await;
    publish("b", direct).await;
    let mut nexts = Vec::new();
    for of in ["mentions?", "search?q=pear&", "search?q=apple%20pear&"] {
        let (mut ids, next) = page(of, "0".to_owned()).await;
        // Ids of one millisecond have no order.
        ids.sort();
        assert_eq!(ids, ["a", "b"], "{of}");
        nexts.push((of, next.expect("a page says how far it went")));
    }
    publish("late", topic).await;
    let early = "00000000000000000000000000";
    for (table, column) in [
        ("client_message_dedupe", "broker_message_id"),
        ("topic_message", "id"),
        ("message_history", "broker_message_id"),
        ("search_word", "broker_message_id"),
        ("mention_index", "broker_message_id"),
    ] {
        let of = "SELECT broker_message_id FROM mention_index WHERE number = 2";
        world.execute(&format!("UPDATE {table} SET {column} = '{early}' WHERE {column} = ({of})")).await;
    }
    publish("c", direct).await;
    for (of, next) in nexts {
        let (ids, next) = page(of, next).await;
        assert_eq!(ids, ["late", "c"], "{of}");
        assert_eq!(page(of, next.unwrap()).await, (vec![], None), "{of}");
        let wrong = web.ask(Method::GET, &format!("/v1/meshes/m/{of}after=x"), Some("bob"), "").await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{of}");
    }
    // One at a time, each comes once.
    let (mut after, mut ids) = ("0".to_owned(), Vec::new());
    loop {
        let path = format!("/v1/meshes/m/search?q=pear&limit=1&after={after}");
        let found = web.ask(Method::GET, &path, Some("bob"), "").await.json();
        let Some(message) = found["messages"].get(0) else { break };
        ids.push(message["client_message_id"].as_str().unwrap().to_owned());
        after = found["next_after"].as_str().unwrap().to_owned();
    }
    ids.sort();
    assert_eq!(ids, ["a", "b", "c", "late"]);
}

pub(crate) async fn pages_say_what_is_gone_between_their_messages(world: World) {
    let web = Web::new(&world);
    for id in ["a", "b", "c", "d"] {
        assert_eq!(web.publish("alice", id, TO_TOPIC).await.status, StatusCode::CREATED);
    }
    let page = |after: String| {
        let path = format!("/v1/meshes/m/topics/t/history?after={after}");
        let web = &web;
        async move { web.ask(Method::GET, &path, Some("bob"), "").await.json() }
    };
    let ids = |page: &serde_json::Value| -> Vec<String> {
        let messages = page["messages"].as_array().unwrap().iter();
        messages.map(|message| message["client_message_id"].as_str().unwrap().to_owned()).collect()
    };
    let expire = "UPDATE client_message_dedupe SET expires_at = 0 WHERE client_message_id =";
    world.execute(&format!("{expire} 'b'")).await;
    world.broker.sweep().await.unwrap();
    let first = page("0".to_owned()).await;
    assert_eq!((ids(&first), &first["gap"]), (vec!["a".to_owned()], &json!(null)));
    let last = first["next_after"].as_str().unwrap().to_owned();
    let second = page(last.clone()).await;
    assert_eq!(ids(&second), ["c", "d"]);
    assert_eq!(second["gap"]["from"], last.as_str());
    assert_eq!((&second["gap"]["reason"], &second["next_after"]), (&json!("swept"), &json!(null)));
    // The newest went: the page after the last one that is kept says so, once.
    let c = second["messages"][0]["id"].as_str().unwrap().to_owned();
    world.execute(&format!("{expire} 'd'")).await;
    world.broker.sweep().await.unwrap();
    let end = page(c).await;
    assert_eq!((ids(&end), &end["gap"]["reason"]), (vec![], &json!("swept")));
    let after = page(end["next_after"].as_str().unwrap().to_owned()).await;
    assert_eq!((ids(&after), &after["gap"]), (vec![], &json!(null)));
}

/// What a PUT does not say of a member stays: a fresh token revokes no other, and takes no right away.
pub(crate) async fn what_is_not_said_of_a_member_stays(world: World) {
    let web = Web::new(&world);
    let put = |member: &'static str, body: String| {
        let web = &web;
        async move { web.operate(Method::PUT, &format!("/v1/meshes/m/members/{member}"), &body).await }
    };
    let added = put("alice", format!(r#"{{"add_token_sha256":["{}"]}}"#, sha256(&token("alice2")))).await;
    assert_eq!((added.status, added.json()["tokens"].as_i64()), (StatusCode::OK, Some(2)), "{}", added.text);
    assert_eq!(added.json()["role"], "owner");
    for by in ["alice", "alice2"] {
        let shown = web.ask(Method::GET, "/v1/meshes/m", Some(by), "").await;
        assert_eq!(shown.status, StatusCode::OK, "{by}");
    }
    let role = put("alice", r#"{"role":"member"}"#.to_owned()).await.json();
    assert_eq!((&role["role"], &role["tokens"]), (&json!("member"), &json!(2)));
    let none = put("alice", r#"{"token_sha256":[]}"#.to_owned()).await.json();
    assert_eq!((&none["role"], &none["tokens"]), (&json!("member"), &json!(0)));
    // Whoever comes back has no rights from before.
    put("alice", r#"{"role":"owner"}"#.to_owned()).await;
    web.operate(Method::DELETE, "/v1/meshes/m/members/alice", "").await;
    let back = put("alice", "{}".to_owned()).await;
    assert_eq!((back.status, &back.json()["role"]), (StatusCode::CREATED, &json!("member")));
    world.assert_no_orphans().await;
}

/// Verifies callers by a header `mesh/member`, as something in front might.
struct ByHeader;

impl semel_broker::Identify for ByHeader {
    fn identify<'a>(&'a self, parts: &'a http::request::Parts) -> semel_broker::Identified<'a> {
        use semel_contract::identity::Caller;
        use semel_contract::problem::{Kind, Problem};
        let named = parts.headers.get("x-user").and_then(|value| value.to_str().ok()?.split_once('/'));
        let verified = named
            .map(|(mesh, member)| Caller { tenant: Some(mesh.to_owned()), principal: member.to_owned() })
            .ok_or_else(|| Problem::new(Kind::IdentityMissing, ""));
        Box::pin(std::future::ready(verified))
    }

    fn expires(&self, parts: &http::request::Parts) -> Option<semel_contract::time::Timestamp> {
        let millis = parts.headers.get("x-expires")?.to_str().ok()?.parse().ok()?;
        Some(semel_contract::time::Timestamp::from_millis(millis))
    }
}

/// A token is good until it ends; so is what was opened with it, or with a ticket that it bought.
pub(crate) async fn a_stream_ends_with_the_credential_that_opened_it(world: World) {
    use futures_util::StreamExt;
    let identity = semel_broker::Identity::Verified(std::sync::Arc::new(ByHeader));
    let router = semel_broker::listen_router(world.broker.clone(), identity, None);
    let now = world.broker.clock().await.unwrap().0;
    let ends = (now + 1500).to_string();
    let headers = [("x-user", "m/bob"), ("x-expires", ends.as_str())];
    let asked = request(Method::POST, "/v1/meshes/m/ticket", None, &headers, "");
    let ticket = told(router.clone().oneshot(asked).await.unwrap()).await.json();
    let by_ticket = format!("/v1/meshes/m/topics/t/events?ticket={}", ticket["ticket"].as_str().unwrap());
    let mut opened = Vec::new();
    for (path, headers) in [("/v1/meshes/m/topics/t/events", &headers[..]), (&by_ticket, &[])] {
        let asked = request(Method::GET, path, None, headers, "");
        let response = router.clone().oneshot(asked).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        opened.push(response.into_body().into_data_stream());
    }
    for mut body in opened {
        let ended = async { while body.next().await.is_some() {} };
        tokio::time::timeout(std::time::Duration::from_secs(5), ended).await.expect("it goes on");
        let passed = world.broker.clock().await.unwrap().0 - now;
        assert!(passed >= 1400, "it ended after {passed} ms");
    }
}

pub(crate) async fn verified_identities_are_members_by_tenant_and_principal(world: World) {
    let identity = semel_broker::Identity::Verified(std::sync::Arc::new(ByHeader));
    let cors = semel_http::Cors::new(&["https://app.example".to_owned()], false).unwrap();
    let router = semel_broker::listen_router(world.broker.clone(), identity, Some(cors));
    let publish = |user: &'static str, id: &'static str| {
        let headers = [("x-user", user), ("idempotency-key", id), ("origin", "https://app.example")];
        let asked = request(Method::POST, "/v1/meshes/m/messages", None, &headers, TO_TOPIC);
        let router = router.clone();
        async move { told(router.oneshot(asked).await.unwrap()).await }
    };
    let accepted = publish("m/alice", "a").await;
    assert_eq!(accepted.status, StatusCode::CREATED, "{}", accepted.text);
    assert_eq!(accepted.headers["access-control-allow-origin"], "https://app.example");
    // Of another mesh, not a member of this one, and nobody at all.
    assert_eq!(publish("other/alice", "b").await.status, StatusCode::FORBIDDEN);
    assert_eq!(publish("m/mallory", "b").await.status, StatusCode::FORBIDDEN);
    assert_eq!(publish("nobody", "b").await.status, StatusCode::UNAUTHORIZED);
    let asked = http::Request::options("/v1/meshes/m/messages")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .body(axum::body::Body::empty())
        .unwrap();
    let preflight = told(router.clone().oneshot(asked).await.unwrap()).await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
}
