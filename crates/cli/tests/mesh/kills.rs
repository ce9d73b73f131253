//! `kill -9` of the broker and of each daemon in turn, while every member publishes: each accepted message is in each inbox
//! once, in the order of its line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Daemon, World, until};

const MEMBERS: [&str; 3] = ["alice", "bob", "carol"];

/// The number in an event's id.
fn number(message: &Value) -> i64 {
    let id = message["event_id"].as_str().unwrap_or_default();
    id.split('.').nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{message}"))
}

fn send(daemon: &Daemon, id: &str) {
    let envelope = json!({"client_message_id": id, "to": {"topic": "news"}, "body": {"id": id}});
    until("the daemon takes it", || match daemon.call("POST", "/v1/send", &envelope) {
        Some((200 | 202, _)) => Some(()),
        Some((status, told)) => panic!("{status} {told}"),
        // Killed: the same message again, under the same id.
        None => None,
    });
}

#[test]
fn every_accepted_message_is_in_every_inbox_once_and_in_order_whoever_is_killed() {
    let each: usize =
        std::env::var("SEMEL_TEST_MESH_EACH").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let mut world = World::new(&MEMBERS, &["news"]);
    let mut daemons: Vec<Daemon> =
        MEMBERS.iter().map(|name| world.daemon(name, "topics = [\"news\"]")).collect();
    // The killed one is another in each quarter: nobody, the broker, a publisher, a mere reader.
    let victims = [None, Some(0), Some(1), Some(3)];
    for (round, victim) in victims.into_iter().enumerate() {
        for n in 0..each {
            let n = round * each + n;
            for at in 0..2 {
                send(&daemons[at], &format!("{}-{n}", MEMBERS[at]));
            }
            if n % each != each / 3 {
                continue;
            }
            match victim {
                None => {}
                Some(0) => world.broker.kill(),
                Some(who) => daemons[who - 1].process.kill(),
            }
            match victim {
                None => {}
                Some(0) => {
                    // What is sent meanwhile waits in its outbox.
                    std::thread::sleep(Duration::from_millis(300));
                    world.start_broker();
                }
                Some(who) => daemons[who - 1].start(),
            }
        }
    }
    let sent: BTreeSet<String> =
        (0..each * victims.len()).flat_map(|n| ["alice", "bob"].map(|name| format!("{name}-{n}"))).collect();
    let mut orders: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for daemon in &daemons {
        let inbox = daemon.inbox_of(sent.len());
        let ids: BTreeSet<String> =
            inbox.iter().map(|message| message["id"].as_str().unwrap_or_default().to_owned()).collect();
        assert_eq!(inbox.len(), ids.len(), "{}: each once", daemon.name);
        assert_eq!(ids, sent, "{}: all of them, and nothing else", daemon.name);
        let numbers: Vec<i64> = inbox.iter().map(number).collect();
        assert!(numbers.windows(2).all(|two| two[0] < two[1]), "{}: in order: {numbers:?}", daemon.name);
        orders.insert(&daemon.name, numbers);
    }
    assert!(orders.values().all(|numbers| *numbers == orders["alice"]), "everybody has the same");
    // Every receipt is done, and names the message.
    for daemon in &daemons[..2] {
        until("all receipts", || {
            let (_, told) = daemon.call("GET", "/v1/messages?state=done&limit=1000", &Value::Null)?;
            let receipts = told["messages"].as_array()?;
            let is_named = |receipt: &Value| receipt["broker_message_id"].is_string();
            (receipts.len() == each * victims.len() && receipts.iter().all(is_named)).then_some(())
        });
    }
    let orphans: Value = serde_json::from_str(&world.manage(&["orphans", "--json"])).unwrap();
    assert_eq!(orphans["orphans"], 0, "{orphans}");
}
