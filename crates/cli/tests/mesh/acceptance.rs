//! The acceptance criteria of a mesh of daemons and their broker, by the names of their rows; and the example, played.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::world::{Daemon, World, done, done_json, until};

const NEWS: &str = "topics = [\"news\"]";
const MESSAGES: &str = "/v1/meshes/team/messages";

fn send(daemon: &Daemon, id: &str, to: &Value, body: &Value) {
    let (status, told) =
        daemon.call("POST", "/v1/send", &json!({"client_message_id": id, "to": to, "body": body})).unwrap();
    assert!(matches!(status, 200 | 202), "{told}");
}

fn news() -> Value {
    json!({"topic": "news"})
}

/// The receipt of a message, once it is in this state.
fn receipt(daemon: &Daemon, id: &str, state: &str) -> Value {
    until(&format!("{id} {state}"), || {
        let (_, receipt) = daemon.call("GET", &format!("/v1/messages/{id}"), &Value::Null)?;
        (receipt["state"] == state).then_some(receipt)
    })
}

/// Publishes as the outbox of a member does, without it: its answer was lost.
fn publish(world: &World, id: &str, body: &Value) -> u16 {
    let message = json!({"to": news(), "body": body});
    world.ask("alice", "POST", MESSAGES, &format!("idempotency-key: {id}\r\n"), &message).unwrap().0
}

#[test]
fn s4_91_a_restart_resumes_what_was_pending_and_inflight_under_the_same_id() {
    let world = World::new(&["alice", "bob"], &["news"]);
    let (mut alice, bob) = (world.daemon("alice", NEWS), world.daemon("bob", NEWS));
    // It takes connections and answers nothing: an attempt stays under way.
    world.broker.signal(libc::SIGSTOP);
    send(&alice, "m1", &news(), &json!(1));
    receipt(&alice, "m1", "inflight");
    alice.process.kill();
    alice.start();
    world.broker.signal(libc::SIGCONT);
    let done = receipt(&alice, "m1", "done");
    assert_eq!(done["client_message_id"], "m1", "{done}");
    let received = bob.inbox_of(1);
    assert_eq!((received.len(), &received[0]["id"]), (1, &json!("m1")));
    let history = world.manage(&["history", "--mesh", "team", "--topic", "news"]);
    assert_eq!(history.lines().count(), 1, "{history}");
}

#[test]
fn s4_92_the_inbox_survives_restarts() {
    let world = World::new(&["alice", "bob"], &["news"]);
    let mut bob = world.daemon("bob", NEWS);
    for id in ["m1", "m2", "m3"] {
        assert_eq!(publish(&world, id, &json!(id)), 201);
    }
    bob.inbox_of(3);
    done(&bob.folder, &["inbox", "ack", "alice", "m2"]);
    bob.process.kill();
    bob.start();
    let list = done_json(&bob.folder, &["inbox", "list"]);
    let ids: Vec<&str> =
        list["messages"].as_array().unwrap().iter().filter_map(|message| message["id"].as_str()).collect();
    assert_eq!(ids, ["m1", "m3"], "what was acknowledged stays so, and nothing else is gone");
    assert_eq!(publish(&world, "m4", &json!("m4")), 201);
    let ids: Vec<Value> = bob.inbox_of(3).iter().map(|message| message["id"].clone()).collect();
    assert_eq!(ids, ["m1", "m3", "m4"], "and nothing comes twice");
}

#[test]
fn s4_93_an_id_that_the_broker_knows_for_another_message_is_dead() {
    let world = World::new(&["alice"], &["news"]);
    let alice = world.daemon("alice", NEWS);
    assert_eq!(publish(&world, "m1", &json!("first")), 201);
    send(&alice, "m1", &news(), &json!("other"));
    let dead = receipt(&alice, "m1", "dead");
    assert_eq!(dead["response"]["status"], 409, "{dead}");
    assert!(dead["last_error"].as_str().is_some_and(|why| why.contains("idempotency_key_reused")), "{dead}");
}

#[test]
fn s4_94_the_retry_of_a_committed_id_is_done_although_the_budget_is_spent() {
    let world = World::with(&["alice"], &["news"], "budget = \"1/3600s\"");
    let alice = world.daemon("alice", NEWS);
    assert_eq!(publish(&world, "m1", &json!(1)), 201, "its answer is lost");
    assert_eq!(publish(&world, "m0", &json!(0)), 429, "the budget is spent");
    send(&alice, "m1", &news(), &json!(1));
    let done = receipt(&alice, "m1", "done");
    assert_eq!(
        (done["response"]["status"].as_i64(), &done["response"]["body"]["duplicate"]),
        (Some(200), &json!(true))
    );
}

#[test]
fn s4_95_what_can_never_be_accepted_is_dead() {
    let world = World::new(&["alice"], &["news"]);
    let alice = world.daemon("alice", NEWS);
    send(&alice, "large", &news(), &json!("x".repeat(100_000)));
    let dead = receipt(&alice, "large", "dead");
    assert_eq!(dead["response"]["status"], 413, "{dead}");
    send(&alice, "nobody", &json!({"topic": ""}), &json!(1));
    assert_eq!(receipt(&alice, "nobody", "dead")["response"]["status"], 400);
}

#[test]
fn s4_96_what_is_too_much_now_waits_until_the_window_clears() {
    let world = World::with(&["alice"], &["news"], "budget = \"1/4s\"");
    let alice = world.daemon("alice", NEWS);
    for id in ["m1", "m2", "m3"] {
        send(&alice, id, &news(), &json!(id));
    }
    let receipts: Vec<Value> = ["m1", "m2", "m3"].map(|id| receipt(&alice, id, "done")).to_vec();
    let attempts: i64 = receipts.iter().filter_map(|receipt| receipt["attempts"].as_i64()).sum();
    assert!(attempts > 3, "two of them were told to wait: {receipts:?}");
    let logs: Vec<Value> = ["m1", "m2", "m3"]
        .iter()
        .flat_map(|id| {
            let (_, told) = alice.call("GET", &format!("/v1/messages/{id}"), &Value::Null).unwrap();
            told["log"].as_array().unwrap().clone()
        })
        .collect();
    assert!(logs.iter().any(|attempt| attempt["status"] == 429), "{logs:?}");
}

#[test]
fn s4_97_what_its_destination_refuses_is_dead_and_a_requeue_mints_another_id() {
    let world = World::new(&["alice", "bob"], &["news", "ops"]);
    let (alice, bob) = (world.daemon("alice", NEWS), world.daemon("bob", "topics = [\"ops\"]"));
    world.manage(&["subscriptions", "remove", "alice", "--mesh", "team", "--topic", "ops"]);
    send(&alice, "m1", &json!({"topic": "ops"}), &json!(1));
    assert_eq!(receipt(&alice, "m1", "dead")["response"]["status"], 422);
    send(&alice, "m2", &json!({"topic": "nowhere"}), &json!(2));
    assert_eq!(receipt(&alice, "m2", "dead")["response"]["status"], 404);
    world.manage(&["subscriptions", "add", "alice", "--mesh", "team", "--topic", "ops"]);
    let requeued = done_json(&alice.folder, &["outbox", "requeue", "m1", "--auto"]);
    let id = requeued["new"]["client_message_id"].as_str().unwrap();
    assert_ne!(id, "m1");
    receipt(&alice, id, "done");
    let received = bob.inbox_of(1);
    assert_eq!(
        (&received[0]["id"], &received[0]["supersedes"]),
        (&json!(id), &json!("m1")),
        "the twin is named"
    );
    let old = receipt(&alice, "m1", "aborted");
    assert_eq!(old["superseded_by"].as_str(), Some(id), "{old}");
}

#[test]
fn s4_98_an_operator_lists_and_requeues_what_is_dead() {
    let world = World::new(&["alice"], &["news"]);
    let alice = world.daemon("alice", NEWS);
    send(&alice, "m1", &json!({"topic": "later"}), &json!(1));
    receipt(&alice, "m1", "dead");
    let text = done(&alice.folder, &["outbox", "list", "--state", "dead"]);
    assert!(text.contains("m1") && text.contains("destination_unknown"), "{text}");
    world.manage(&["topics", "add", "later", "--mesh", "team", "--publish", "members"]);
    done(&alice.folder, &["outbox", "requeue", "m1", "--new-client-id", "m2"]);
    receipt(&alice, "m2", "done");
    let left = done_json(&alice.folder, &["outbox", "list", "--state", "dead"]);
    assert_eq!(left["messages"], json!([]));
}

#[test]
fn the_example_plays_its_story_to_its_end() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("examples/mesh/README.md")).unwrap();
    // As a reader of the README types it.
    let command = readme.lines().find_map(|line| line.strip_prefix("    ")).expect("a command");
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(&root)
        .env("SEMEL_BIN", env!("CARGO_BIN_EXE_semel"))
        .env_remove("SEMEL_CONFIG")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("a shell runs");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(
        output.status.success() && said.contains("at the end 24 messages, each once in every inbox"),
        "{said}"
    );
}
