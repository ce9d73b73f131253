//! The server that messages are sent to: a ledger of effects, the keys it knows again, the credentials it refuses. What
//! happens on the way to it and back is the wire's.

use std::collections::{BTreeMap, BTreeSet};

use semel_contract::time::Timestamp;
use semel_delivery::message::Answer;
use semel_delivery::transport::Outgoing;
use serde_json::json;

use crate::outbox::plan::{Callers, Knows, Plan, RETENTION};

/// A key that was used.
#[derive(Clone, Debug)]
struct Known {
    body: Vec<u8>,
    answer: Answer,
    /// Whether the answer can be given again.
    is_kept: bool,
    /// The credential that it was used with.
    token: String,
    at: u64,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    knows: Knows,
    callers: Callers,
    forgets: bool,
    keys: BTreeMap<String, Known>,
    /// Keys of requests that still run.
    running: BTreeSet<String>,
    /// Keys that must not be used any more, each with the caller who sealed it.
    sealed: BTreeSet<(String, String)>,
    revoked: BTreeSet<String>,
    /// Keys that it has called too old: they do not become younger.
    too_old: BTreeSet<String>,
    /// Effects of a key, by their place in the ledger.
    effects: BTreeMap<String, Vec<u64>>,
    length: u64,
}

/// What the server makes of a request that it would otherwise carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It carries it out.
    Willing,
    /// It carries it out, with an answer that is too large to keep.
    Verbose,
    /// It carries it out, and leads to what it has made.
    Leading,
    /// It refuses it for good.
    Rejecting,
    /// It refuses it without saying, or without knowing, what earlier attempts came to.
    Refusing(Refusal),
}

/// A refusal that says nothing of earlier attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was first sent too long ago.
    TooOld,
    /// What was used under the key is told apart in another way than before.
    Mismatch,
}

/// The value of a header.
pub(super) fn header<'a>(request: &'a Outgoing, name: &str) -> &'a str {
    let found = request.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
    found.map_or("", |(_, value)| value.as_str())
}

/// An answer with a code in its body.
pub(super) fn answer(status: u16, code: &str) -> Answer {
    Answer { status, headers: Vec::new(), body: json!({ "code": code }).to_string().into_bytes() }
}

impl Server {
    /// A server that nothing has reached yet.
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            knows: plan.knows,
            callers: plan.callers,
            forgets: plan.forgets,
            keys: BTreeMap::new(),
            running: BTreeSet::new(),
            sealed: BTreeSet::new(),
            revoked: BTreeSet::new(),
            too_old: BTreeSet::new(),
            effects: BTreeMap::new(),
            length: 0,
        }
    }

    /// How many messages have taken effect.
    pub fn delivered(&self) -> u64 {
        self.effects.len() as u64
    }

    /// Where in the ledger a key's effects are.
    pub fn effects(&self, key: &str) -> &[u64] {
        self.effects.get(key).map_or(&[], Vec::as_slice)
    }

    /// A credential is refused from now on.
    pub(super) fn revoke(&mut self, token: &str) {
        self.revoked.insert(token.to_owned());
    }

    /// Whether a credential is refused.
    pub(super) fn is_revoked(&self, token: &str) -> bool {
        self.revoked.contains(token)
    }

    /// Begins to work on a request, where its key is free.
    pub(super) fn begin(&mut self, request: &Outgoing) -> bool {
        let (key, token) = (header(request, "idempotency-key"), header(request, "authorization"));
        let is_free = self.knows == Knows::Keys
            && !key.is_empty()
            && !self.keys.contains_key(key)
            && !self.too_old.contains(key)
            && !self.sealed.iter().any(|(_, sealed)| sealed == key)
            && !self.is_revoked(token);
        is_free && self.running.insert(key.to_owned())
    }

    /// Does not work on it any more; it came to nothing, or is carried out now.
    pub(super) fn end(&mut self, key: &str) {
        self.running.remove(key);
    }

    /// A request arrives, at this millisecond and this date.
    pub(super) fn arrive(&mut self, request: &Outgoing, mood: Mood, now: u64, date: Timestamp) -> Answer {
        let mut said = match self.is_revoked(header(request, "authorization")) {
            true => answer(401, "token-expired"),
            false if request.target.path.starts_with("/.well-known/semel/keys/") => self.seal(request, now),
            false => self.act(request, mood, now),
        };
        said.headers.push(("date".to_owned(), http_date(date)));
        if self.knows == Knows::Keys {
            said.headers.push(("semel-guarantee".to_owned(), "fenced".to_owned()));
            said.headers.push(("semel-retention".to_owned(), RETENTION.as_secs().to_string()));
        }
        said
    }

    fn forget(&mut self, now: u64) {
        let kept = u64::try_from(RETENTION.as_millis()).unwrap_or(u64::MAX);
        if self.forgets {
            self.keys.retain(|_, known| known.at + kept > now);
        }
    }

    /// Who a credential's caller is, as far as the server can tell.
    fn caller(&self, token: &str) -> String {
        match self.callers {
            Callers::Verified => token.rsplit_once('-').map_or(token, |(principal, _)| principal).to_owned(),
            Callers::Hashed => token.to_owned(),
        }
    }

    fn act(&mut self, request: &Outgoing, mood: Mood, now: u64) -> Answer {
        self.forget(now);
        let key = header(request, "idempotency-key").to_owned();
        let token = header(request, "authorization").to_owned();
        if self.running.contains(&key) {
            let headers = [("semel-outcome", "pending"), ("retry-after", "20")];
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            return Answer { status: 202, headers, body: br#"{"status":"processing"}"#.to_vec() };
        }
        if self.knows == Knows::Keys {
            if let Some(refused) = self.refuse(&key, mood) {
                return refused;
            }
            if self.sealed.contains(&(self.caller(&token), key.clone())) {
                return answer(409, "key-sealed");
            }
            if let Some(known) = self.keys.get(&key) {
                return self.answer_again(known, request, &token);
            }
        }
        let said = match mood {
            Mood::Rejecting => answer(422, "no-such-thing"),
            Mood::Willing | Mood::Verbose | Mood::Leading | Mood::Refusing(_) => {
                self.effects.entry(key.clone()).or_default().push(self.length);
                self.length += 1;
                Answer {
                    status: if mood == Mood::Leading { 303 } else { 201 },
                    headers: Vec::new(),
                    body: json!({"id": self.length}).to_string().into(),
                }
            }
        };
        let is_kept = mood != Mood::Verbose;
        let known = Known { body: request.body.clone(), answer: said.clone(), is_kept, token, at: now };
        self.keys.insert(key, known);
        said
    }

    /// A refusal that a server may come to whatever the key was used for.
    fn refuse(&mut self, key: &str, mood: Mood) -> Option<Answer> {
        if mood == Mood::Refusing(Refusal::TooOld) {
            self.too_old.insert(key.to_owned());
        }
        match mood {
            _ if self.too_old.contains(key) => Some(answer(422, "too-old")),
            Mood::Refusing(Refusal::Mismatch) if self.keys.contains_key(key) => {
                Some(answer(422, "fingerprint-mismatch"))
            }
            Mood::Refusing(_) | Mood::Willing | Mood::Verbose | Mood::Leading | Mood::Rejecting => None,
        }
    }

    /// What is said of a key that was used before.
    fn answer_again(&self, known: &Known, request: &Outgoing, token: &str) -> Answer {
        if self.caller(&known.token) != self.caller(token) {
            return answer(409, "credential-changed");
        }
        if known.body != request.body {
            return answer(422, "fingerprint-mismatch");
        }
        if !known.is_kept {
            let body = json!({"code": "answer-not-kept", "details": {"originalStatus": known.answer.status}});
            return Answer { status: 409, headers: Vec::new(), body: body.to_string().into() };
        }
        let mut again = known.answer.clone();
        again.headers.push(("idempotency-replayed".to_owned(), "true".to_owned()));
        again
    }

    fn seal(&mut self, request: &Outgoing, now: u64) -> Answer {
        self.forget(now);
        let key = request.target.path.split('/').nth(4).unwrap_or_default();
        let caller = self.caller(header(request, "authorization"));
        let is_own = |known: &&Known| self.caller(&known.token) == caller;
        let said = match (self.knows, self.keys.get(key).filter(is_own)) {
            (Knows::Nothing, _) => return answer(404, "no-such-page"),
            (Knows::Keys, _) if self.running.contains(key) => json!({"sealed": false, "state": "claimed"}),
            (Knows::Keys, Some(known)) if !known.is_kept => {
                json!({"sealed": false, "state": "unkept", "status": known.answer.status})
            }
            (Knows::Keys, Some(known)) => {
                json!({"sealed": false, "state": "settled", "response": {"status": known.answer.status, "body": ""}})
            }
            (Knows::Keys, None) => {
                self.sealed.insert((caller, key.to_owned()));
                let identity = match self.callers {
                    Callers::Verified => "verified",
                    Callers::Hashed => "hashed",
                };
                json!({"sealed": true, "identity": identity})
            }
        };
        Answer { status: 200, headers: Vec::new(), body: said.to_string().into_bytes() }
    }
}

/// A time as HTTP writes it, made from the form of RFC 3339.
fn http_date(at: Timestamp) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let text = at.to_string();
    let day = usize::try_from(at.millis().div_euclid(86_400_000).rem_euclid(7)).unwrap_or(0);
    let month = text[5..7].parse::<usize>().unwrap_or(1);
    format!("{}, {} {} {} {} GMT", DAYS[day], &text[8..10], MONTHS[month - 1], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_what_a_reader_of_http_reads() {
        let at = Timestamp::from_millis(1_769_848_200_000);
        assert_eq!(http_date(at), "Sat, 31 Jan 2026 08:30:00 GMT");
        assert_eq!(semel_delivery::date::http_date(&http_date(at)), Some(at));
    }
}
