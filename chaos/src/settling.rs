//! After the faults, whoever looks after an outbox brings every message to its end. One whose outcome the gateway does not
//! know is looked up in the service's ledger: what took effect is taken back, and what did not is sent under a new id. One person in
//! four looks at no ledger, and sends anew whatever the receipt says was not delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http;
use super::outboxes::TOKEN;
use super::upstream::Upstream;

/// A message that was accepted.
pub(crate) struct Accepted {
    pub(crate) intent: String,
    pub(crate) id: String,
    pub(crate) lane: String,
    /// Which outbox has it.
    pub(crate) outbox: usize,
}

/// How many receipts are asked for at a time.
const ASKING: usize = 8;
/// How long everything is left alone first: longer than a lease, a late window and the longest work of the service.
const ALONE: Duration = Duration::from_secs(6);
/// After so long a message is looked at that waits for anything else, such as its next attempt.
const LONG: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(300);

/// Where a message stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its status; `gone` where the outbox does not know it, and empty where nobody answers.
    pub(crate) status: String,
    pub(crate) last_error: String,
    /// Whether its receipt says that it may have been delivered.
    pub(crate) is_said: bool,
}

impl Standing {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "done" | "dead" | "aborted" | "gone")
    }

    /// Whether its receipt says that it waits or was given up, and was not delivered.
    fn may_be_sent_anew(&self) -> bool {
        matches!(self.status.as_str(), "pending" | "dead") && !self.is_said
    }

    fn of(status: u16, body: &str) -> Self {
        if status == 404 {
            return Self { status: "gone".to_owned(), ..Self::default() };
        }
        let receipt: Value = serde_json::from_str(body).unwrap_or_default();
        let text = |name: &str| receipt[name].as_str().unwrap_or_default().to_owned();
        Self {
            status: text("status"),
            last_error: text("last_error"),
            is_said: receipt["possibly_delivered"].as_bool().unwrap_or_default(),
        }
    }
}

/// What a person does about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// It comes to its end by itself, or another of its lane must first.
    Wait,
    /// It took effect: nothing of it is to be sent any more.
    TakeBack,
    /// It did not: a new message takes its place, by force where the gateway does not know.
    SendAnew { by_force: bool },
}

/// One message in so many is looked after by somebody who believes its receipt.
const BELIEVES_ONE_IN: usize = 4;

fn act(standing: &Standing, effects: u32, since: Duration, believes: bool) -> Act {
    if believes && standing.may_be_sent_anew() {
        return Act::SendAnew { by_force: false };
    }
    let is_unknown = standing.last_error.contains("outcome-unknown");
    let is_time = since >= if is_unknown { ALONE } else { LONG };
    match (standing.status.as_str(), effects) {
        ("pending", 0) if is_time => Act::SendAnew { by_force: is_unknown },
        ("pending", _) if is_time => Act::TakeBack,
        _ => Act::Wait,
    }
}

/// How it all ended.
#[derive(Default)]
pub(crate) struct Settled {
    /// Where each accepted message stands, or the one in its place.
    pub(crate) standings: Vec<Standing>,
    /// What an outbox said to the last thing that was asked of it about a message, where it refused.
    pub(crate) refusals: BTreeMap<usize, String>,
    /// Intents that somebody sent anew: they have left their place in their lane.
    pub(crate) moved: BTreeSet<String>,
}

impl Settled {
    fn refused(&mut self, at: usize, told: Option<&(u16, String)>) {
        match told {
            Some((200, _)) => drop(self.refusals.remove(&at)),
            Some((status, body)) => drop(self.refusals.insert(at, format!("{status} {}", body.trim()))),
            None => drop(self.refusals.insert(at, "no answer".to_owned())),
        }
    }

    /// Another message stands in the place of this one: what became of that is asked for, whatever the first came to.
    fn was_sent_anew(&mut self, at: usize, intent: &str) {
        self.standings[at] = Standing::default();
        self.moved.insert(intent.to_owned());
    }

    /// A line for each lane that did not come to its end: what its first open message waits for.
    pub(crate) fn open(&self, accepted: &[Accepted]) -> Vec<String> {
        let line = |at: usize| {
            let (one, standing) = (&accepted[at], &self.standings[at]);
            let refusal = self.refusals.get(&at).map_or("nothing was asked", String::as_str);
            format!("outbox {} {} {}: {standing:?}; {refusal}", one.outbox, one.intent, one.id)
        };
        heads(accepted, &self.standings).into_iter().map(line).collect()
    }
}

/// Brings everything to its end, if there is time.
pub(crate) fn settle(ports: &[u16], accepted: &[Accepted], upstream: &Upstream, until: Instant) -> Settled {
    let began = Instant::now();
    let mut ids: Vec<String> = accepted.iter().map(|one| one.id.clone()).collect();
    let mut settled = Settled { standings: vec![Standing::default(); accepted.len()], ..Settled::default() };
    let mut believed: BTreeSet<usize> = BTreeSet::new();
    loop {
        let open: Vec<usize> = (0..ids.len()).filter(|at| !settled.standings[*at].is_over()).collect();
        for (at, standing) in standings(ports, accepted, &ids, &open) {
            settled.standings[at] = standing;
        }
        let mut heads = heads(accepted, &settled.standings);
        // What was given up is at its end, but for those who believe that it was not delivered.
        let given_up = (0..ids.len()).filter(|at| settled.standings[*at].status == "dead");
        let given_up: Vec<usize> =
            given_up.filter(|at| believes(*at) && settled.standings[*at].may_be_sent_anew()).collect();
        heads.extend(given_up.into_iter().filter(|at| !believed.contains(at)));
        if heads.is_empty() || Instant::now() > until {
            return settled;
        }
        let effects = upstream.effects();
        for at in heads {
            let (one, id) = (&accepted[at], &mut ids[at]);
            let taken = effects.get(&one.intent).copied().unwrap_or(0);
            let believes = believes(at) && believed.insert(at);
            match act(&settled.standings[at], taken, began.elapsed(), believes) {
                Act::Wait => {}
                // Where it is refused, the next round looks again.
                Act::TakeBack => {
                    let done = ask(ports[one.outbox], "POST", &format!("{id}/abort"), "");
                    settled.refused(at, done.as_ref());
                }
                Act::SendAnew { by_force } => {
                    let body = format!("{{\"auto\":true,\"force\":{by_force}}}");
                    let done = ask(ports[one.outbox], "POST", &format!("{id}/requeue"), &body);
                    settled.refused(at, done.as_ref());
                    if let Some((200, body)) = done {
                        let told: Value = serde_json::from_str(&body).unwrap_or_default();
                        let new = told["new"]["client_message_id"].as_str().unwrap_or_default();
                        new.clone_into(id);
                        settled.was_sent_anew(at, &one.intent);
                    }
                }
            }
        }
        thread::sleep(PAUSE);
    }
}

fn believes(at: usize) -> bool {
    at.is_multiple_of(BELIEVES_ONE_IN)
}

/// The first message of each lane that is not at its end.
fn heads(accepted: &[Accepted], standings: &[Standing]) -> Vec<usize> {
    let mut heads: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, one) in accepted.iter().enumerate().filter(|(at, _)| !standings[*at].is_over()) {
        heads.entry(&one.lane).or_insert(at);
    }
    heads.into_values().collect()
}

/// Where these messages stand. Several are asked for at a time.
fn standings(
    ports: &[u16],
    accepted: &[Accepted],
    ids: &[String],
    open: &[usize],
) -> BTreeMap<usize, Standing> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let look = || {
        while let Some(at) = open.get(next.fetch_add(1, Ordering::SeqCst)) {
            let told = ask(ports[accepted[*at].outbox], "GET", &ids[*at], "");
            let standing = told.map_or_else(Standing::default, |(status, body)| Standing::of(status, &body));
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(*at, standing);
        }
    };
    thread::scope(|scope| {
        for _ in 0..ASKING {
            scope.spawn(look);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn ask(port: u16, method: &str, what: &str, body: &str) -> Option<(u16, String)> {
    let answer = http::send(port, &head(method, &format!("/v1/messages/{what}")), body, PATIENCE).ok()?;
    Some((answer.status, answer.body))
}

/// The head of a request to an outbox.
pub(crate) fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(status: &str, last_error: &str) -> Standing {
        Standing { status: status.to_owned(), last_error: last_error.to_owned(), is_said: true }
    }

    #[test]
    fn what_a_person_does_follows_from_the_ledger() {
        let unknown = standing("pending", "HTTP 409 outcome-unknown");
        assert_eq!(act(&unknown, 0, ALONE / 2, false), Act::Wait, "an effect may still come");
        assert_eq!(act(&unknown, 0, ALONE, false), Act::SendAnew { by_force: true });
        assert_eq!(act(&unknown, 1, ALONE, false), Act::TakeBack);
        let other = standing("pending", "connection refused");
        assert_eq!(act(&other, 0, ALONE, false), Act::Wait);
        assert_eq!(
            act(&other, 0, LONG, false),
            Act::SendAnew { by_force: false },
            "the key is sealed or it is refused"
        );
        let (lie, said) = (Standing { is_said: false, ..unknown.clone() }, Duration::ZERO);
        assert_eq!(
            act(&lie, 1, said, true),
            Act::SendAnew { by_force: false },
            "who believes looks at no ledger"
        );
        assert_eq!(act(&unknown, 1, said, true), Act::Wait);
        for over in ["inflight", "done", "dead", "held", ""] {
            assert_eq!(act(&standing(over, ""), 0, LONG, false), Act::Wait, "{over}");
        }
    }

    #[test]
    fn what_was_sent_anew_is_looked_at_again() {
        let given_up = standing("dead", "expired");
        let mut settled = Settled { standings: vec![given_up], ..Settled::default() };
        settled.was_sent_anew(0, "a#1");
        assert!(!settled.standings[0].is_over() && settled.moved.contains("a#1"));
    }

    #[test]
    fn a_receipt_is_read() {
        let body = r#"{"status":"pending","last_error":"HTTP 409","possibly_delivered":true}"#;
        assert_eq!(Standing::of(200, body), standing("pending", "HTTP 409"));
        assert!(Standing::of(404, "").is_over() && !Standing::of(503, "").is_over());
    }
}
