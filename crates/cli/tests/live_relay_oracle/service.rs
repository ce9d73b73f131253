//! A score service that offers everything by which a write is known again, one way for each target, with every bad habit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::{Fault, Rng};
use crate::fleet::Fleet;
use crate::world::read_message;

/// The targets, each of the tier of its name.
pub(crate) const TIERS: [&str; 5] = ["key", "marker", "compare-and-set", "read-back", "blind"];
/// Lanes of each.
pub(crate) const LANES: u64 = 10;
/// How late a write is applied at most, as declared.
pub(crate) const LATE_WINDOW: Duration = Duration::from_secs(3);
/// What is left of it for a machine that is slow to apply.
const LATE_SLACK: Duration = Duration::from_millis(600);
/// Faults in a row on one lane: more would be an outage, whose pauses are minutes long.
const IN_A_ROW_MAX: u32 = 3;

#[derive(Default)]
struct Slot {
    score: i64,
    version: u64,
    markers: Vec<String>,
    keys: BTreeSet<String>,
    faults: u32,
}

#[derive(Default)]
struct Books {
    slots: BTreeMap<(usize, String), Slot>,
    tokens: BTreeMap<String, u64>,
    refused: BTreeSet<String>,
    writes: u64,
    faults: BTreeMap<Fault, u64>,
    reads_killed: u64,
    behaves: bool,
}

/// The service.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) fleet: Arc<OnceLock<Arc<Fleet>>>,
    books: Arc<Mutex<Books>>,
    rng: Arc<Rng>,
}

/// A write as it came.
#[derive(Clone)]
struct Asked {
    tier: usize,
    lane: String,
    body: Value,
    key: String,
    version: String,
}

fn header(head: &str, wanted: &str) -> String {
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim().to_owned())
    });
    line.unwrap_or_default()
}

impl Service {
    pub(crate) fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Self {
            address: listener.local_addr().unwrap(),
            fleet: Arc::default(),
            books: Arc::default(),
            rng: Arc::new(Rng::new(seed)),
        };
        let serving = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let service = serving.clone();
                std::thread::spawn(move || while service.answer(&stream).is_some() {});
            }
        });
        service
    }

    pub(crate) fn total(&self, tier: usize, lane: &str) -> i64 {
        self.books.lock().unwrap().slots.get(&(tier, lane.to_owned())).map_or(0, |slot| slot.score)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.books.lock().unwrap().writes
    }

    /// How often each thing went wrong.
    pub(crate) fn faults(&self) -> (BTreeMap<Fault, u64>, u64) {
        let books = self.books.lock().unwrap();
        (books.faults.clone(), books.reads_killed)
    }

    /// From now on nothing goes wrong.
    pub(crate) fn behave(&self) {
        let mut books = self.books.lock().unwrap();
        books.behaves = true;
        books.refused.clear();
    }

    pub(crate) fn token(&self, principal: &str) -> String {
        let books = self.books.lock().unwrap();
        format!("{principal}-{}", books.tokens.get(principal).copied().unwrap_or(0))
    }

    pub(crate) fn new_token(&self, principal: &str) -> String {
        *self.books.lock().unwrap().tokens.entry(principal.to_owned()).or_default() += 1;
        self.token(principal)
    }

    /// The principal's present token is answered with 401.
    pub(crate) fn refuse(&self, principal: &str) {
        let token = self.token(principal);
        self.books.lock().unwrap().refused.insert(token);
    }

    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let (head, body) = read_message(stream)?;
        let mut words = head.split_whitespace();
        let (method, path) = (words.next()?, words.next()?);
        let (tier, lane) = path.strip_prefix('/')?.split_once('/')?;
        let tier = TIERS.iter().position(|name| *name == tier)?;
        let replica: usize = header(&head, "x-replica").parse().ok()?;
        let credential = header(&head, "authorization");
        let is_refused =
            self.books.lock().unwrap().refused.iter().any(|token| credential.ends_with(token.as_str()));
        if is_refused {
            return say(stream, 401, "");
        }
        if method == "GET" {
            return self.read(stream, tier, lane, replica);
        }
        let asked = Asked {
            tier,
            lane: lane.to_owned(),
            body: serde_json::from_slice(&body).ok()?,
            key: header(&head, "x-key"),
            version: header(&head, "if-match"),
        };
        self.write(stream, &asked, replica)
    }

    /// Now and then the replica is killed while it reads: it holds the lane, and nothing is frozen.
    fn read(&self, stream: &TcpStream, tier: usize, lane: &str, replica: usize) -> Option<()> {
        let behaves = self.books.lock().unwrap().behaves;
        if !behaves && self.rng.below(60) == 0 {
            self.books.lock().unwrap().reads_killed += 1;
            self.fleet.get()?.kill(replica);
            return None;
        }
        let body = {
            let mut books = self.books.lock().unwrap();
            let slot = books.slots.entry((tier, lane.to_owned())).or_default();
            json!({"score": slot.score, "version": slot.version.to_string(), "markers": slot.markers})
        };
        say(stream, 200, &body.to_string())
    }

    fn fault(&self, asked: &Asked) -> Fault {
        let mut books = self.books.lock().unwrap();
        books.writes += 1;
        let behaves = books.behaves;
        let slot = books.slots.entry((asked.tier, asked.lane.clone())).or_default();
        let fault = match behaves || slot.faults >= IN_A_ROW_MAX {
            true => Fault::None,
            false => Fault::choose(&self.rng),
        };
        slot.faults = if fault == Fault::None { 0 } else { slot.faults + 1 };
        *books.faults.entry(fault).or_default() += 1;
        fault
    }

    fn write(&self, stream: &TcpStream, asked: &Asked, replica: usize) -> Option<()> {
        let fleet = self.fleet.get()?;
        match self.fault(asked) {
            Fault::None => say(stream, self.apply(asked), "{}"),
            Fault::LostReply => {
                self.apply(asked);
                None
            }
            Fault::Swallowed => None,
            Fault::AppliedLate => {
                self.apply_late(asked);
                None
            }
            Fault::FailsAfter => {
                self.apply(asked);
                say(stream, 500, "{}")
            }
            Fault::Unavailable => say(stream, 503, "{}"),
            Fault::Limited => say(stream, 429, "{}"),
            Fault::Blocked => say(stream, 418, "{}"),
            Fault::KilledBefore => {
                fleet.kill(replica);
                None
            }
            Fault::KilledThenLate => {
                fleet.kill(replica);
                self.apply_late(asked);
                None
            }
            Fault::KilledAfter => {
                self.apply(asked);
                fleet.kill(replica);
                None
            }
            Fault::KilledAnswered => {
                let status = self.apply(asked);
                say(stream, status, "{}")?;
                std::thread::sleep(Duration::from_micros(self.rng.below(4000)));
                fleet.kill(replica);
                None
            }
            Fault::Frozen => {
                let status = match fleet.freeze(replica) {
                    true => self.apply(asked),
                    false => 503,
                };
                say(stream, status, "{}")
            }
        }
    }

    fn apply_late(&self, asked: &Asked) {
        let (service, asked) = (self.clone(), asked.clone());
        // Half of the window, so that a thread which wakes late is not later than declared.
        let by = Duration::from_millis(self.rng.below((LATE_WINDOW - LATE_SLACK).as_millis() as u64));
        std::thread::spawn(move || {
            std::thread::sleep(by);
            service.apply(&asked);
        });
    }

    fn apply(&self, asked: &Asked) -> u16 {
        let mut books = self.books.lock().unwrap();
        let slot = books.slots.entry((asked.tier, asked.lane.clone())).or_default();
        let (add, score) = (asked.body["add"].as_i64(), asked.body["score"].as_i64());
        match TIERS[asked.tier] {
            "key" if !slot.keys.insert(asked.key.clone()) => return 200,
            "compare-and-set" if asked.version != slot.version.to_string() => return 412,
            "marker" => slot.markers.push(asked.body["marker"].as_str().unwrap_or_default().to_owned()),
            _ => {}
        }
        slot.version += 1;
        slot.score = score.unwrap_or(slot.score + add.unwrap_or(0));
        200
    }
}

fn say(mut stream: &TcpStream, status: u16, body: &str) -> Option<()> {
    let retry = if status == 429 { "retry-after: 1\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{retry}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}
