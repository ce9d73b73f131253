//! Callers of the outboxes: each message is handed in until it is accepted, and must then arrive once, in its lane's order,
//! or be said to have been given up or to be in doubt.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http;
use super::outboxes::TOKEN;
use super::random::Random;
use super::upstream::Upstream;
use super::verdict::Row;

/// How many hand in at a time.
const CALLERS: u64 = 10;
/// Messages after which a caller takes another lane: a lane whose head waits, waits.
const LANE_MESSAGES: u64 = 4;
/// How many receipts are asked for at a time.
const ASKING: usize = 8;
const PATIENCE: Duration = Duration::from_secs(3);

/// The callers, at work.
pub(crate) struct Mail {
    threads: Vec<JoinHandle<Vec<Accepted>>>,
    ports: Vec<u16>,
}

/// A message that was accepted.
struct Accepted {
    intent: String,
    id: String,
    lane: String,
    /// Which outbox has it.
    outbox: usize,
}

impl Mail {
    pub(crate) fn start(ports: &[u16], stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let caller = |number: u64| {
            let (ports, stop) = (ports.to_vec(), Arc::clone(stop));
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(77) + number);
                let mut accepted = Vec::new();
                for count in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let outbox = number as usize % ports.len();
                    let lane = format!("lane-{number}-{}", count / LANE_MESSAGES);
                    let one =
                        Accepted { intent: format!("{lane}#{count:08}"), id: random.uuid(), lane, outbox };
                    if hand_in(ports[outbox], &one, &stop) {
                        accepted.push(one);
                    }
                    thread::sleep(Duration::from_millis(10 + random.below(50)));
                }
                accepted
            })
        };
        Self { threads: (0..CALLERS).map(caller).collect(), ports: ports.to_vec() }
    }

    /// Waits for the callers and for what they handed in, and judges it.
    pub(crate) fn judge(self, upstream: &Upstream, until: Instant) -> Vec<Row> {
        let accepted: Vec<Accepted> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let statuses = statuses(&self.ports, &accepted, until);
        let effects = upstream.effects();
        let count = |one: &Accepted| effects.get(&one.intent).copied().unwrap_or(0);
        let with = |wanted: &str| {
            accepted.iter().filter(|one| statuses.get(one.id.as_str()).is_some_and(|it| it == wanted)).count()
        };
        let twice = accepted.iter().filter(|one| count(one) > 1).count();
        let is_done = |one: &&Accepted| statuses.get(one.id.as_str()).is_some_and(|it| it == "done");
        let lost = with("gone") + accepted.iter().filter(|one| is_done(one) && count(one) == 0).count();
        let waiting = accepted.len() - with("done") - with("dead") - with("aborted") - with("gone");
        vec![
            Row::count("messages accepted by an outbox", accepted.len()),
            Row::count("messages delivered", with("done")),
            Row::count("messages given up, and said to be (dead)", with("dead") + with("aborted")),
            Row::count("messages that still wait for the gateway's word", waiting),
            Row::promise("messages that took effect twice", twice),
            Row::promise("messages accepted and lost", lost),
            Row::promise(
                "messages that overtook another of their lane",
                out_of_order(&accepted, &upstream.order()),
            ),
        ]
    }
}

/// Where every message stands, once it stands for good or the time is up. Several are asked for at a time.
fn statuses<'a>(ports: &[u16], accepted: &'a [Accepted], until: Instant) -> BTreeMap<&'a str, String> {
    let (next, statuses) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let ask = || {
        while let Some(one) = accepted.get(next.fetch_add(1, Ordering::SeqCst)) {
            let mut found = status(ports[one.outbox], &one.id);
            while !matches!(found.as_str(), "done" | "dead" | "aborted" | "gone") && Instant::now() < until {
                thread::sleep(Duration::from_millis(200));
                found = status(ports[one.outbox], &one.id);
            }
            statuses.lock().unwrap_or_else(PoisonError::into_inner).insert(one.id.as_str(), found);
        }
    };
    thread::scope(|scope| {
        for _ in 0..ASKING {
            scope.spawn(ask);
        }
    });
    statuses.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Messages whose effect came after that of a later one of the same lane.
fn out_of_order(accepted: &[Accepted], order: &[String]) -> usize {
    let lanes: BTreeMap<&str, &str> =
        accepted.iter().map(|one| (one.intent.as_str(), one.lane.as_str())).collect();
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    let mut overtaken = 0;
    for intent in order {
        let Some(lane) = lanes.get(intent.as_str()) else { continue };
        let before = last.insert(lane, intent.as_str());
        overtaken += usize::from(before.is_some_and(|before| before > intent.as_str()));
    }
    overtaken
}

fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json")
}

/// Hands a message in until the outbox has accepted it. `false`: the run ended first.
fn hand_in(port: u16, one: &Accepted, stop: &AtomicBool) -> bool {
    let body = serde_json::json!({
        "client_message_id": one.id,
        "lane": one.lane,
        "request": { "method": "POST", "url": "/chaos", "body_text": one.intent },
    })
    .to_string();
    let since = Instant::now();
    loop {
        match http::send(port, &head("POST", "/v1/send"), &body, PATIENCE) {
            Ok(answer) if matches!(answer.status, 200 | 202) => return true,
            Ok(_) | Err(_) => {}
        }
        if stop.load(Ordering::SeqCst) && since.elapsed() > Duration::from_secs(3) {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Where a message stands: its status, `gone` where the outbox does not know it, and nothing where nobody answers.
fn status(port: u16, id: &str) -> String {
    match http::send(port, &head("GET", &format!("/v1/messages/{id}")), "", PATIENCE) {
        Ok(answer) if answer.status == 404 => "gone".to_owned(),
        Ok(answer) => {
            let receipt: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            receipt["status"].as_str().unwrap_or_default().to_owned()
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_overtaken_is_counted() {
        let one = |intent: &str| Accepted {
            intent: intent.to_owned(),
            id: String::new(),
            lane: "a".to_owned(),
            outbox: 0,
        };
        let accepted = [one("a#1"), one("a#2"), one("a#3")];
        let order = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(out_of_order(&accepted, &order("a#1 b#9 a#2 a#3")), 0);
        assert_eq!(out_of_order(&accepted, &order("a#1 a#3 a#2")), 1);
    }
}
