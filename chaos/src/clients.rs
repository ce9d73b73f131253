//! Clients that never give up on a key: each sends its request through any gateway that has its record until it is answered for
//! good. Some send one request with one key to two hosts: those are two requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::http::{self, Answer};
use super::random::Random;
use super::tokens::{Token, Tokens};
use super::upstream;

/// One key in so many is sent to two hosts.
const TWO_HOSTS_ONE_IN: u64 = 8;
/// Hosts that the service tells apart, as it does over HTTP/1.1.
const HOSTS: [&str; 2] = ["a.example", "b.example"];
/// How long one waits for an answer; shorter than some answers take.
const PATIENCE: Duration = Duration::from_millis(1500);
/// A request that is told "unknown" for so long is left to a person.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);

/// One logical request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// What the service's ledger calls it: what it asks for, and of which host.
    pub(crate) intent: String,
    key: String,
    host: Option<&'static str>,
    /// The gateways that have its record.
    gates: Arc<[u16]>,
}

impl Request {
    /// Sends it once, by one of its gateways.
    pub(crate) fn send(&self, token: Token, any: u64, patience: Duration) -> std::io::Result<Answer> {
        let mut head = head(&self.key, token);
        let (mut body, gates) = (self.intent.as_str(), &self.gates);
        if let Some(host) = self.host {
            head.push_str(&format!("\r\nHost: {host}"));
            body = body.split('@').next().unwrap_or_default();
        }
        http::send(gates[(any % gates.len() as u64) as usize], &head, body, patience)
    }
}

/// What became of it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) request: Request,
    /// The credentials that it was sent with; the last of them got the answer.
    pub(crate) tokens: Vec<Token>,
    pub(crate) sends: u32,
    pub(crate) end: End,
}

/// How it ended for its client.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Acknowledged, with this answer.
    Acknowledged(Answer),
    /// It was told that nobody knows.
    Unknown,
    /// It found nobody until the end.
    GaveUp,
}

/// The clients, at work.
pub(crate) struct Clients {
    threads: Vec<JoinHandle<Vec<Sent>>>,
    acknowledged: Arc<AtomicU64>,
}

/// Gateways that share their records, how many send to them at a time, and those of them that pass the host on as it is.
pub(crate) struct Group<'a> {
    pub(crate) gates: &'a [u16],
    pub(crate) clients: u64,
    pub(crate) plain: u16,
}

impl Clients {
    pub(crate) fn start(groups: &[Group<'_>], tokens: &Tokens, stop: &Arc<AtomicBool>, seed: u64) -> Self {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let client = |(number, gates, plain): (u64, Arc<[u16]>, Arc<[u16]>)| {
            let (stop, acknowledged, tokens) = (Arc::clone(stop), Arc::clone(&acknowledged), tokens.clone());
            thread::spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(1000) + number);
                let mut sent = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let name = format!("intent-{number}-{}", sent.len());
                    for request in requests(name, [&gates, &plain], &mut random) {
                        let one = follow(request, &tokens, &mut random, &stop);
                        let is_acknowledged = matches!(one.end, End::Acknowledged(_));
                        acknowledged.fetch_add(u64::from(is_acknowledged), Ordering::SeqCst);
                        sent.push(one);
                    }
                }
                sent
            })
        };
        let all = groups.iter().flat_map(|group| {
            let (gates, plain): (Arc<[u16]>, Arc<[u16]>) = (group.gates.into(), [group.plain].into());
            (0..group.clients).map(move |_| (Arc::clone(&gates), Arc::clone(&plain)))
        });
        let threads = (0..).zip(all).map(|(number, (gates, plain))| client((number, gates, plain))).collect();
        Self { threads, acknowledged }
    }

    /// How many requests are acknowledged so far.
    pub(crate) fn progress(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits for all of them; what was not answered is asked for once more, now that the faults have stopped.
    pub(crate) fn finish(self, until: Instant) -> Vec<Sent> {
        let mut all: Vec<Sent> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        let mut random = Random::new(0);
        for one in all.iter_mut().filter(|one| !matches!(one.end, End::Acknowledged(_))) {
            while Instant::now() < until {
                // One of its credentials has the answer.
                one.tokens.rotate_left(1);
                let Some(token) = one.tokens.last() else { break };
                let again = one.request.send(*token, random.next(), PATIENCE).ok();
                one.sends += 1;
                if let Some(end) = again.and_then(|answer| ended(&one.request, answer, UNKNOWN_MAX)) {
                    one.end = end;
                    break;
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        all
    }
}

/// A new request; now and then two with one key, each for a host of its own.
fn requests(name: String, [gates, plain]: [&Arc<[u16]>; 2], random: &mut Random) -> Vec<Request> {
    let key = random.uuid();
    if random.below(TWO_HOSTS_ONE_IN) > 0 {
        return vec![Request { intent: name, key, host: None, gates: Arc::clone(gates) }];
    }
    let at = |host: &'static str| {
        let (intent, key, host) = (format!("{name}@{host}"), key.clone(), Some(host));
        Request { intent, key, host, gates: Arc::clone(plain) }
    };
    HOSTS.map(at).into()
}

fn follow(request: Request, tokens: &Tokens, random: &mut Random, stop: &AtomicBool) -> Sent {
    let mut used = vec![tokens.current()];
    let (mut sends, since) = (0, Instant::now());
    let mut unknown_since: Option<Instant> = None;
    loop {
        sends += 1;
        let token = used.last().copied().unwrap_or_else(|| tokens.current());
        // Now and then two at once, as a hasty client would.
        let twin = (random.below(8) == 0).then(|| {
            let (request, any) = (request.clone(), random.next());
            thread::spawn(move || request.send(token, any, PATIENCE))
        });
        let answer = request.send(token, random.next(), PATIENCE).ok();
        drop(twin.map(JoinHandle::join));
        if let Some(answer) = answer {
            let is_unknown = answer.body.contains("outcome-unknown");
            unknown_since = is_unknown.then(|| unknown_since.unwrap_or_else(Instant::now));
            let waited = unknown_since.map_or(Duration::ZERO, |since| since.elapsed());
            let is_anothers = answer.body.contains("credential-changed");
            if let Some(end) = ended(&request, answer, waited) {
                return Sent { request, tokens: used, sends, end };
            }
            if is_anothers {
                // It was sent with another one before.
                used.rotate_left(1);
            }
        }
        if !used.contains(&tokens.current()) {
            used.push(tokens.current());
        }
        if stop.load(Ordering::SeqCst) && since.elapsed() > Duration::from_secs(5) {
            return Sent { request, tokens: used, sends, end: End::GaveUp };
        }
        thread::sleep(Duration::from_millis(20 + random.below(80)));
    }
}

/// The head of a keyed request.
pub(crate) fn head(key: &str, token: Token) -> String {
    format!("POST /chaos HTTP/1.1\r\nAuthorization: {}\r\nIdempotency-Key: {key}", token.value())
}

/// Whether an answer ends the matter. A refusal that says "same key" does not.
fn ended(request: &Request, answer: Answer, unknown_for: Duration) -> Option<End> {
    match answer.status {
        201 => Some(End::Acknowledged(answer)),
        409 if is_not_kept(request, &answer) => Some(End::Acknowledged(answer)),
        409 if answer.body.contains("outcome-unknown") && unknown_for >= UNKNOWN_MAX => Some(End::Unknown),
        _ => None,
    }
}

/// Whether this says that it took effect, and that the answer was too large to keep, as it was.
pub(crate) fn is_not_kept(request: &Request, answer: &Answer) -> bool {
    answer.status == 409 && answer.body.contains("answer-not-kept") && upstream::is_large(&request.intent)
}
