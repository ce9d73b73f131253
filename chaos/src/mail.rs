//! Callers of the outboxes: each message is handed in until it is accepted, and must then arrive once, in its lane's order,
//! or be said to have been given up or to be in doubt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::http;
use super::random::Random;
use super::settling::{Accepted, Settled, Standing, head, settle};
use super::upstream::Upstream;
use super::verdict::Row;

/// How many hand in at a time.
const CALLERS: u64 = 10;
/// Messages after which a caller takes another lane: a lane whose head waits, waits.
const LANE_MESSAGES: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(3);
/// How many lanes that did not come to their end are shown.
const LINES: usize = 20;

/// The callers, at work.
pub(crate) struct Mail {
    threads: Vec<JoinHandle<Vec<Accepted>>>,
    ports: Vec<u16>,
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

    /// Waits for the callers, has what they handed in brought to its end, and judges it.
    pub(crate) fn judge(self, upstream: &Upstream, until: Instant) -> Vec<Row> {
        let accepted: Vec<Accepted> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let settled = settle(&self.ports, &accepted, upstream, until);
        for line in settled.open(&accepted).iter().take(LINES) {
            eprintln!("xtask: never came to an end: {line}");
        }
        for (why, count) in given_up(&settled.standings) {
            eprintln!("xtask: given up: {count} times {why}");
        }
        judged(&accepted, &settled, &upstream.effects(), &upstream.order())
    }
}

/// Why messages were given up, and how many for each reason.
fn given_up(standings: &[Standing]) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for standing in standings.iter().filter(|standing| standing.status == "dead") {
        *reasons.entry(standing.last_error.as_str()).or_default() += 1;
    }
    reasons
}

fn judged(
    accepted: &[Accepted],
    Settled { standings, moved, .. }: &Settled,
    effects: &BTreeMap<String, u32>,
    order: &[String],
) -> Vec<Row> {
    let all = || accepted.iter().zip(standings);
    let times = |one: &Accepted| effects.get(&one.intent).copied().unwrap_or(0);
    let with = |wanted: &str| standings.iter().filter(|standing| standing.status == wanted).count();
    let many = |is: &dyn Fn(&Accepted, &Standing) -> bool| all().filter(|(one, it)| is(one, it)).count();
    let found = many(&|one, it| it.status == "aborted" && times(one) == 1);
    let given_up = with("dead") + many(&|one, it| it.status == "aborted" && times(one) == 0);
    let unsaid =
        many(&|one, it| matches!(it.status.as_str(), "dead" | "aborted") && times(one) > 0 && !it.is_said);
    let lost = with("gone") + many(&|one, it| it.status == "done" && times(one) == 0);
    let in_place: Vec<&Accepted> = accepted.iter().filter(|one| !moved.contains(&one.intent)).collect();
    vec![
        Row::count("messages accepted by an outbox", accepted.len()),
        Row::count("messages delivered", with("done")),
        Row::count("of those, sent anew: a person found no effect", moved.len()),
        Row::count("messages unknown whose one effect a person found", found),
        Row::count("messages given up, and said to be", given_up),
        Row::promise("messages that never came to an end", many(&|_, it| !it.is_over())),
        Row::promise("messages given up whose effect nobody was told of", unsaid),
        Row::promise("messages that took effect twice", many(&|one, _| times(one) > 1)),
        Row::promise("messages accepted and lost", lost),
        Row::promise("messages that overtook another of their lane", out_of_order(&in_place, order)),
    ]
}

/// Messages whose effect came after that of a later one of the same lane.
fn out_of_order(accepted: &[&Accepted], order: &[String]) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn one(intent: &str) -> Accepted {
        Accepted { intent: intent.to_owned(), id: String::new(), lane: "a".to_owned(), outbox: 0 }
    }

    #[test]
    fn every_end_of_a_message_is_held_against_the_ledger() {
        let broken = |status: &str, is_said: bool, times: u32| -> Vec<String> {
            let standing = Standing { status: status.to_owned(), is_said, ..Standing::default() };
            let settled = Settled { standings: vec![standing], ..Settled::default() };
            let effects = [("a#1".to_owned(), times)].into();
            let rows = judged(&[one("a#1")], &settled, &effects, &["a#1".to_owned()]);
            rows.iter().filter_map(Row::broken).collect()
        };
        for (status, is_said, times) in
            [("done", false, 1), ("aborted", true, 1), ("aborted", true, 0), ("dead", false, 0)]
        {
            assert_eq!(broken(status, is_said, times), [""; 0], "{status} {times}");
        }
        for (status, is_said, times, word) in [
            ("done", false, 0, "lost"),
            ("gone", false, 1, "lost"),
            ("done", false, 2, "twice"),
            ("aborted", false, 1, "nobody was told"),
            ("dead", false, 1, "nobody was told"),
            ("pending", false, 0, "never came to an end"),
        ] {
            let found = broken(status, is_said, times);
            assert!(found.len() == 1 && found[0].contains(word), "{status} {times}: {found:?}");
        }
    }

    #[test]
    fn a_message_that_is_overtaken_is_counted() {
        let accepted = [one("a#1"), one("a#2"), one("a#3")];
        let accepted: Vec<&Accepted> = accepted.iter().collect();
        let order = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(out_of_order(&accepted, &order("a#1 b#9 a#2 a#3")), 0);
        assert_eq!(out_of_order(&accepted, &order("a#1 a#3 a#2")), 1);
    }
}
