//! What a daemon receives, and what its commands show of it.

use serde_json::{Value, json};

use crate::world::{World, done, done_json, log, semel, until};

const NEWS: &str = "topics = [\"news\"]";
const ALL: &str = "topics = [\"news\"]\ndirect = true";
const MESSAGES: &str = "/v1/meshes/team/messages";

fn ids(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["id"].as_str()).collect()
}

#[test]
fn what_an_outbox_publishes_is_in_every_inbox_until_it_is_acknowledged() {
    let world = World::new(&["alice", "bob"], &["news"]);
    let (alice, bob) = (world.daemon("alice", ALL), world.daemon("bob", ALL));
    let sent = done_json(
        &alice.folder,
        &["outbox", "send", "--topic", "news", "{\"n\": 1.50}", "--id", "m1", "--wait", "30"],
    );
    assert_eq!(
        (sent["status"].as_str(), sent["response"]["status"].as_i64()),
        (Some("done"), Some(201)),
        "{sent}"
    );
    assert!(sent["broker_message_id"].is_string() && sent["history_id"].is_string(), "{sent}");
    done(&alice.folder, &["outbox", "send", "--to", "bob", "-d", "hello", "--id", "m2", "--wait", "30"]);
    let received = bob.inbox_of(2);
    let news = received.iter().find(|message| message["id"] == "m1").expect("the topic's message");
    assert_eq!(
        (&news["sender"], &news["mesh"], &news["line"]),
        (&json!("alice"), &json!("team"), &json!("topic:news"))
    );
    assert_eq!((&news["body"], &news["broker_message_id"]), (&json!({"n": 1.5}), &sent["broker_message_id"]));
    assert_eq!(news["history_id"], sent["history_id"]);
    assert_eq!(news["client_tx_id"], sent["client_tx_id"], "its sender knows its echo");
    let direct = received.iter().find(|message| message["id"] == "m2").expect("the direct message");
    assert_eq!(direct["body"], "hello");
    assert_eq!(ids(&alice.inbox_of(1)), ["m1"], "a sender has its own, and not what is another's");
    // The broker knows who has it on disk.
    until("both acknowledgements", || {
        let (status, receipt) = world.ask("alice", "GET", &format!("{MESSAGES}/m1"), "", &Value::Null)?;
        (status == 200 && receipt["recipients"] == 2 && receipt["acknowledged"] == 2).then_some(())
    });
    let list = done(&bob.folder, &["inbox", "list"]);
    assert!(list.contains("alice") && list.contains("m1") && list.contains("NUMBER"), "{list}");
    let acked = done_json(&bob.folder, &["inbox", "ack", "alice", "m1"]);
    assert_eq!((&acked["acknowledged"], &acked["duplicate"]), (&json!(true), &json!(false)));
    assert_eq!(done_json(&bob.folder, &["inbox", "ack", "alice", "m1"])["duplicate"], true);
    assert_eq!(ids(&bob.inbox()), ["m2"]);
    let shown = done_json(&bob.folder, &["inbox", "show", "alice", "m1"]);
    assert!(shown["acknowledged_at"].is_string() && shown.get("body").is_none(), "{shown}");
    let unknown = semel(&bob.folder, &["inbox", "ack", "alice", "m9"]);
    assert_eq!(unknown.status.code(), Some(5), "{}", String::from_utf8_lossy(&unknown.stderr));
}

#[test]
fn a_message_and_the_one_that_takes_its_place_are_received_as_one() {
    let world = World::new(&["alice", "bob"], &["news"]);
    let bob = world.daemon("bob", NEWS);
    let publish = |id: &str, supersedes: Option<&str>| {
        let line = supersedes.map(|id| format!("semel-supersedes: {id}\r\n")).unwrap_or_default();
        let body = json!({"to": {"topic": "news"}, "body": id});
        let (status, told) =
            world.ask("alice", "POST", MESSAGES, &format!("idempotency-key: {id}\r\n{line}"), &body).unwrap();
        assert_eq!(status, 201, "{told}");
    };
    publish("m1", None);
    publish("m1-again", Some("m1"));
    publish("m2-again", Some("m2"));
    publish("m2", None);
    publish("m3", None);
    until("the last one", || ids(&bob.inbox()).contains(&"m3").then_some(()));
    assert_eq!(ids(&bob.inbox()), ["m1", "m2-again", "m3"]);
    assert_eq!(bob.inbox()[1]["supersedes"], "m2");
}

#[test]
fn the_settings_are_read_again_and_a_line_that_is_refused_says_why() {
    let world = World::new(&["alice", "bob"], &["news", "ops"]);
    let bob = world.daemon("bob", NEWS);
    let line = |name: &str| {
        let (_, told) = bob.call("GET", "/v1/inbox", &Value::Null)?;
        told["lines"].as_array()?.iter().find(|line| line["line"] == name).cloned()
    };
    let is = |name: &str, state: &str| line(name).filter(|line| line["state"] == state);
    until("a live line", || is("topic:news", "live"));
    world.set(&bob, "topics = [\"news\", \"ops\", \"none\"]");
    bob.process.signal(libc::SIGHUP);
    until("another live line", || is("topic:ops", "live"));
    let refused = until("a refusal", || is("topic:none", "refused"));
    assert!(refused["why"].as_str().is_some_and(|why| why.contains("403")), "{refused}");
    assert!(done(&bob.folder, &["inbox", "list"]).contains("topic:none of team is refused"), "{refused}");
    // What is wrong changes nothing.
    std::fs::write(bob.folder.join("semel.toml"), "[[outbox.receive]]\nmesh = 7\n").unwrap();
    bob.process.signal(libc::SIGHUP);
    until("a refusal in the log", || log(&bob.folder).contains("the old one stays").then_some(()));
    assert!(is("topic:ops", "live").is_some());
    // The line is let in once the topic is there.
    world.manage(&["topics", "add", "none", "--mesh", "team"]);
    world.manage(&["subscriptions", "add", "bob", "--mesh", "team", "--topic", "none"]);
    until("the line is let in", || is("topic:none", "live"));
    // A revoked credential is read again.
    world.manage(&["members", "remove", "bob", "--mesh", "team"]);
    until("bob is out", || is("topic:news", "refused"));
    let token = world.manage(&["members", "add", "bob", "--mesh", "team"]);
    std::fs::write(world.token("bob"), token).unwrap();
    for topic in ["news", "ops"] {
        world.manage(&["subscriptions", "add", "bob", "--mesh", "team", "--topic", topic]);
    }
    until("bob is back", || is("topic:news", "live"));
}

#[test]
fn what_cannot_be_had_is_said() {
    let world = World::new(&["alice", "bob"], &["news"]);
    let bob = world.daemon("bob", NEWS);
    let body = json!({"to": {"topic": "news"}, "body": 1, "client_message_id": "m1"});
    assert_eq!(world.ask("alice", "POST", MESSAGES, "", &body).unwrap().0, 201);
    bob.inbox_of(1);
    world.manage(&["restored"]);
    let mut world = world;
    world.broker.kill();
    world.start_broker();
    let gap = until("a gap", || {
        let (_, told) = bob.call("GET", "/v1/inbox", &Value::Null)?;
        told["gaps"].as_array()?.first().cloned()
    });
    assert_eq!(
        (&gap["reason"], &gap["line"], &gap["mesh"]),
        (&json!("epoch"), &json!("topic:news"), &json!("team"))
    );
    assert!(done(&bob.folder, &["inbox", "list"]).contains("has a gap"));
    let body = json!({"to": {"topic": "news"}, "body": 2, "client_message_id": "m2"});
    assert_eq!(world.ask("alice", "POST", MESSAGES, "", &body).unwrap().0, 201);
    assert_eq!(ids(&bob.inbox_of(2)), ["m1", "m2"], "it goes on");
}

#[test]
fn a_broker_that_ends_in_good_order_ends_its_streams_where_they_go_on() {
    let mut world = World::new(&["alice", "bob"], &["news"]);
    let bob = world.daemon("bob", ALL);
    let publish = |world: &World, id: &str| {
        let body = json!({"to": {"topic": "news"}, "body": id, "client_message_id": id});
        assert_eq!(world.ask("alice", "POST", MESSAGES, "", &body).unwrap().0, 201);
    };
    publish(&world, "m1");
    bob.inbox_of(1);
    world.broker.signal(libc::SIGTERM);
    world.broker.wait();
    world.start_broker();
    publish(&world, "m2");
    assert_eq!(ids(&bob.inbox_of(2)), ["m1", "m2"]);
    let metrics = bob.call("GET", "/metrics", &Value::Null);
    assert!(metrics.is_some_and(|(status, _)| status == 200));
    let (_, told) = bob.call("GET", "/v1/inbox", &Value::Null).unwrap();
    assert_eq!(told["gaps"], json!([]), "nothing was left out");
}

#[test]
fn a_tail_shows_what_there_is_and_what_comes() {
    use std::io::BufRead as _;
    let world = World::new(&["alice", "bob"], &["news"]);
    let mut bob = world.daemon("bob", NEWS);
    let publish = |id: &str| {
        let body = json!({"to": {"topic": "news"}, "body": id, "client_message_id": id});
        assert_eq!(world.ask("alice", "POST", MESSAGES, "", &body).unwrap().0, 201);
    };
    publish("m1");
    bob.inbox_of(1);
    let mut tail = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["inbox", "tail", "--json"])
        .current_dir(&bob.folder)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["id"].clone();
    assert_eq!(next(), "m1");
    publish("m2");
    assert_eq!(next(), "m2");
    bob.process.kill();
    bob.start();
    publish("m3");
    assert_eq!(next(), "m3", "also after its daemon was killed");
    tail.kill().unwrap();
    tail.wait().unwrap();
}
